"""The trainer's side of a ring: its connection to the filler, and batches as tensors over the slots.

When the filler is killed, the trainer reads an end of file at once and stops with a sentence that says so.
The traps: a batch is a view of its slot, and the slot is reused as soon as the next batch is requested. Code
that keeps a batch longer (a list of all images, say) must clone it. And a trainer that waits silently looks
like one that computes, so each long wait gives a warning. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from smallfiles import processes
from smallfiles.errors import UsageError, first_few
from smallfiles.loading.dataset import LoadedBatch, name_of_data, to_tensors
from smallfiles.loading.fields import none_left
from smallfiles.loading.loader import KEPT_FAULTS
from smallfiles.loading.makers import BatchMaker, Fault, found_at
from smallfiles.loading.plan import EpochPlan
from smallfiles.loading.schedule import Schedule
from smallfiles.machine.nodelocal import SHARED_MEMORY
from smallfiles.machine.ranks import ranks
from smallfiles.progress import plural
from smallfiles.ring import RingConfig
from smallfiles.ring.channel import Channel, Message, RingError, from_message
from smallfiles.ring.filler import Filler
from smallfiles.ring.folder import Memory, RingFiles, lives, names, ring_name
from smallfiles.ring.state import BatchOrder, Position, Ready, plan_of

_WARN_AFTER_S = 30.0
_RETRY_S = 0.1


class RingWarning(UserWarning):
    """An event in a ring that cost time, but no batch."""


class RingClient:
    """A trainer's side of a ring.

    Args:
        files: Of the ring.
        wait_s: How long to wait for a filler.
        own_filler: Given if the filler is a thread of this process: returns its error, if it failed.

    Raises:
        RingError: No process fills this ring, or it feeds another trainer.
    """

    def __init__(
        self, files: RingFiles, wait_s: float, own_filler: Callable[[], Exception | None] | None = None
    ) -> None:
        self.files, self._own_filler = files, own_filler
        self.finished = False
        self.next = self._attach(wait_s)
        self._holds = False

    def go_to(self, position: Position) -> None:
        """Make `position` the next batch."""
        if position == self.next and not self._holds:
            return
        self.next, self._holds = position, False
        self._channel.send({"seek": position})
        while (message := self._receive()).get("sought") != list(position):
            if "ready" not in message:
                self._handle(message)

    def take(self) -> Ready:
        """Take the next batch from the ring.

        Raises:
            SmallfilesError: The batch cannot be made, or the filler has ended.
        """
        while True:
            message = self._receive()
            if "ready" in message:
                if "fault" in message:
                    self._holds = True  # asking for this batch once more makes it again
                    raise from_message(message["fault"])
                taken = Ready(Position(*message["ready"]), message["slot"], message)
                if taken.position == self.next:
                    self._holds = True
                    return taken
            else:
                self._handle(message)

    def done(self, waited_s: float, after: Position) -> None:
        """Return the slot of the batch taken; `after` comes next."""
        self._channel.send({"done": self.next, "waited_s": round(waited_s, 6)})
        self.next, self._holds = after, False

    def close(self) -> None:
        """Disconnect from the filler."""
        self._channel.close()
        self.memory.close()

    def _handle(self, message: Message) -> None:
        if "note" in message:
            warnings.warn(str(message["note"]), RingWarning, stacklevel=4)
        elif "fatal" in message:
            raise from_message(message["fatal"])
        elif "end" in message:
            self.finished = True

    def _receive(self) -> Message:
        try:
            message = self._channel.receive(_WARN_AFTER_S)
        except TimeoutError:
            epoch, batch = self.next
            warnings.warn(
                f"training has waited {_WARN_AFTER_S:.0f} s for batch {batch:,} of epoch {epoch}; "
                f"see: smallfiles ring status {self.files.name}",
                RingWarning,
                stacklevel=4,
            )
            message = self._channel.receive()
        if message is None:
            raise self._gone()
        return message

    def _gone(self) -> Exception:
        """Return the error for a filler that ended before the training."""
        error = self._own_filler() if self._own_filler is not None else None
        if error is not None:
            return error
        if self.finished or self._own_filler is not None:
            return self.over()
        epoch, batch = self.next
        return RingError(
            f"the filler of ring {self.files.name} was killed at batch {batch:,} of epoch {epoch}",
            expected="a filler that runs as long as the training",
            next_step="Ask for more memory if the job ran out of it, start the filler again with the same "
            "command, and resume the training from its checkpoint",
        )

    def over(self) -> RingError:
        """Return the error for an epoch after the last epoch of the ring."""
        return RingError(
            f"the filler of ring {self.files.name} has ended",
            expected="a filler for as many epochs as the training has",
            next_step="Ask for more epochs (--epochs), or train fewer",
        )

    def _attach(self, wait_s: float) -> Position:
        until = time.monotonic() + wait_s
        while True:
            channel = self.files.connect()
            if channel is not None and (position := self._greet(channel)) is not None:
                return position
            error = self._own_filler() if self._own_filler is not None else None
            if error is not None:
                raise error
            if time.monotonic() >= until:
                where, name = self.files.folder.parent, self.files.name
                there = [each for each in names(where) if lives(each, where)]
                raise RingError(
                    f"nobody fills ring {name} in {where} (waited {wait_s:g} s)",
                    expected=f"one that is filled: {first_few(there, len(there)) or 'there is none'}",
                    next_step=f"Start it: smallfiles ring fill DATA --name {name}; or wait longer for it",
                )
            time.sleep(_RETRY_S)

    def _greet(self, channel: Channel) -> Position | None:
        """Introduce this trainer; None if the filler died before it answered."""
        channel.send({"hello": "trainer", "pid": os.getpid()})
        welcome, fds = channel.receive_fds()
        record = self.files.description()
        with contextlib.ExitStack() as unless_greeted:
            unless_greeted.callback(channel.close)
            for fd in fds:
                unless_greeted.callback(os.close, fd)
            if welcome is not None and "refused" in welcome:
                raise from_message(welcome["refused"])
            if welcome is None or record is None or not fds:
                return None
            unless_greeted.pop_all()
        self._channel = channel
        self.memory = Memory(fds[0], welcome["slots"], welcome["slot_bytes"])
        self.order = BatchOrder(plan_of(record), record["epochs"])
        return Position(*welcome["position"])


_WAIT_S = 300.0


class OwnFiller:
    """Runs a filler in a thread of the trainer.

    A thread that fails ends silently, and training would wait forever; so the error is kept, and raised in
    place of the next batch.

    Args:
        filler: Runs until `end`, the end of its epochs, or the end of this process.
    """

    def __init__(self, filler: Filler) -> None:
        self.filler, self._pid = filler, os.getpid()
        self._thread = threading.Thread(target=self._run, name="ring filler", daemon=True)
        self._thread.start()
        processes.add_cleanup(self.end)

    def _run(self) -> None:
        try:
            self.filler.run()
        except Exception as error:
            self.filler.error = self.filler.error or error

    def end(self) -> None:
        """Stop it and wait until it has removed everything."""
        if os.getpid() != self._pid:
            return  # in a forked child
        processes.remove_cleanup(self.end)
        self.filler.stop()
        if threading.current_thread() is not self._thread:  # it may run this as it collects garbage
            self._thread.join()


class RingLoader:
    """The batches of a ring, epoch after epoch, as a `DataLoader` would give them.

    Each pass is the next epoch; `set_epoch` and `start_at` change that. A pass that is left early returns
    its unused batches. Only one thread may use it at a time.

    Args:
        client: The connection to the filler.
        own: The filler, if it is a thread of this process.
    """

    def __init__(self, client: RingClient, own: OwnFiller | None = None) -> None:
        self._client = client
        self.schedule = Schedule(client.order.plan)
        self.schedule.start_at(*client.next)
        self.faults: list[Fault] = []
        self.fault_count = 0
        self.every_step = self.plan.world_size > 1  # see Loader
        self._end = weakref.finalize(self, _end, os.getpid(), client, own)

    def __len__(self) -> int:
        return self.plan.length()

    @property
    def name(self) -> str:
        """Of the ring."""
        return self._client.files.name

    @property
    def plan(self) -> EpochPlan:
        """The share of this rank in each epoch."""
        return self._client.order.plan

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next pass: from where training was in it, else from its first batch."""
        self.schedule.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the next batch to train on. A `Loader` can resume from it."""
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass continue where the loader that returned this state was.

        Raises:
            UsageError: That loader had another data set, batch size, seed or number of ranks.
        """
        if state.get("plan") != self.plan.depends_on() or state.get("earlier"):
            raise UsageError(
                f"ring {self.name} holds other batches than those of the epoch in the checkpoint",
                expected="the same number of ranks, and batches of the same size",
                next_step="Resume on as many ranks as before, or finish that epoch without a ring",
            )
        self.schedule.load_state_dict(state)

    def __iter__(self) -> Iterator[LoadedBatch]:
        """Yield the batches of the next epoch.

        Raises:
            SmallfilesError: A batch cannot be made, or the filler has ended.
        """
        self._check_open()
        epoch, start = self.schedule.take()
        order = self._client.order
        if start >= order.length:
            return
        if order.epochs is not None and epoch >= order.epochs:
            raise self._client.over()
        self._client.go_to(Position(epoch, start))
        self.schedule.at = epoch, start
        any_left, lost = start > 0, self.fault_count
        for number in range(start, order.length):
            self._check_open()
            began = perf_counter()
            taken = self._client.take()
            waited_s = perf_counter() - began
            self.schedule.at = epoch, number + 1
            batch = self._tensors(taken)
            if len(batch["index"]) or self.every_step:
                any_left = True
                yield batch
            self._client.done(waited_s, order.after(taken.position))
        self.schedule.at = None
        if self.fault_count > lost and not any_left:
            raise none_left(
                f"ring {self.name}", self.faults, epoch, plural(self.fault_count - lost, "sample")
            )

    def _check_open(self) -> None:
        if not self._end.alive:
            raise RingError(
                f"the loader of ring {self.name} was closed",
                expected="an open one",
                next_step="Open the ring again",
            )

    def _tensors(self, taken: Ready) -> LoadedBatch:
        arrays = found_at(self._client.memory.block(taken.slot), taken.payload["arrays"])
        faults = tuple(Fault(*fault) for fault in taken.payload["faults"])
        self.faults += faults[: max(0, KEPT_FAULTS - len(self.faults))]
        self.fault_count += taken.payload["fault_count"]
        return to_tensors(arrays, faults)

    def close(self) -> None:
        """Disconnect from the ring; a filler of this process ends and removes everything."""
        self._end()

    def __enter__(self) -> RingLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _end(pid: int, client: RingClient, own: OwnFiller | None) -> None:
    if os.getpid() != pid:
        return  # in a forked child
    if own is not None:
        own.end()  # first, so that the slot still in use is not filled again
    client.close()


def open_ring(maker: BatchMaker, plan: EpochPlan, config: RingConfig | None = None) -> RingLoader:
    """Open a ring that producers of this process fill.

    The batches are those that a `DataLoader` over the same maker and plan gives, prepared far enough ahead
    that a slow read or an evaluation does not stall the GPU.

    Args:
        maker: Makes batches.
        plan: This rank's share of each epoch.
        config: Size, producers and name; None takes the defaults.

    Raises:
        OutputExistsError: A live ring has this name.
        ResourceError: The ring does not fit in memory.
        RingError: Its producers cannot be started.
    """
    config = config or RingConfig()
    plan.check_batches(maker.reader)
    if config.name is not None:
        config = replace(config, name=ring_name(config.name, plan.rank, plan.world_size))
    if not plan.data:
        plan = replace(plan, data=name_of_data(maker.reader))
    own = OwnFiller(Filler(maker, plan, config))
    try:
        files = RingFiles.of(own.filler.name, config.where)
        return RingLoader(RingClient(files, _WAIT_S, lambda: own.filler.error), own)
    except BaseException:
        own.end()
        raise


def attach(name: str, *, where: Path = SHARED_MEMORY, wait_s: float = _WAIT_S) -> RingLoader:
    """Attach to a ring that another program fills; that program may start earlier or later.

    Training continues at the first batch that no trainer of this ring has finished. Each rank has its own
    ring (`train.0`, `train.1`); filler and trainer both ask `machine.ranks` for their rank.

    Args:
        name: Of the ring, as given to the filler.
        where: The folder in memory that the filler uses.
        wait_s: How long to wait for a filler.

    Raises:
        RingError: No process fills this ring, or it feeds another trainer. While batches are read, it
            means that the filler was killed.
    """
    place = ranks()
    return RingLoader(RingClient(RingFiles.of(ring_name(name, place.rank, place.world_size), where), wait_s))
