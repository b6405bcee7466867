"""Accelerators that are not there: for how much of the time would they compute, and how many could be fed?

MLPerf Storage emulates an accelerator by sleeping as long as its step takes, and reports its utilisation: the
time of all steps over the time of the run, loading for the first step left out. Here the same is done with a
whole loader, decoding and augmenting included, which MLPerf Storage leaves out; what comes out is no result
of MLPerf, whose rules ask for much more data than memory.

Several accelerators share one loader and take their batches in turn, so that its short queue does for all of
them what queues of their own would do. How many can be fed is measured, with numbers around the one that the
rate of the loader promises.

The trap: batches that were made before the clock starts would feed a few steps of a loader that is too slow.
So those are taken first. Notebook 08 teaches what a trainer waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from time import perf_counter, sleep
from typing import TypeAlias

Epoch: TypeAlias = Callable[[], Iterable[int]]
"""Begins an epoch: gives the number of samples of each batch, as the batches come."""

BUSY = 0.9
"""What MLPerf Storage asks of most accelerators (of RetinaNet's 0.85, of CosmoFlow's 0.7)."""
_STEPS = 8
_LEAST_S = 1.0


@dataclass(frozen=True)
class Pass:
    """One epoch, as the trainer saw it; a mean would hide the batch for which it waited a second.

    Args:
        samples: That came.
        seconds: From asking for the first batch to the end.
        waits_s: Seconds that each batch was waited for.
        first_s: Seconds from making the loader to its first batch of all; None if it was made before.
        busy: Utilisation of one emulated accelerator; None if none was emulated.
        accelerators: How many were busy for `BUSY` of the time.
    """

    samples: int
    seconds: float
    waits_s: tuple[float, ...]
    first_s: float | None = None
    busy: float | None = None
    accelerators: int = 0


def taken(batches: Iterable[int]) -> Pass:
    """Take all batches as fast as they come, as a trainer without work would.

    Args:
        batches: Of one epoch: how many samples each has.
    """
    began = clock = perf_counter()
    samples, waits = 0, []
    for count in batches:
        now = perf_counter()
        waits.append(now - clock)
        samples += count
        clock = perf_counter()
    return Pass(samples, perf_counter() - began, tuple(waits))


def utilisation(batches: Iterator[int], batch: int, step_s: float, steps: int, number: int = 1) -> float:
    """Share of the time in which accelerators compute that sleep for a step after each batch.

    Args:
        batches: Without end: how many samples each has.
        batch: Samples that an accelerator takes for a step.
        step_s: How long a step takes.
        steps: How many each accelerator does.
        number: Of accelerators.
    """
    began, came = 0.0, 0
    for turn in range(steps * number):
        while came < batch * (turn + 1):
            came += next(batches)
        began = began if turn else perf_counter()
        sleep(step_s / number)
    return steps * step_s / (perf_counter() - began)


def emulated(done: Pass, epoch: Epoch, batch: int, step_s: float | None, ready: int) -> Pass:
    """A pass with what emulated accelerators say of the same loader; the pass itself without a step.

    Args:
        done: A pass without them, for its rate.
        epoch: Begins the next one of that loader.
        batch: Samples that an accelerator takes for a step.
        step_s: How long a step takes.
        ready: Batches that may have been made before the first is asked for.
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
    """The largest number of accelerators that are busy enough; large numbers are found to a twentieth.

    Args:
        busy: Measures their utilisation.
        guess: Where to begin.
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
