"""One pass over a data set: what every loader, ours or not, is measured by.

The trap: a mean hides the batch for which training waited a second. So the wait for each batch is kept.
Notebook 08 looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Pass:
    """One epoch, as the trainer saw it.

    Args:
        samples: That came.
        seconds: From asking for the first batch to the end.
        waits_s: Seconds that each batch was waited for.
        first_s: Seconds from making the loader to its first batch of all; None if it was made before.
    """

    samples: int
    seconds: float
    waits_s: tuple[float, ...]
    first_s: float | None = None


Epoch: TypeAlias = Callable[[], Pass]
"""Runs one epoch."""
Start: TypeAlias = Callable[..., AbstractContextManager[Epoch]]
"""Keeps a loader ready for as long as the block lasts."""


def taken(batches: Iterable[Any], count: Callable[[Any], int]) -> Pass:
    """Take all batches as fast as they come, as a trainer without work would.

    Args:
        batches: Of one epoch.
        count: How many samples a batch has.
    """
    began = clock = perf_counter()
    samples, waits = 0, []
    for batch in batches:
        now = perf_counter()
        waits.append(now - clock)
        samples += count(batch)
        clock = perf_counter()
    return Pass(samples, perf_counter() - began, tuple(waits))
