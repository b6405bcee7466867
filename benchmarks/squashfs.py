"""One raw image of a folder: read in every way at hand, read cold, and packed beside mksquashfs.

The trap: `mksquashfs` uses all cores and writes behind its own end; both packers get the same number of
threads and write to memory.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.ways import PACKAGES, RANDOM, TOUCHED, measure_ways, usable_ways
from pysquashfs import SquashFS, pack
from pysquashfs.info import RECOMMENDED
from pysquashfs.writer import folder_items
from smallfiles.errors import PackError
from smallfiles.measure import cache as page_cache
from smallfiles.measure.bench import Bench
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.scratch import memory_folder

_SPARE_BYTES = 64 << 20
_LIMIT_S = 600
_THREADS = {"read_at, one after the other": 0, "read_many, 1 thread": 1, "read_many, 8 threads": 8}
_BATCH = 64


def bench_squashfs(folder: Path, config: BenchConfig | None = None) -> Result:
    """Measure a raw image of a folder of files: random reads in every way at hand, cold reads, packing.

    Args:
        folder: The tree.
        config: Repeats, files at most, seed; `cold` among its caches adds cold reads.
    """
    config = config or BenchConfig()
    bench = Bench(config, PACKAGES)
    with tempfile.TemporaryDirectory(prefix="smallfiles-bench-") as place:
        image = Path(place) / "image.sqfs"
        packed = pack(image, folder_items(folder))
        usable, notes = usable_ways(image)
        bench.notes += notes
        allowed = bench.allowed([folder], min(config.count, packed.files), config.repeats * (len(usable) + 2))
        config = replace(config, count=allowed.samples)
        measure_ways(bench, image, folder, config, usable)
        if "cold" in config.caches:
            _measure_cold(bench, image, config)
    _measure_packing(bench, folder, packed.files, packed.bytes)
    return bench.result()


def _measure_cold(bench: Bench, image: Path, config: BenchConfig) -> None:
    """Files in random order after the cache was emptied: one read at a time, and in announced batches."""
    if not page_cache.can_be_cold(image):
        bench.notes.append("cold reads were not measured: the image lies in memory")
        return
    with SquashFS(image) as opened:
        rows = np.random.default_rng(config.seed).permutation(len(opened))[: config.count].tolist()
        size = sum(len(opened.view_at(row)) for row in rows)
    cases = [
        Case(name, partial(_read_cold, image, rows, threads), warm_up=False, format="squashfs")
        for name, threads in _THREADS.items()
    ]
    bench.measure(RANDOM, cases, place=image, whole=(len(rows), size), touched=TOUCHED, cache="cold")


def _read_cold(image: Path, rows: Sequence[int], threads: int) -> Outcome:
    with SquashFS(image) as opened:
        page_cache.drop([image])
        total, began = 0, perf_counter()
        if not threads:
            total = sum(len(opened.read_at(row)) for row in rows)
        for first in range(0, len(rows) if threads else 0, _BATCH):
            total += sum(map(len, opened.read_many(rows[first : first + _BATCH], threads=threads)))
        return Outcome(len(rows), total, perf_counter() - began)


def _measure_packing(bench: Bench, folder: Path, files: int, size: int) -> None:
    """The same tree to memory, raw and without fragments, by us and by mksquashfs.

    Args:
        bench: Gets the records.
        folder: The tree.
        files: How many are in it.
        size: Their bytes.
    """
    if not shutil.which("mksquashfs"):
        bench.notes.append("packing was not measured: mksquashfs is not installed")
        return
    with memory_folder(int(2.2 * size) + _SPARE_BYTES) as place:
        for path in folder.rglob("*"):  # both read it from memory
            if path.is_file():
                path.read_bytes()
        cases = [
            Case(name, partial(_timed, work, folder, place / "x.sqfs", files, size), format="squashfs")
            for name, work in {"pysquashfs": _by_us, "mksquashfs": _by_mksquashfs}.items()
        ]
        bench.measure(
            "packing an image",
            cases,
            place=place,
            whole=(files, size),
            touched="every byte read and written",
        )


def _timed(work: Callable[[Path, Path], None], folder: Path, out: Path, files: int, size: int) -> Outcome:
    began = perf_counter()
    work(folder, out)
    seconds = perf_counter() - began
    out.unlink()
    return Outcome(files, size, seconds)


def _by_us(folder: Path, out: Path) -> None:
    pack(out, folder_items(folder))


def _by_mksquashfs(folder: Path, out: Path) -> None:
    words = [{"DIR": str(folder), "OUT": str(out)}.get(word, word) for word in shlex.split(RECOMMENDED)]
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    try:
        subprocess.run(words, capture_output=True, text=True, env=environment, timeout=_LIMIT_S, check=True)
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or "").strip().splitlines() or [str(error)]
        raise PackError(
            f"mksquashfs failed ({said[-1][:200]})",
            expected="an image",
            next_step="Run it by hand to see more",
        ) from None
