"""Random reads of one image against rows a record batch, in three ways.

Two are plain pyarrow: `get_batch`, then one cell of it (which pyarrow copies). An `OSFile` fetches the
whole batch that the cell lies in. A memory map hands out a view of the batch, but each `get_batch`
tells the system that all of it will be needed (`madvise`), which costs time for every page. The third
way is the package's reader, which notes once where each batch lies and then takes a view of one image
alone. Every byte of the image is hashed, or a view would have read nothing. Notebook 03 draws it.

The trap: with a fixed number of reads the slow cases take minutes and the fast ones too short a time
to be measured; so each run reads for the same time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from smallfiles import machine
from smallfiles.formats import arrow
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Spread
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import Source

Way: TypeAlias = Literal["OSFile", "memory map", "our reader"]

WAYS: tuple[Way, ...] = ("OSFile", "memory map", "our reader")
ROWS = (1, 4, 16, 64, 256)
RUN_S = 0.06
MOST_READS = 4_000
MOST_IMAGES = 512


@dataclass(frozen=True)
class Point:
    """One way of opening one file.

    Args:
        way: How it was opened.
        rows: Rows a record batch.
        rates_per_s: Images per second of each run.
    """

    way: Way
    rows: int
    rates_per_s: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """Median, quartiles and extremes."""
        return Spread.of(self.rates_per_s)


@dataclass(frozen=True)
class Batches:
    """What was measured, and the sentences that it supports.

    Args:
        points: All ways and numbers of rows.
        image_bytes: Mean size of an image.
        filesystem: What the files lie on.
        note: What was capped; empty if nothing was.
    """

    points: tuple[Point, ...]
    image_bytes: float
    filesystem: str
    note: str = ""

    def of(self, way: Way) -> list[Point]:
        """The points of one way, by rows."""
        return sorted((p for p in self.points if p.way == way), key=lambda point: point.rows)

    def fall(self, way: Way) -> float | None:
        """How many times slower the most rows are than the fewest; None if the runs overlap."""
        first, last = self.of(way)[0].spread, self.of(way)[-1].spread
        return None if first.overlaps(last) else first.median / last.median

    @property
    def finding(self) -> str:
        """The title of the figure."""
        rows = [point.rows for point in self.of(WAYS[0])]
        told = [f"{way} {_slower(self.fall(way))}" for way in WAYS]
        if any(not text.endswith("change") for text in told):
            return f"From {rows[0]} to {rows[-1]} rows a batch: {', '.join(told)}"
        return f"From {rows[0]} to {rows[-1]} rows a batch: no clear change in any of the three ways here"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = []
        for way in WAYS:
            values = ", ".join(f"{p.rows} rows {p.spread.median:,.0f}" for p in self.of(way))
            told.append(f"{way}: {values}")
        return f"Line chart. {self.finding}. Median images per second at random. {'; '.join(told)}."


def _slower(fall: float | None) -> str:
    if fall is None or 0.95 < fall < 1.05:
        return "no clear change"
    word, factor = ("slower", fall) if fall > 1 else ("faster", 1 / fall)
    return f"{factor:.1f} times {word}" if factor < 10 else f"{factor:,.0f} times {word}"


def write_files(source: Source, folder: Path, rows: Sequence[int] = ROWS) -> dict[int, Path]:
    """Pack the same images once for each number of rows.

    Args:
        source: Of which at most `MOST_IMAGES` are taken.
        folder: Where the files go.
        rows: Rows a record batch.

    Returns:
        The file of each number of rows.
    """
    manifest = source.manifest.select(range(min(MOST_IMAGES, len(source.manifest))))
    chosen = dataclasses.replace(source, manifest=manifest)
    files = {count: folder / f"{count}_rows.arrow" for count in rows}
    for count, path in files.items():
        options = arrow.Options(rows_per_batch=count, max_batch_bytes=1 << 30)
        pack(chosen, path, PackConfig(options=options, verify="none", digest=False))
    return files


def bench_batches(files: Mapping[int, Path], repeats: int = 7, seed: int = 0) -> Batches:
    """Measure random reads of every file in both ways, interleaved.

    Args:
        files: From `write_files`.
        repeats: Rounds.
        seed: Of the order of reads and of rounds.

    Returns:
        The measurement.
    """
    paths = list(files.values())
    allowed = allowance(paths, MOST_READS, len(paths) * len(WAYS) * (repeats + 1))
    with arrow.open(paths[0]) as first:
        count = len(first)
        image_bytes = sum(first.size(index) for index in range(count)) / max(count, 1)
    indices = np.random.default_rng(seed).integers(0, count, allowed.samples).tolist()
    cases, keys = [], {}
    for rows, path in files.items():
        for way in WAYS:
            name = f"{way} {rows}"
            keys[name] = (way, rows)
            cases.append(Case(name, functools.partial(_run, path, way, rows, indices)))
    outcomes = interleaved(cases, repeats, seed, "random reads")
    points = tuple(
        Point(way, rows, tuple(outcome.rate_per_s for outcome in outcomes[name]))
        for name, (way, rows) in keys.items()
    )
    return Batches(points, image_bytes, machine.filesystem(paths[0]).kind, allowed.note)


def _run(path: Path, way: Way, rows: int, indices: Sequence[int]) -> Outcome:
    """Read images for `RUN_S`; opening is not timed."""
    if way == "our reader":
        with arrow.open(path, access="mmap") as reader:
            for index in range(len(reader)):
                reader.span(index)  # looks up the place of each batch, once a file
            return _timed(reader.read, indices)
    with closing(pa.memory_map(str(path)) if way == "memory map" else pa.OSFile(str(path), "rb")) as file:
        batches = pa.ipc.open_file(file)
        column = batches.schema.get_field_index("data")
        return _timed(lambda i: batches.get_batch(i // rows).column(column)[i % rows].as_buffer(), indices)


def _timed(read: Callable[[int], Any], indices: Sequence[int]) -> Outcome:
    done = read_bytes = 0
    began = now = perf_counter()
    for index in indices:
        image = read(index)
        xxhash.xxh3_64_intdigest(image)
        done, read_bytes = done + 1, read_bytes + len(image)
        now = perf_counter()
        if now - began > RUN_S:
            break
    return Outcome(done, read_bytes, now - began)
