"""Raw reads of packed files: random and sequential, warm and cold, every byte touched.

A memory-mapped reader returns in a microsecond without reading anything: the page faults occur when the
bytes are used. So each sample is hashed (xxh3, about 4 µs for 100 KB), which touches every byte, and the
sum of the hashes proves that every format returned the same bytes. Notebook 03 measures with it.

The trap: warm files are not equally fast. A file that was written in large pieces is cached in large
pieces, and its mapping is twice as fast as that of the same bytes written sample by sample. So before
warm measurements the cache is emptied and filled again by reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import xxhash

from smallfiles import formats
from smallfiles.errors import ResourceError, UsageError
from smallfiles.measure import BenchConfig, Cache, ReadOrder
from smallfiles.measure import cache as page_cache
from smallfiles.measure.bench import Bench, Target, one_set
from smallfiles.measure.counting import requests
from smallfiles.measure.protocol import Case, Outcome, long_enough
from smallfiles.measure.record import Result
from smallfiles.samples import Buffer

TOUCHED = "every byte hashed (xxh3_64)"
_NAMES = {"files": "plain files"}
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "xxhash")


def bench_reads(paths: Sequence[Path], config: BenchConfig | None = None) -> Result:
    """Measure reading of several packed files of the same data set in one run.

    Args:
        paths: Packed files; all of one data set.
        config: How to measure.

    Returns:
        One record for each file, order and cache state.

    Raises:
        UsageError: The files contain different data sets.
        ResourceError: Only cold reads were requested, and the cache cannot be dropped here.
    """
    config = config or BenchConfig()
    bench, targets = Bench(config, _PACKAGES), _targets(paths)
    first = targets[0]
    caches = _possible_caches(paths, config.caches, bench.notes)
    runs = len(targets) * len(config.orders) * len(caches) * (config.repeats + 1)
    allowed = bench.allowed(paths, min(config.count, first.samples), runs)
    for state in caches:
        for order in config.orders:
            indices = _indices(first.samples, allowed.samples, order, config.seed)
            sums: dict[str, int] = {}
            cases = []
            for target in targets:
                read = partial(_read_all, target, indices, sums)
                run: Callable[[], Outcome] = partial(_cold, target, indices, read, sums)
                if state == "warm":
                    run = _warm(target, indices, read, capped=allowed.in_flight is not None)
                cases.append(Case(target.name, run, state == "warm", target.format, target.path))
            whole = (first.samples, first.bytes)
            what = f"{order} reads"
            bench.measure(what, cases, place=first.path, whole=whole, touched=TOUCHED, cache=state)
            _same_bytes(sums, targets, order)
    return bench.result()


def _targets(paths: Sequence[Path]) -> list[Target]:
    if not paths:
        raise UsageError(
            "no packed file was given", expected="one or more", next_step="Name the files to read"
        )
    targets: list[Target] = []
    for path in paths:
        format = formats.name_of(path)
        with closing(formats.open(path)) as reader:
            total = reader.info().get("bytes")
            if total is None:  # plain files whose manifest has no sizes
                total = sum(reader.size(index) for index in range(len(reader)))
            targets.append(Target(path, format, _NAMES.get(format, format), len(reader), total))
    first, *_ = targets = one_set(targets)
    if not first.samples:
        raise UsageError(f"{first.path} is empty", expected="samples to read", next_step="Pack some first")
    return targets


def _possible_caches(paths: Sequence[Path], wanted: Sequence[Cache], notes: list[str]) -> Sequence[Cache]:
    if "cold" not in wanted or all(page_cache.can_be_cold(path) for path in paths):
        return wanted
    note = "cold reads cannot be measured here: these files are in memory (tmpfs), without another copy"
    if "warm" not in wanted:
        raise ResourceError(note, expected="files on a disk or server", next_step="Use --cache warm")
    notes.append(note)
    return ("warm",)


def _indices(total: int, samples: int, order: ReadOrder, seed: int) -> list[int]:
    if order == "sequential":
        return list(range(samples))
    chosen: list[int] = np.random.default_rng(seed).permutation(total)[:samples].tolist()
    return chosen


def _warm(
    target: Target, indices: list[int], read: Callable[[], Outcome], *, capped: bool
) -> Callable[[], Outcome]:
    """Return a function that measures with a filled page cache.

    The first run is discarded. It fills the cache in the same way for all formats.
    """
    run, filled = long_enough(read, most=1 if capped else 20), capped

    def warm() -> Outcome:
        nonlocal filled
        if not filled:
            with contextlib.suppress(ResourceError):  # then the cache stays as it is
                if page_cache.can_be_cold(target.path):
                    page_cache.drop(_files(target, indices))
            _read_all(target, sorted(indices), {})
            filled = True
        return run()

    return warm


def _cold(target: Target, indices: list[int], read: Callable[[], Outcome], sums: dict[str, int]) -> Outcome:
    page_cache.drop(_files(target, indices), clean=target.name in sums)
    return read()


def _files(target: Target, indices: list[int]) -> list[Path]:
    """List the files that are read. Of plain files these are only the chosen files, not a million."""
    if target.format != "files":
        return page_cache.files_of(target.path)
    with closing(formats.open(target.path, target.format)) as reader:
        spans = [reader.span(index) for index in indices]
    return [span[0] for span in spans if span is not None]


def _read_all(target: Target, indices: list[int], sums: dict[str, int]) -> Outcome:
    """Read once with a new reader. Opening is timed and counted separately, and the hashes are summed up."""
    with requests(target.path) as opening:
        began = perf_counter()
        reader = formats.open(target.path, target.format)
        reader.size(indices[0])  # opens, since readers open late
        open_s = perf_counter() - began
    with closing(reader), requests(target.path) as asked:
        began = perf_counter()
        read_bytes, sums[target.name] = hashed(reader.read, indices)
        seconds = perf_counter() - began
    to_open = {f"{kind}_to_open": count for kind, count in opening.counts.items()}
    more = {"open_s": open_s, **to_open, **asked.facts(len(indices))}
    return Outcome(len(indices), read_bytes, seconds, more)


def hashed(read: Callable[[int], Buffer], indices: Iterable[int]) -> tuple[int, int]:
    """Read samples and touch every byte; the bytes, and the sum of the hashes, whatever the order."""
    digest = xxhash.xxh3_64_intdigest
    total = read_bytes = 0
    for index in indices:
        data = read(index)
        total += digest(data)
        read_bytes += len(data)
    return read_bytes, total % 2**64


def _same_bytes(sums: dict[str, int], targets: list[Target], order: ReadOrder) -> None:
    """Refuse to compare files that returned different bytes."""
    if len(set(sums.values())) > 1:
        raise UsageError(
            f"{', '.join(str(t.path) for t in targets)} returned different bytes in {order} order",
            expected="files packed from one data set in one order",
            next_step="Run verify on each, and pack them with equal --shuffle",
        )
