"""What training iterates over: the batches of a ring, as tensors on its slots, without a copy.

The trap: a batch is a view of its slot, and the slot is used again as soon as the next batch is asked for.
Who keeps a batch longer (a list of all images, say) must clone it, or ask for copies. Notebook 08 teaches
the ring.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import torch

from smallfiles.errors import UsageError
from smallfiles.loading.batches import Array, Fault
from smallfiles.loading.loader import KEPT_FAULTS
from smallfiles.loading.packets import LoadedBatch, to_tensors
from smallfiles.loading.plan import EpochPlan
from smallfiles.loading.schedule import Schedule
from smallfiles.ring.at_signal import at_sigterm
from smallfiles.ring.config import Copy
from smallfiles.ring.faults import RingError
from smallfiles.ring.link import Link, Taken
from smallfiles.ring.own import OwnFiller
from smallfiles.ring.report import RingStatus, status

_HISTORY = 1 << 16


@dataclass(frozen=True)
class FillSample:
    """The ring at the moment when training asked for a batch.

    Args:
        seconds: Since the loader was made.
        epoch: Of the batch asked for.
        batch: Its number in the epoch.
        ready: How many batches were ready.
        waited_s: How long it took to get this one.
    """

    seconds: float
    epoch: int
    batch: int
    ready: int
    waited_s: float


class RingLoader:
    """The batches of a ring, epoch after epoch, as a `DataLoader` would give them.

    Each pass is the next epoch; `set_epoch` and `start_at` correct that. A pass that was broken off gives
    its unused batches back. One thread at a time may use it.

    Args:
        link: To the filler.
        copy: Views of the slots, copies, or copies in pinned memory.
        own: The filler, if it is a thread of this process.
    """

    def __init__(self, link: Link, copy: Copy = "none", own: OwnFiller | None = None) -> None:
        if copy == "pinned" and not torch.cuda.is_available():
            raise UsageError(
                "copies in pinned memory were asked for and there is no GPU",
                expected="a GPU that CUDA can use",
                next_step="Use views or plain copies of the slots",
            )
        self._link, self._copy, self._own = link, copy, own
        self.schedule = Schedule(link.order.plan)
        self.schedule.start_at(*link.next)
        self.faults: list[Fault] = []
        self.fault_count = 0
        self._at: tuple[int, int] | None = None
        self._began = perf_counter()
        self._history: deque[FillSample] = deque(maxlen=_HISTORY)
        self._end = weakref.finalize(self, _end, os.getpid(), link, own)
        if own is not None:
            at_sigterm(self._end)

    def __len__(self) -> int:
        return self._link.order.length(self.schedule.epoch)

    @property
    def name(self) -> str:
        """Of the ring."""
        return self._link.path.name

    @property
    def plan(self) -> EpochPlan:
        """What each epoch is."""
        return self._link.order.plan

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number of the first batch that training is not done with."""
        return self._link.next.epoch, self._link.next.batch

    @property
    def fill_history(self) -> list[FillSample]:
        """One sample for each batch taken, the last 65,536."""
        return list(self._history)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is this epoch: from where training was if it was in this one, else from its start."""
        self.schedule.set_epoch(epoch)
        self._at = None

    def start_at(self, epoch: int, batch: int) -> None:
        """The next pass is this epoch from this batch on."""
        self.schedule.start_at(epoch, batch)
        self._at = None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the batch after the one in training. A `Loader` can go on from it too."""
        epoch, batch = self._at or (self.schedule.epoch, self.schedule.start)
        if batch and batch >= self.plan.length(epoch):
            epoch, batch = epoch + 1, 0
        return {"epoch": epoch, "batch": batch, "plan": self.plan.depends_on()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on where the loader was that gave this state.

        Raises:
            UsageError: That loader had another data set, batch size, seed or number of ranks.
        """
        if state.get("plan") != self.plan.depends_on():
            raise UsageError(
                f"the state is of a loader with the plan {state.get('plan')}",
                expected=f"{self.plan.depends_on()}, as this one has",
                next_step="Resume with the data set and the settings of the run that was stopped",
            )
        self.start_at(int(state["epoch"]), int(state["batch"]))

    def status(self) -> RingStatus:
        """How far both sides are."""
        return status(self.name, self._link.path.parent.parent)

    def __iter__(self) -> Iterator[LoadedBatch]:
        """The batches of the next epoch.

        Raises:
            SmallfilesError: A batch cannot be made, or there is no filler any more.
        """
        self._check_open()
        epoch, start = self.schedule.take()
        order = self._link.order
        if start >= order.length(epoch):
            return
        self._link.go_to(order.at(epoch, start))
        self._at = epoch, start
        for number in range(start, order.length(epoch)):
            self._check_open()
            began, ready = perf_counter(), self._link.fill_level
            taken = self._link.take()
            waited_s = perf_counter() - began
            self._history.append(FillSample(began - self._began, epoch, number, ready, waited_s))
            self._at = epoch, number + 1
            yield self._tensors(taken)
            self._link.done(waited_s, order.after(taken.position))
        self._at = None

    def _check_open(self) -> None:
        if not self._end.alive:
            raise RingError(
                f"the loader of ring {self.name} was closed",
                expected="an open one",
                next_step="Open the ring again",
            )

    def _tensors(self, taken: Taken) -> LoadedBatch:
        block = self._link.memory.block(taken.slot)
        arrays = {}
        for name, (shape, dtype, start) in taken.payload["arrays"].items():
            kind = np.dtype(dtype)
            stop = start + int(np.prod(shape)) * kind.itemsize
            arrays[name] = self._copied(block[start:stop].view(kind).reshape(shape))
        faults = tuple(Fault(*fault) for fault in taken.payload["faults"])
        self.faults += faults[: max(0, KEPT_FAULTS - len(self.faults))]
        self.fault_count += taken.payload["fault_count"]
        return to_tensors(arrays, faults)

    def _copied(self, array: Array) -> Array:
        if self._copy == "none":
            return array
        if self._copy == "copy":
            return array.copy()
        pinned: Array = torch.from_numpy(array).pin_memory().numpy()
        return pinned

    def close(self) -> None:
        """Leave the ring; a filler of this process ends and leaves nothing behind."""
        self._end()

    def __enter__(self) -> RingLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(pid: int, link: Link, own: OwnFiller | None) -> None:
    if os.getpid() != pid:
        return  # a forked child has no part in it
    if own is not None:
        own.end()  # first, so that nobody fills the slot that training still looks at
    link.close()
