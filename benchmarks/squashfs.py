"""A raw and a compressed image of a folder: read in every way at hand, read cold, and packed.

The trap: `mksquashfs` uses all cores and writes behind its own end; all packers get the same number of
threads and write to memory. Processor seconds are recorded too, because clocks of a busy machine differ.
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

from benchmarks.ways import (
    LIBRARY,
    PACKAGES,
    RANDOM,
    TOUCHED,
    WAYS,
    measure_ways,
    usable_ways,
    with_processor_time,
)
from pysquashfs import SquashFS, pack
from pysquashfs.info import RECOMMENDED
from pysquashfs.libsquashfs import available
from pysquashfs.writer import folder_items
from smallfiles.errors import PackError
from smallfiles.measure import BenchConfig
from smallfiles.measure import cache as page_cache
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.scratch import memory_folder

_SPARE_BYTES = 64 << 20
_LIMIT_S = 600
_THREADS = {"read_many, 1 thread": 1, "read_many, 8 threads": 8}
_BATCH = 64
_IMAGES = {RANDOM: "none", f"{RANDOM}, gzip": "gzip"}
"""The compression of the image for each operation."""
_SORT = "0 [glob_no_path,dont_compress,dont_fragment] *\n"
"""How gensquashfs stores files raw."""


def bench_squashfs(folder: Path, config: BenchConfig | None = None) -> Result:
    """Measure random reads of a raw and a compressed image of a folder, warm and cold, and packing it.

    Args:
        folder: The tree.
        config: Repeats, files at most, seed; `cold` among its caches adds cold reads.
    """
    config = config or BenchConfig()
    bench = Bench(config, PACKAGES)
    with tempfile.TemporaryDirectory(prefix="smallfiles-bench-") as place:
        for number, (what, compression) in enumerate(_IMAGES.items()):
            image = Path(place) / f"{compression}.sqfs"
            packed = pack(image, folder_items(folder), compression=compression)
            if not number:
                usable, notes = usable_ways(image)
                bench.notes += notes
                runs = 2 * config.repeats * (len(usable) + 2)
                allowed = bench.allowed([folder], min(config.count, packed.files), runs)
                config = replace(config, count=allowed.samples)
            measure_ways(bench, image, folder, config, usable, what)
            if "cold" in config.caches:
                _measure_cold(bench, image, config, usable, what)
            image.unlink()
    _measure_packing(bench, folder, packed.files, packed.bytes)
    return bench.result()


def _measure_cold(bench: Bench, image: Path, config: BenchConfig, usable: Sequence[str], what: str) -> None:
    """Files in random order after the cache was emptied: in every way, and in announced batches."""
    if not page_cache.can_be_cold(image):
        bench.notes.append("cold reads were not measured: the image lies in memory")
        return
    with SquashFS(image) as opened:
        rows = np.random.default_rng(config.seed).permutation(len(opened))[: config.count].tolist()
        names, size = [opened.paths[row] for row in rows], sum(len(opened.view_at(row)) for row in rows)
    works = {way: partial(_read_cold, image, names, way) for way in usable}
    works |= {name: partial(_read_batches, image, rows, threads) for name, threads in _THREADS.items()}
    cases = [
        Case(name, with_processor_time(work, len(rows)), warm_up=False, format="squashfs")
        for name, work in works.items()
    ]
    bench.measure(what, cases, place=image, whole=(len(rows), size), touched=TOUCHED, cache="cold")


def _read_cold(image: Path, names: Sequence[str], way: str) -> Outcome:
    page_cache.drop([image])
    with WAYS[way](image, names) as read:
        page_cache.drop([image])
        began = perf_counter()
        total = sum(len(read(number)) for number in range(len(names)))
        return Outcome(len(names), total, perf_counter() - began)


def _read_batches(image: Path, rows: Sequence[int], threads: int) -> Outcome:
    with SquashFS(image) as opened:
        page_cache.drop([image])
        total, began = 0, perf_counter()
        for first in range(0, len(rows), _BATCH):
            total += sum(map(len, opened.read_many(rows[first : first + _BATCH], threads=threads)))
        return Outcome(len(rows), total, perf_counter() - began)


def _measure_packing(bench: Bench, folder: Path, files: int, size: int) -> None:
    """Time packing one tree to memory, raw and without fragments, by both back ends and two tools.

    Args:
        bench: Gets the records.
        folder: The tree.
        files: How many are in it.
        size: Their bytes.
    """
    works: dict[str, Callable[[Path, Path], None]] = {
        "pysquashfs": pack_folder,
        LIBRARY: partial(pack_folder, backend="libsquashfs"),
    }
    for name, work in {"mksquashfs": _by_mksquashfs, "gensquashfs": _by_gensquashfs}.items():
        if shutil.which(name):
            works[name] = work
        else:
            bench.notes.append(f"packing by {name} was not measured: it is not installed")
    if available() is None:
        del works[LIBRARY]
    with memory_folder(int(2.2 * size) + _SPARE_BYTES) as place:
        for path in folder.rglob("*"):  # both read it from memory
            if path.is_file():
                path.read_bytes()
        cases = [
            Case(
                name,
                with_processor_time(partial(_timed, work, folder, place / "x.sqfs", files, size), files),
                format="squashfs",
            )
            for name, work in works.items()
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


def pack_folder(folder: Path, out: Path, backend: str = "python") -> None:
    """Pack a folder by pysquashfs."""
    pack(out, folder_items(folder), backend=backend)


def _by_mksquashfs(folder: Path, out: Path) -> None:
    _run([{"DIR": str(folder), "OUT": str(out)}.get(word, word) for word in shlex.split(RECOMMENDED)])


def _by_gensquashfs(folder: Path, out: Path) -> None:
    sort = out.with_name("sort.txt")
    sort.write_text(_SORT)
    _run(["gensquashfs", "-q", "-c", "gzip", "-S", str(sort), "-D", str(folder), str(out)])


def _run(words: Sequence[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    try:
        subprocess.run(words, capture_output=True, text=True, env=environment, timeout=_LIMIT_S, check=True)
    except subprocess.SubprocessError as error:
        told = (getattr(error, "stderr", None) or "").strip().splitlines() or [str(error)]
        raise PackError(
            f"{words[0]} failed ({told[-1][:200]})",
            expected="an image",
            next_step="Run it by hand to see more",
        ) from None
