"""`bench squashfs`: everything about one raw image of a folder, in one run.

Random reads in every way at hand, cold reads by one thread and by several, and packing beside
mksquashfs with the same settings.

The trap: `mksquashfs` uses all cores and writes behind its own end; both packers get the same number of
threads and write to memory. Notebook 06 shows a small version.
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

from pysquashfs import SquashFS, pack
from pysquashfs.info import RECOMMENDED
from pysquashfs.writer.folder import folder_items
from smallfiles.errors import PackError, ResourceError
from smallfiles.measure import cache as page_cache
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result
from smallfiles.measure.scratch import memory_folder
from smallfiles.measure.squashfs.ways import bench_ways, record_of, usable_ways

ONE_BY_ONE = "read_at, one after the other"
THREADS = (1, 8)
_SPARE_BYTES = 64 << 20
_BATCH = 64
_PACKING = "packing an image"
_LIMIT_S = 600


def bench_squashfs(folder: Path, config: BenchConfig | None = None) -> Result:
    """Measure a raw image of a folder of files.

    Args:
        folder: The tree.
        config: Repeats, files at most, seed; `cold` among its caches adds cold reads.
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
    if shutil.which("mksquashfs"):
        records += _packing(folder, packed.files, packed.bytes, config, failed)
    else:
        notes.append("packing was not measured: mksquashfs is not installed")
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


def _packing(folder: Path, files: int, size: int, config: BenchConfig, failed: list[Failed]) -> list[Record]:
    """The same tree to memory, raw and without fragments, by us and by mksquashfs."""
    with memory_folder(int(2.2 * size) + _SPARE_BYTES) as place:
        for path in folder.rglob("*"):  # both read it from memory
            if path.is_file():
                path.read_bytes()
        cases = [
            Case("pysquashfs", partial(_timed, _by_us, folder, place / "ours.sqfs", files, size)),
            Case("mksquashfs", partial(_timed, _by_mksquashfs, folder, place / "theirs.sqfs", files, size)),
        ]
        reasons: dict[str, str] = {}
        outcomes = interleaved(cases, config.repeats, config.seed, _PACKING, reasons)
        failed += [Failed(_PACKING, name, why) for name, why in reasons.items()]
        return [
            record_of(
                _PACKING,
                name,
                found,
                place=place,
                samples=files,
                seed=config.seed,
                touched="every byte read and written",
            )
            for name, found in outcomes.items()
        ]


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
