"""Emulated accelerators: their utilisation, and how many of them a loader can feed.

MLPerf Storage emulates an accelerator by sleeping for the time of its step, and reports its utilisation: the
time of all steps over the time of the run, without the loading for the first step. Here the same is done with
a whole loader, including decoding and augmenting, which MLPerf Storage omits; the result is not one of
MLPerf, whose rules require much more data than memory.

Several accelerators share one loader and take batches in turn, so that its short queue acts like a queue for
each. The number that can be fed is measured, with numbers close to the one expected from the loader's rate.

The trap: batches that were made before the clock starts would feed the first steps of a loader that is too
slow. So those are taken first. Notebook 08 teaches what a trainer waits for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from time import perf_counter, sleep
from typing import TypeAlias

from smallfiles.measure import BUSY
from smallfiles.measure.workers import processor_s

Epoch: TypeAlias = Callable[[], Iterable[int]]
"""Begins an epoch: yields the number of samples of each batch, as the batches arrive."""

_STEPS = 8
_LEAST_S = 1.0


@dataclass(frozen=True)
class Pass:
    """One epoch, as the trainer saw it; a mean would hide one wait of a second.

    Args:
        samples: Samples that arrived.
        seconds: From the request of the first batch to the end.
        waits_s: Seconds of waiting for each batch.
        first_s: Seconds from making the loader to its first batch; None if the loader was made before.
        busy: Utilisation of one emulated accelerator; None without emulation.
        accelerators: Number of accelerators that were busy for `BUSY` of the time.
        cpu_s: Processor time of this process and of all that it started.
    """

    samples: int
    seconds: float
    waits_s: tuple[float, ...]
    first_s: float | None = None
    busy: float | None = None
    accelerators: int = 0
    cpu_s: float = 0.0


def taken(batches: Iterable[int]) -> Pass:
    """Take all batches as fast as they arrive, like a trainer without work.

    Args:
        batches: The number of samples of each batch of one epoch.
    """
    spent_s = processor_s(os.getpid())
    began = clock = perf_counter()
    samples, waits = 0, []
    for count in batches:
        now = perf_counter()
        waits.append(now - clock)
        samples += count
        clock = perf_counter()
    seconds = perf_counter() - began
    return Pass(samples, seconds, tuple(waits), cpu_s=processor_s(os.getpid()) - spent_s)


def utilisation(batches: Iterator[int], batch: int, step_s: float, steps: int, number: int = 1) -> float:
    """Return the share of the time in which emulated accelerators compute. They sleep for each step.

    Args:
        batches: The number of samples of each batch, without end.
        batch: Samples per step of an accelerator.
        step_s: Seconds per step.
        steps: Steps of each accelerator.
        number: Number of accelerators.
    """
    began, came = 0.0, 0
    for turn in range(steps * number):
        while came < batch * (turn + 1):
            came += next(batches)
        began = began if turn else perf_counter()
        sleep(step_s / number)
    return steps * step_s / (perf_counter() - began)


def emulated(done: Pass, epoch: Epoch, batch: int, step_s: float | None, ready: int) -> Pass:
    """Add the utilisation of emulated accelerators to a pass. Without a step, return the pass unchanged.

    Args:
        done: A pass without accelerators, for its rate.
        epoch: Begins the next epoch of the loader.
        batch: Samples per step of an accelerator.
        step_s: Seconds per step.
        ready: Batches that may be ready before the first request.
    """
    if step_s is None:
        return done
    batches = chain.from_iterable(begin() for begin in repeat(epoch))
    steps, known = max(_STEPS, math.ceil(_LEAST_S / step_s)), dict[int, float]()

    def busy(number: int) -> float:
        if number not in known:
            for _ in range(ready):
                next(batches)
            known[number] = utilisation(batches, batch, step_s, steps, number)
        return known[number]

    guess = int(done.samples / done.seconds * step_s / batch / BUSY)
    return replace(done, busy=busy(1), accelerators=most_fed(busy, guess))


def most_fed(busy: Callable[[int], float], guess: int) -> int:
    """Find the largest number of accelerators that are busy enough, to within a twentieth.

    Args:
        busy: Measures the utilisation of a number of accelerators.
        guess: The first number to try.
    """
    fed, too_many, stride, number = 0, math.inf, max(1, guess // 8), max(1, guess)
    while too_many - fed > max(1, fed // 20):
        if busy(number) >= BUSY:
            fed = number
        else:
            too_many = number
        if fed and too_many < math.inf:
            number = int(fed + too_many) // 2
        else:
            number = max(1, int(fed + stride if too_many == math.inf else too_many - stride))
        stride *= 2
    return fed
