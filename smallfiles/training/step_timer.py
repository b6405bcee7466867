"""Where the time of training goes: waiting for data, or computing.

On a CPU the wait is the time that the loop spends on getting the next batch. On a GPU, queued work continues
meanwhile; there the wait is the idle time of the GPU itself, measured by events: from the end of the work
queued before the request to the arrival of the batch, plus its copy. Communication between ranks and
checkpoints do not count as waiting for data.

The trap: a loop that takes `time.time()` around a GPU step measures how fast work is queued. Notebook 08
shows the share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from smallfiles.loading.worker_errors import WorkerDiedError


@dataclass
class StepTimer:
    """Times of the steps of one epoch.

    Args:
        device: The device that computes.
    """

    device: torch.device
    began: float = field(default_factory=perf_counter)
    first_batch_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    _gaps: list[tuple[Any, Any]] = field(default_factory=list)
    _copy: Any = None

    def batches(self, source: Iterable[Any]) -> Iterator[Any]:
        """The batches of `source`, with the time spent on each; the first one includes starting workers."""
        asked, idle = perf_counter(), self._moment()
        batches = iter(source)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.waits_s.append(perf_counter() - asked)
            if len(self.waits_s) == 1:
                self.first_batch_s = self.waits_s[0]
            elif idle is not None:
                self._gaps.append((idle, self._moment()))
            yield batch
            asked, idle = perf_counter(), self._moment()

    def copy(self) -> None:
        """Record that the copy of a batch to the device begins."""
        self._copy = self._moment()

    def begin(self) -> None:
        """Record that a step begins: its batch is on the device."""
        if self._copy is not None and len(self.waits_s) > 1:
            self._gaps.append((self._copy, self._moment()))
        self._copy = None

    def summary(self) -> dict[str, float]:
        """Seconds, share of waiting after the first batch, and percentiles of the wait."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        total = perf_counter() - self.began
        later = self.waits_s[1:]
        waited = sum(a.elapsed_time(b) for a, b in self._gaps) / 1000 if self._gaps else sum(later)
        steady = max(total - self.first_batch_s, 1e-9)
        p50, p99 = np.percentile(later, [50, 99]) if later else (0.0, 0.0)
        return {
            "seconds": total,
            "first_batch_s": self.first_batch_s,
            "waiting_s": waited,
            "waiting_share": min(1.0, waited / steady),
            "wait_p50_s": float(p50),
            "wait_p99_s": float(p99),
        }

    def _moment(self) -> Any:
        """An event at this place in the queue of the GPU; None without one."""
        if self.device.type != "cuda":
            return None
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def next_batch(batches: Iterator[Any], asked_to_stop: Sequence[int]) -> Any:
    """The next batch; None at the end, or if the signal that asks us to stop also ended the workers.

    Slurm sends signals to all processes of a step, not only to its ranks.

    Args:
        batches: Of a loader.
        asked_to_stop: Not empty once such a signal has arrived.
    """
    try:
        return next(batches, None)
    except WorkerDiedError:
        if not asked_to_stop:
            raise
        return None
