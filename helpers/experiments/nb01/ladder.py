"""Throughput against file size: the same bytes as many files, and as one large file.

Each rung holds about as many bytes, cut into files of one size; beside it the same bytes lie in one
file that is read in pieces of that size, in the same random order. What differs is the open alone.

The trap: a run that takes less than the clock's noise says nothing, so warm runs go round until they
are long enough; cold runs cannot, since the second round would be warm. Notebook 01 draws the result.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from smallfiles import machine
from smallfiles.errors import ResourceError
from smallfiles.measure import cache as page_cache
from smallfiles.measure.config import Cache
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import CLEAR, Spread, times_text
from smallfiles.progress import bytes_text

SIZES_BYTES = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000)
RUNG_BYTES = 16_000_000
MOST_FILES = 128
_RUN_S = 0.015
LAYOUTS = ("many files", "one file")


@dataclass(frozen=True)
class Rung:
    """One file size in one layout and one state of the cache.

    Args:
        size_bytes: Of each file, or of each piece.
        layout: `many files` or `one file`.
        cache: `warm` or `cold`.
        bytes_per_s: Of each round.
    """

    size_bytes: int
    layout: str
    cache: Cache
    bytes_per_s: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """Median and quartiles of the throughput."""
        return Spread.of(self.bytes_per_s)


@dataclass(frozen=True)
class Ladder:
    """All rungs, and what had to be said."""

    rungs: tuple[Rung, ...]
    filesystem: str
    notes: tuple[str, ...] = ()

    def line(self, layout: str, cache: Cache) -> list[Rung]:
        """The rungs of one curve, small sizes first."""
        return [rung for rung in self.rungs if (rung.layout, rung.cache) == (layout, cache)]

    @property
    def caches(self) -> list[Cache]:
        """The states of the cache that were measured."""
        return list(dict.fromkeys(rung.cache for rung in self.rungs))

    def gain(self, cache: Cache, rung: int = 0) -> Spread:
        """How many times as fast the one file is as the many, at one size, paired by rounds."""
        many, one = (self.line(layout, cache)[rung].bytes_per_s for layout in LAYOUTS)
        return Spread.of([a / b for a, b in zip(one, many, strict=True)])

    def climb(self, cache: Cache) -> Spread:
        """How many times as fast the largest files are as the smallest, paired by rounds."""
        line = self.line("many files", cache)
        pairs = zip(line[-1].bytes_per_s, line[0].bytes_per_s, strict=True)
        return Spread.of([large / small for large, small in pairs])

    def even_bytes(self, cache: Cache) -> int | None:
        """The smallest size at which many files are at least half as fast as one file.

        There what a file costs beside its bytes takes no longer than the bytes; None if no size that
        was measured gets so far.
        """
        lines = zip(*(self.line(layout, cache) for layout in LAYOUTS), strict=True)
        return next(
            (many.size_bytes for many, one in lines if 2 * many.spread.median >= one.spread.median), None
        )

    @property
    def even_finding(self) -> str:
        """From which size on the bytes are the larger part, for a conclusion."""
        sizes = {cache: self.even_bytes(cache) for cache in self.caches}
        told = [f"from {size_text(size)} on ({cache})" for cache, size in sizes.items() if size]
        if not told:
            return "At no size measured here do many files reach half the speed of one"
        return f"Many files reach half the speed of one {' and '.join(told)}"

    @property
    def finding(self) -> str:
        """The sentence that the figure supports."""
        small, large = (size_text(rung.size_bytes) for rung in (self.rungs[0], self.rungs[-1]))
        clear = [cache for cache in self.caches if self.climb(cache).lower >= CLEAR]
        if not clear:
            return f"No clear difference between files of {small} and files of {large}"
        told = " and ".join(f"{times_text(self.climb(cache))} ({cache})" for cache in clear)
        return f"Files of {large} are read {told} as fast as files of {small}"

    @property
    def gain_finding(self) -> str:
        """What one file instead of many gains at the smallest size, for a conclusion."""
        size = size_text(self.rungs[0].size_bytes)
        told = [
            f"{times_text(self.gain(cache))} as fast ({cache})"
            if self.gain(cache).lower >= CLEAR
            else f"not clearly faster ({cache})"
            for cache in self.caches
        ]
        return f"Pieces of {size} come out of one large file {', and '.join(told)} as out of many files"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = [
            f"{layout}, {cache}: {', '.join(_rung_text(rung) for rung in self.line(layout, cache))}"
            for layout in LAYOUTS
            for cache in self.caches
        ]
        return f"Line chart, both axes logarithmic. {self.finding}. Medians: {'; '.join(told)}."


def size_text(count: float) -> str:
    """A round number of bytes: `4 kB`, not `4.0 kB`."""
    return bytes_text(count).replace(".0 ", " ")


def _rung_text(rung: Rung) -> str:
    return f"{size_text(rung.size_bytes)} {bytes_text(rung.spread.median)}/s"


def measure_ladder(
    folder: Path,
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    rounds: int = 5,
    cap: bool = True,
    seed: int = 0,
) -> Ladder:
    """Write the rungs into a folder and read them, all interleaved.

    Args:
        folder: An empty one, on the file system to be measured.
        sizes_bytes: File sizes.
        rounds: Repeats.
        cap: Keep to the limit on a shared file system.
        seed: Of bytes and order.

    Raises:
        ResourceError: There is no room for about 150 MB and 1,000 files.
    """
    caches: tuple[Cache, ...] = ("warm", "cold") if page_cache.can_be_cold(folder) else ("warm",)
    allowed = allowance([folder], MOST_FILES, len(sizes_bytes) * (1 + 2 * rounds * len(caches)), cap=cap)
    notes = [allowed.note] if allowed.note else []
    if "cold" not in caches:
        notes.append("these files lie in memory (tmpfs), so there is no cold read to be measured")
    cases, shapes = [], []
    for size in sizes_bytes:
        count = max(2, min(allowed.samples, RUNG_BYTES // size))
        paths = _write_rung(folder / str(size), size, count, seed)
        if "cold" in caches:
            page_cache.drop(paths)  # writes them back, once
        passes_s = 0.0 if allowed.note else _RUN_S
        for layout, state in itertools.product(LAYOUTS, caches):
            files = paths[1:] if layout == "many files" else paths[:1]
            read = partial(_READERS[layout], files, size, _order(count, seed))
            run = partial(_cold, files, read) if state == "cold" else partial(_warm, read, passes_s)
            shapes.append((size, layout, state))
            cases.append(Case(f"{size}/{layout}/{state}", run, warm_up=state == "warm"))
    outcomes = interleaved(cases, rounds, seed, "reads by size")
    rungs = [
        Rung(*shape, tuple(run.bytes / run.seconds for run in outcomes[case.name]))
        for shape, case in zip(shapes, cases, strict=True)
    ]
    return Ladder(tuple(rungs), machine.filesystem(folder).kind, tuple(notes))


def _write_rung(folder: Path, size: int, count: int, seed: int) -> list[Path]:
    """One large file and `count` small ones with the same bytes; the large one comes first."""
    data = np.random.default_rng([seed, size]).bytes(size * count)
    one, many = folder / "one", [folder / f"{number}.bin" for number in range(count)]
    try:
        folder.mkdir(parents=True)
        one.write_bytes(data)
        for number, path in enumerate(many):
            path.write_bytes(data[number * size : (number + 1) * size])
    except OSError as error:
        raise ResourceError(
            f"the files to be measured cannot be written to {folder} ({error.strerror or error})",
            expected=f"an empty folder with room for {2 * RUNG_BYTES * len(SIZES_BYTES) / 1e6:.0f} MB",
            next_step="Free some space or inodes, or name another folder (COURSE_CACHE)",
        ) from error
    return [one, *many]


def _order(count: int, seed: int) -> list[int]:
    order: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return order


def _read_many(files: Sequence[Path], size: int, order: Sequence[int]) -> Outcome:
    names, buffer = [str(files[index]) for index in order], memoryview(bytearray(size))
    began = perf_counter()
    for name in names:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        os.readv(descriptor, (buffer,))
        os.close(descriptor)
    return Outcome(len(order), size * len(order), perf_counter() - began)


def _read_one(files: Sequence[Path], size: int, order: Sequence[int]) -> Outcome:
    name, buffer = str(files[0]), memoryview(bytearray(size))
    began = perf_counter()
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    for index in order:
        os.preadv(descriptor, (buffer,), index * size)
    os.close(descriptor)
    return Outcome(len(order), size * len(order), perf_counter() - began)


_READERS = {"many files": _read_many, "one file": _read_one}


def _warm(read: Callable[[], Outcome], run_s: float) -> Outcome:
    """Read again until the run is long enough to be timed."""
    runs = [read()]
    while sum(run.seconds for run in runs) < run_s:
        runs.append(read())
    return Outcome(
        sum(run.samples for run in runs), sum(run.bytes for run in runs), sum(run.seconds for run in runs)
    )


def _cold(files: Sequence[Path], read: Callable[[], Outcome]) -> Outcome:
    page_cache.drop(files, clean=True)
    return read()
