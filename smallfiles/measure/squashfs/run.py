"""`bench squashfs`: everything about one raw image of a folder, in one run.

Random reads in every way at hand, and cold reads by one thread and by several.

The trap: an image that was just written lies in the page cache, so a cold read must first be made cold.
Notebook 06 shows a small version.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from pysquashfs import SquashFS, pack
from pysquashfs.writer.folder import folder_items
from smallfiles.errors import ResourceError
from smallfiles.measure import cache as page_cache
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result
from smallfiles.measure.squashfs.ways import bench_ways, record_of, usable_ways

ONE_BY_ONE = "read_at, one after the other"
THREADS = (1, 8)
_BATCH = 64


def bench_squashfs(folder: Path, config: BenchConfig | None = None, *, others: str = "") -> Result:
    """Measure a raw image of a folder of files.

    Args:
        folder: The tree.
        config: Repeats, files at most, seed; `cold` among its caches adds cold reads.
        others: The module whose `packing` measures packing beside the tools of others.
    """
    config = config or BenchConfig()
    image = Path(tempfile.gettempdir()) / f"smallfiles-bench-{os.getpid()}.sqfs"
    try:
        packed = pack(image, folder_items(folder))
        usable, notes = usable_ways(image)
        runs = config.repeats * (len(usable) + 2)
        allowed = allowance([folder], min(config.count, packed.files), runs, cap=config.cap)
        config = replace(config, count=allowed.samples)
        notes += [allowed.note] if allowed.note else []
        failed: list[Failed] = []
        records = bench_ways(image, folder, config, usable, failed)
        if "cold" in config.caches:
            records += _cold(image, config, notes)
    finally:
        image.unlink(missing_ok=True)
    if others:
        more = importlib.import_module(others)
        records += more.packing(folder, packed.files, packed.bytes, config, notes, failed)
    return Result(tuple(records), tuple(notes), tuple(failed))


def _cold(image: Path, config: BenchConfig, notes: list[str]) -> list[Record]:
    """Files in random order after the cache was emptied: one read at a time, and in announced batches."""
    if not page_cache.can_be_cold(image):
        notes.append("cold reads were not measured: the image lies in memory")
        return []
    with SquashFS(image, cache=False) as opened:
        rows = np.random.default_rng(config.seed).permutation(len(opened))[: config.count].tolist()
    cases = [Case(ONE_BY_ONE, partial(_read_cold, image, rows, 0), warm_up=False)]
    cases += [
        Case(f"read_many, {n} thread{'s' * (n > 1)}", partial(_read_cold, image, rows, n), warm_up=False)
        for n in THREADS
    ]
    try:
        outcomes = interleaved(cases, config.repeats, config.seed, "cold reads")
    except ResourceError as error:
        notes.append(f"cold reads were not measured: {error.got}")
        return []
    common = {"place": image, "samples": len(rows), "seed": config.seed}
    return [
        record_of("random reads", case.name, outcomes[case.name], cache="cold", **common)  # type: ignore[arg-type]
        for case in cases
    ]


def _read_cold(image: Path, rows: Sequence[int], threads: int) -> Outcome:
    with SquashFS(image, "pure", cache=False) as opened:
        page_cache.drop([image])
        total, began = 0, perf_counter()
        if not threads:
            total = sum(len(opened.read_at(row)) for row in rows)
        for first in range(0, len(rows) if threads else 0, _BATCH):
            total += sum(map(len, opened.read_many(rows[first : first + _BATCH], threads=threads)))
        return Outcome(len(rows), total, perf_counter() - began)
