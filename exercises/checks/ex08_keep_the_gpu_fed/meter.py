"""How much work an answer does: floats made, the largest array, the most memory at once.

PyTorch's functions are watched one by one, numpy's arrays by `tracemalloc`. What Pillow or OpenCV allocate is
seen by neither; for them there is the time.

The trap: `tracemalloc` slows Python down, so nothing is timed while it counts.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@dataclass
class Work:
    """What was done in a block.

    Args:
        floats: Elements of the largest tensor of floats that was made.
        largest: Elements of the largest tensor of any kind.
        peak_bytes: The most memory of numpy and Python at once, beyond that before.
    """

    floats: int = 0
    largest: int = 0
    peak_bytes: int = 0


class _Watch(TorchFunctionMode):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            count = found.numel()
            self._work.largest = max(self._work.largest, count)
            if found.is_floating_point():
                self._work.floats = max(self._work.floats, count)
        return found


@contextmanager
def measured() -> Iterator[Work]:
    """Count the work of a block; the record is complete at its end."""
    work = Work()
    gc.collect()
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        with _Watch(work):
            yield work
        work.peak_bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


def quickest_s(*functions: Callable[[], Any], rounds: int = 3) -> list[float]:
    """The shortest time of each function, in rounds that take turns."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for number, function in enumerate(functions):
            began = perf_counter()
            function()
            best[number] = min(best[number], perf_counter() - began)
    return best
