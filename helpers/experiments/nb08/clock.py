"""A stopwatch with laps, and PyTorch in one thread, as it works inside a loader's worker.

The trap: a part that is timed for all pictures at once holds all of them in memory, and then new memory is
what is measured. So laps are added up, picture by picture. Notebook 08 follows a batch with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

STAGES = ("read", "decode", "augment", "collate", "transfer")
"""The parts of a batch's way, in their order."""


class Clock:
    """Seconds by stage, added up lap by lap."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._at = perf_counter()

    def lap(self, stage: str) -> None:
        """What was done since the last lap belongs to this stage."""
        now = perf_counter()
        self.seconds[stage] += now - self._at
        self._at = now


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch works in one thread in this block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
