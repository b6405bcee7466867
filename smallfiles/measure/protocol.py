"""How we measure: everything interleaved, round by round, in an order that changes.

    result = compare({"one file each": many, "one large file": one}, rounds=5, unit="images")
    print(result)                                   # a table; helpers.figures.bars(result) draws it

Measured one after the other, the first case meets a cold cache and a fast clock and the last a warm
cache and a hot processor. Interleaved, a disturbance hits all of them, and pairs of one round can be
compared. The trap: a fixed order within the round lets one case always inherit its neighbour's
cache; so each round shuffles, from a seed. Notebook 01 teaches it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.measure.record import CLEAR, Spread, times_text
from smallfiles.measure.table import aligned
from smallfiles.measure.workers import reason
from smallfiles.progress import progress

_RUN_S = 0.02
_MOST_CALLS = 1000

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Outcome:
    """One run of one case: what was done and how long it took."""

    samples: int
    bytes: int
    seconds: float
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rate_per_s(self) -> float:
        """Samples per second."""
        return self.samples / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Args:
        name: Unique in its run.
        run: Does it once and times itself, so that preparation stays outside.
        warm_up: Whether one run before the first round is thrown away.
        format: For its record: of the packed file; the name if not given.
        place: For its record: something on its file system; the topic's if not given.
        workers: For its record: processes or threads at work.
        what: For its record: the operation, if it is not the topic's; then it is a part of the name too.
    """

    name: str
    run: Callable[[], Outcome]
    warm_up: bool = True
    format: str = ""
    place: Path | None = None
    workers: int = 1
    what: str = ""

    @property
    def shown(self) -> str:
        """Its name in records."""
        return self.name.removesuffix(f" ({self.what})")


def interleaved(
    cases: Sequence[Case], repeats: int, seed: int, what: str, failed: dict[str, str]
) -> dict[str, list[Outcome]]:
    """Run every case `repeats` times, one of each a round, shuffled within the round.

    Args:
        cases: What to measure.
        repeats: Number of rounds.
        seed: Of the order within rounds.
        what: For the progress shown.
        failed: Gets the reason for each case that fails, which takes no part from then on.

    Returns:
        The outcomes of each case by name, in the order of the rounds; those that failed are left out.

    Raises:
        UsageError: Fewer than one round, or two cases of one name.
    """
    if repeats < 1:
        raise UsageError(f"{repeats} rounds were asked for", expected="at least 1", next_step="Use 5 or more")
    outcomes: dict[str, list[Outcome]] = {case.name: [] for case in cases}
    if len(outcomes) < len(cases):
        raise UsageError("two cases have the same name", expected="names that differ", next_step="Rename one")
    warm = [case for case in cases if case.warm_up]
    runs = [(case, False) for case in warm]
    for number in range(repeats):
        runs += [(case, True) for case in random.Random(f"{seed}/{number}").sample(list(cases), len(cases))]
    with progress(len(runs), f"measuring {what}", unit="runs") as shown:
        for case, counts in runs:
            outcome = attempt(case.name, case.run, failed) if case.name in outcomes else None
            if outcome is None:
                outcomes.pop(case.name, None)
            elif counts:
                outcomes[case.name].append(outcome)
            shown.advance()
    return outcomes


def attempt(name: str, run: Callable[[], _Result], failed: dict[str, str]) -> _Result | None:
    """What `run` returns, or None and the reason under its name in `failed`.

    Args:
        name: Of the case.
        run: Called once.
        failed: Gets the reason.
    """
    try:
        return run()
    except Exception as error:  # libraries of others raise anything
        failed[name] = reason(error)
        return None


def long_enough(run: Callable[[], Outcome], least_s: float = 0.2, most: int = 20) -> Callable[[], Outcome]:
    """Run something so often at a time that the clock can see it.

    The first call, which is for warming up, runs it once; the quickest so far tells how often the next do.

    Args:
        run: Times itself.
        least_s: What a call should take at least.
        most: How often it is run at a time at most.
    """
    quickest_s = math.inf

    def several() -> Outcome:
        nonlocal quickest_s
        runs = [run() for _ in range(min(most, max(1, math.ceil(least_s / quickest_s))))]
        seconds = sum(each.seconds for each in runs)
        quickest_s = min(quickest_s, max(seconds / len(runs), 1e-9))
        samples, size = sum(each.samples for each in runs), sum(each.bytes for each in runs)
        return Outcome(samples, size, seconds, runs[0].extra)

    return several


@dataclass(frozen=True)
class Comparison:
    """Functions that were timed side by side.

    Args:
        runs: For each function its runs, in the order of the rounds.
        unit: What was counted; empty where the functions counted nothing.
        failed: Why a function is missing in `runs`.
        machine: What it was measured on.
        prepared: Whether something was done before each run, such as emptying the page cache; without that,
            each function ran once before, so that caches are warm.
    """

    runs: dict[str, tuple[Outcome, ...]]
    unit: str
    failed: dict[str, str]
    machine: dict[str, Any]
    prepared: bool

    def rates_per_s(self, name: str) -> tuple[float, ...]:
        """Units per second of each run; calls where nothing was counted."""
        return tuple(run.rate_per_s for run in self.runs[name])

    def spread(self, name: str) -> Spread:
        """Median, quartiles and extremes of the rate."""
        return Spread.of(self.rates_per_s(name))

    def seconds(self, name: str) -> float:
        """Median duration of one call."""
        return Spread.of([(run.extra["units"] or 1) / run.rate_per_s for run in self.runs[name]]).median

    def times(self, name: str, reference: str = "") -> Spread:
        """How many times as fast a function is as another.

        The median is that of the two medians, so that it agrees with the bars of a figure; the spread is that
        of the rounds, pair by pair, and says how sure it is.

        Args:
            name: Of the function.
            reference: Of the other; the first if not given.
        """
        mine, theirs = self.rates_per_s(name), self.rates_per_s(reference or next(iter(self.runs)))
        pairs = Spread.of([one / other for one, other in zip(mine, theirs, strict=True)])
        return replace(pairs, median=Spread.of(mine).median / Spread.of(theirs).median)

    @property
    def finding(self) -> str:
        """What may be claimed, for a title: the best against the first, if the rounds agree on it."""
        first, *others = self.runs
        best = max(others, key=lambda name: self.spread(name).median, default=first)
        gain = self.times(best)
        if best == first:
            return f"{first}: {self.spread(first).median:,.0f} {self.unit or 'calls'} per second"
        if gain.lower >= CLEAR:
            return f"{best} is {times_text(gain)} as fast as {first}"
        slower = gain.upper <= 1 / CLEAR
        return (
            f"nothing is faster than {first}" if slower else f"no clear difference between {best} and {first}"
        )

    @property
    def alt_text(self) -> str:
        """The figure of it in words."""
        medians = ", ".join(f"{name} {self.spread(name).median:,.0f}" for name in self.runs)
        return f"Bar chart. {self.finding}. Median {self.unit or 'calls'} per second: {medians}."

    def __str__(self) -> str:
        first = next(iter(self.runs))
        header = ("name", f"{self.unit or 'calls'}/s", "quartiles", f"× {first}")  # noqa: RUF001 - meant
        rows = []
        for name in self.runs:
            spread, gain = self.spread(name), self.times(name)
            quartiles = f"{spread.lower:,.0f} to {spread.upper:,.0f}"
            clear = name == first or not gain.lower <= 1 <= gain.upper
            rows.append([name, f"{spread.median:,.0f}", quartiles, f"{gain.median:.2f}" if clear else "≈ 1"])
        return "\n".join(
            [aligned(header, rows), *(f"{name}  failed: {why}" for name, why in self.failed.items())]
        )


def compare(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    *,
    unit: str = "samples",
    before: Callable[[], object] | None = None,
) -> Comparison:
    """Time functions side by side, in rounds of a changing order.

    Each is called once first, which no clock sees; one that takes no time is called several times a run. A
    function that fails is left out, and nothing else is lost.

    Args:
        functions: By name; the first is what others are compared with. One that returns a number has done so
            many units; else calls are counted.
        rounds: How often each is timed.
        unit: What the returned numbers count, in the plural.
        before: Called before each run, outside the clock, such as to empty the page cache; then each run is
            one call, and nothing is called first.

    Raises:
        UsageError: There is no function, all of them failed, or there are no rounds.

    Example:
        >>> result = compare({"sum": lambda: sum(range(999)), "len": lambda: len(range(999))}, rounds=3)
        >>> sorted(result.runs)
        ['len', 'sum']
    """
    cases, failed = [], dict[str, str]()
    for name, function in functions.items():
        run = partial(_timed, function, before)
        cases.append(
            Case(name, run if before else long_enough(run, _RUN_S, _MOST_CALLS), warm_up=before is None)
        )
    found = interleaved(cases, rounds, 0, " and ".join(functions), failed)
    if not found:
        told = "; ".join(f"{name}: {why}" for name, why in failed.items()) or "there is none"
        raise UsageError(
            f"no function could be timed ({told})",
            expected="one that runs to its end",
            next_step="Call it alone to see where it stops",
        )
    runs = {name: tuple(found[name]) for name in functions if name in found}
    counted = all(run.extra["units"] is not None for each in runs.values() for run in each)
    return Comparison(runs, unit if counted else "", failed, machine.describe(), before is not None)


def _timed(function: Callable[[], object], before: Callable[[], object] | None) -> Outcome:
    if before is not None:
        before()
    began = perf_counter()
    answer = function()
    seconds = perf_counter() - began
    if isinstance(answer, int) and not isinstance(answer, bool):
        return Outcome(answer, 0, seconds, {"units": answer})
    return Outcome(1, 0, seconds, {"units": None})
