"""The protocol of measurements: all cases interleaved, round by round, in changing order.

    result = compare({"one file each": many, "one large file": one}, rounds=5, unit="images")
    print(result)                                   # a table; helpers.figures.bars(result) draws it

One after the other, the first case has a cold cache and a fast clock, and the last a warm cache and a
hot processor. Interleaved, a disturbance affects all of them, and pairs of one round can be compared.
The trap: in a fixed order one case always inherits the cache of the same neighbour, so each round is
shuffled, from a seed. Notebook 01 teaches it.
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
from smallfiles.measure.record import CLEAR, Spread, factor_text
from smallfiles.measure.table import aligned
from smallfiles.measure.workers import reason
from smallfiles.progress import progress

_RUN_S = 0.02
_MOST_CALLS = 1000

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Outcome:
    """One run of one case: amount of work, and time."""

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
        name: Unique in its measurement.
        run: Runs once and times itself, without its preparation.
        warm_up: Whether one run before the first round is discarded.
        format: For its record: the format of the packed file; the name if not given.
        place: For its record: a path on its file system; that of the topic if not given.
        workers: For its record: processes or threads at work.
        what: For its record: the operation, if not that of the topic; it is also a part of the name.
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
    cases: Sequence[Case], repeats: int, seed: int, what: str, failed: dict[str, str], bar: bool = True
) -> dict[str, list[Outcome]]:
    """Run every case once per round, in `repeats` rounds, shuffled within the round.

    Args:
        cases: What to measure.
        repeats: Number of rounds.
        seed: Of the order within rounds.
        what: Text of the progress bar.
        failed: Gets the reason of each failed case, which is not run again.
        bar: Whether progress is shown.

    Returns:
        The outcomes of each case by name, in the order of the rounds, without the failed ones.

    Raises:
        UsageError: Fewer than one round, or two cases of one name.
    """
    if repeats < 1:
        raise UsageError(f"{repeats} rounds were requested", expected="at least 1", next_step="Use 5 or more")
    outcomes: dict[str, list[Outcome]] = {case.name: [] for case in cases}
    if len(outcomes) < len(cases):
        raise UsageError("two cases have the same name", expected="names that differ", next_step="Rename one")
    warm = [case for case in cases if case.warm_up]
    runs = [(case, False) for case in warm]
    for number in range(repeats):
        runs += [(case, True) for case in random.Random(f"{seed}/{number}").sample(list(cases), len(cases))]
    with progress(len(runs), f"measuring {what}", unit="runs", enabled=bar) as shown:
        for case, counts in runs:
            outcome = attempt(case.name, case.run, failed) if case.name in outcomes else None
            if outcome is None:
                outcomes.pop(case.name, None)
            elif counts:
                outcomes[case.name].append(outcome)
            shown.advance()
    return outcomes


def attempt(name: str, run: Callable[[], _Result], failed: dict[str, str]) -> _Result | None:
    """Return the result of `run`. If it fails, store the reason in `failed`, and return None."""
    try:
        return run()
    except Exception as error:  # other libraries raise anything
        failed[name] = reason(error)
        return None


def long_enough(run: Callable[[], Outcome], least_s: float = 0.2, most: int = 20) -> Callable[[], Outcome]:
    """Repeat a short run within each call, so that the clock is precise enough.

    The first call runs it once, to warm up; the shortest run so far determines the number of repetitions.

    Args:
        run: Times itself.
        least_s: Minimum duration of a call.
        most: Maximum number of runs per call.
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
        unit: The counted unit; empty if the functions returned no count.
        failed: Why a function is missing in `runs`.
        machine: The machine.
        prepared: Whether `before` was called before each run; otherwise each function ran once before, so
            that caches are warm.
    """

    runs: dict[str, tuple[Outcome, ...]]
    unit: str
    failed: dict[str, str]
    machine: dict[str, Any]
    prepared: bool

    def rates_per_s(self, name: str) -> tuple[float, ...]:
        """Return the units per second of each run, or the calls per second if units are not counted."""
        return tuple(run.rate_per_s for run in self.runs[name])

    def spread(self, name: str) -> Spread:
        """Median, quartiles and extremes of the rate."""
        return Spread.of(self.rates_per_s(name))

    def seconds(self, name: str) -> float:
        """Median duration of one call."""
        return Spread.of([(run.extra["units"] or 1) / run.rate_per_s for run in self.runs[name]]).median

    def times(self, name: str, reference: str = "") -> Spread:
        """Return the speed of a function relative to another function.

        The median is the ratio of the two medians, as the bars of a figure show it. The spread comes from
        the ratios of all rounds.

        Args:
            name: The function.
            reference: The other function; by default the first.
        """
        mine, theirs = self.rates_per_s(name), self.rates_per_s(reference or next(iter(self.runs)))
        pairs = Spread.of([one / other for one, other in zip(mine, theirs, strict=True)])
        return replace(pairs, median=Spread.of(mine).median / Spread.of(theirs).median)

    @property
    def finding(self) -> str:
        """The conclusion, for a title: the best against the first, if the rounds agree."""
        first, *others = self.runs
        best = max(others, key=lambda name: self.spread(name).median, default=first)
        gain = self.times(best)
        if best == first:
            return f"{first}: {self.spread(first).median:,.0f} {self.unit or 'calls'} per second"
        if gain.lower >= CLEAR:
            return f"{best} is {factor_text(gain.median)} times as fast as {first}"
        slower = gain.upper <= 1 / CLEAR
        return (
            f"nothing is faster than {first}" if slower else f"no clear difference between {best} and {first}"
        )

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
    bar: bool = True,
) -> Comparison:
    """Time functions side by side, in rounds of changing order.

    Each function is first called once without a clock; a short one is called several times per run. A
    function that fails is left out; the others are still measured.

    Args:
        functions: By name; the first is the reference. A returned number counts the units of work; without
            one, calls are counted.
        rounds: Number of timed runs of each.
        unit: What the returned numbers count, in the plural.
        before: Called before each run, outside the clock, for example to empty the page cache; then each run
            is one call, without a first untimed one.
        bar: Whether progress is shown; not where it is called in a loop that shows its own.

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
    found = interleaved(cases, rounds, 0, f"{len(cases)} way{'s' * (len(cases) > 1)}", failed, bar)
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in failed.items()) or "there is none"
        raise UsageError(
            f"no function could be timed ({reasons})",
            expected="at least one that returns",
            next_step="Call it alone to see where it fails",
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
