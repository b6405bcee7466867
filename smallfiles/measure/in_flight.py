"""Whole files read with 1 to 64 opens in flight: when does waiting at the same time help?

Each thread opens its own share of the files, so there are as many opens in flight as threads. Where
an open waits (a server), they wait together; where it computes (a warm cache), they queue for the
CPUs and for Python's lock, and nothing is gained.

The trap: "more workers" is taken for "faster" everywhere. Notebook 01 measures both sides.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from smallfiles.measure import cache as page_cache
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import CLEAR, Spread, times_text
from smallfiles.samples import ByteStore

COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class InFlight:
    """Files per second of each round, by the number of opens in flight.

    Args:
        name: Of the store, in figures.
        rates_per_s: By the number of opens in flight.
        notes: What had to be said.
    """

    name: str
    rates_per_s: dict[int, tuple[float, ...]]
    notes: tuple[str, ...] = ()

    def spread(self, in_flight: int) -> Spread:
        """Median and quartiles of the rate."""
        return Spread.of(self.rates_per_s[in_flight])

    @property
    def best(self) -> int:
        """The number of opens in flight with the highest median."""
        return max(self.rates_per_s, key=lambda k: self.spread(k).median)

    @property
    def gain(self) -> Spread:
        """How many times as fast `enough` is as one at a time, paired by rounds."""
        pairs = zip(self.rates_per_s[self.enough], self.rates_per_s[1], strict=True)
        return Spread.of([many / one for many, one in pairs])

    @property
    def enough(self) -> int:
        """The fewest opens in flight that reach nine tenths of the best median."""
        goal = 0.9 * self.spread(self.best).median
        return min(k for k in self.rates_per_s if self.spread(k).median >= goal)

    @property
    def finding(self) -> str:
        """The sentence that one panel supports."""
        if self.enough == 1 or self.gain.lower < CLEAR:
            return f"{self.name}: more opens in flight gain nothing clear"
        return f"{self.name}: {self.enough} opens in flight are {times_text(self.gain)} as fast as one"

    @property
    def alt_text(self) -> str:
        """One panel in words."""
        told = ", ".join(f"{k} in flight {self.spread(k).median:,.0f}" for k in self.rates_per_s)
        return f"{self.finding}. Median files per second: {told}."


def measure_in_flight(
    store: ByteStore,
    paths: Sequence[str],
    largest_bytes: int,
    *,
    name: str,
    folder: Path,
    counts: Sequence[int] = COUNTS,
    rounds: int = 3,
    cold: bool = False,
    cap: bool = True,
) -> InFlight:
    """Read files through a store, with each number of opens in flight.

    Args:
        store: Where the bytes come from.
        paths: Files.
        largest_bytes: Of the largest of them.
        name: How to call the store in figures.
        folder: What the paths are relative to; on a shared file system a cap is kept.
        counts: Numbers of opens in flight; 1 is measured in any case.
        rounds: Repeats.
        cold: Whether the page cache forgets the files before each run; names and inodes it keeps.
        cap: False lifts the cap.
    """
    wanted = sorted({1, *counts})
    allowed = allowance([folder], len(paths), (rounds + 1) * len(wanted), cap=cap)
    used = [k for k in wanted if allowed.in_flight is None or k <= allowed.in_flight]
    chosen = list(paths[: allowed.samples])
    files = [folder / path for path in chosen] if cold else []
    page_cache.drop(files)
    cases = [
        Case(str(k), partial(_fresh, files, store, chosen, largest_bytes, k), warm_up=k == 1) for k in used
    ]
    outcomes = interleaved(cases, rounds, 0, f"opens in flight, {name}")
    rates = {k: tuple(run.rate_per_s for run in outcomes[str(k)]) for k in used}
    return InFlight(name, rates, (allowed.note,) if allowed.note else ())


def seconds_to_read(store: ByteStore, paths: Sequence[str], largest_bytes: int, in_flight: int) -> float:
    """Seconds of one pass over all files with so many opens in flight."""
    return _run(store, paths, largest_bytes, in_flight).seconds


def _fresh(
    files: Sequence[Path], store: ByteStore, paths: Sequence[str], largest_bytes: int, in_flight: int
) -> Outcome:
    page_cache.drop(files, clean=True)
    return _run(store, paths, largest_bytes, in_flight)


def _run(store: ByteStore, paths: Sequence[str], largest_bytes: int, in_flight: int) -> Outcome:
    """One pass: thread n reads files n, n + in_flight and so on."""
    totals, failures = [0] * in_flight, []

    def work(number: int) -> None:
        buffer = memoryview(bytearray(max(1, largest_bytes)))
        try:
            totals[number] = sum(store.read_into(path, buffer) for path in paths[number::in_flight])
        except Exception as error:  # raised again below, in the thread that asked
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(in_flight)]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = perf_counter() - began
    if failures:
        raise failures[0]
    return Outcome(len(paths), sum(totals), seconds)
