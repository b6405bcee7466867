"""Raw reads of packed files: random and sequential, warm and cold, every byte touched.

A memory-mapped reader returns in a microsecond without having read anything: the page faults come
when the bytes are used. So each sample's bytes are hashed (xxh3, about 4 µs for 100 KB), which
touches all of them, and the sum of the hashes proves that every format delivered the same bytes.
Notebook 03 measures with it.

The trap: a warm file is not always equally warm. What was written in large pieces lies in large pieces
in the page cache, and a mapping of it is twice as fast as one of the same bytes written sample by
sample. So the cache is emptied and filled by reading before anything warm is measured.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from time import perf_counter

import numpy as np
import xxhash

from smallfiles import formats, machine
from smallfiles.errors import ResourceError, UsageError
from smallfiles.measure import cache as page_cache
from smallfiles.measure.config import BenchConfig, Cache, Order
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, attempt, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of
from smallfiles.samples import Reader

TOUCHED = "every byte hashed (xxh3_64)"
_RUN_S = 0.2
_MOST_PASSES = 20
_NAMES = {"files": "plain files"}
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "xxhash")


@dataclass(frozen=True)
class Target:
    """A packed file to be read, and what it holds."""

    path: Path
    name: str
    format: str
    samples: int
    bytes: int


def bench_reads(paths: Sequence[Path], config: BenchConfig | None = None) -> Result:
    """Measure reading of several packed files of the same data set in one run.

    Args:
        paths: Packed files; all of one data set.
        config: How to measure.

    Returns:
        One record for each file, order and cache state.

    Raises:
        UsageError: The files hold different data sets.
        ResourceError: Only cold reads were asked for, and the cache cannot be dropped here.
    """
    config = config or BenchConfig()
    targets = _targets(paths)
    caches, notes = _possible_caches(paths, config.caches)
    runs = len(targets) * len(config.orders) * len(caches) * (config.repeats + 1)
    allowed = allowance(paths, min(config.count, targets[0].samples), runs, cap=config.cap)
    notes += [allowed.note] if allowed.note else []
    records: list[Record] = []
    failed: list[Failed] = []
    for state in caches:
        for order in config.orders:
            reasons: dict[str, str] = {}
            capped = bool(allowed.note)
            records += _one_condition(targets, config, order, state, allowed.samples, capped, reasons)
            failed += [Failed(f"{order} reads", name, why, state) for name, why in reasons.items()]
    return Result(tuple(records), tuple(notes), tuple(failed))


def _targets(paths: Sequence[Path]) -> list[Target]:
    if not paths:
        raise UsageError("no packed file was given", expected="one or more", next_step="Name what to read")
    targets: list[Target] = []
    for path in paths:
        format = formats.name_of(path)
        with closing(formats.open(path)) as reader:
            total = reader.info().get("bytes")
            if total is None:  # plain files whose manifest has no sizes
                total = sum(reader.size(index) for index in range(len(reader)))
            targets.append(Target(path, _NAMES.get(format, format), format, len(reader), total))
    first = targets[0]
    for target in targets:
        if (target.samples, target.bytes) != (first.samples, first.bytes):
            raise UsageError(
                f"{target.path} holds {target.samples:,} samples of {target.bytes:,} bytes and {first.path} "
                f"{first.samples:,} of {first.bytes:,}",
                expected="packed files of one data set",
                next_step="Measure them in separate runs",
            )
    if not first.samples:
        raise UsageError(f"{first.path} is empty", expected="samples to read", next_step="Pack some first")
    return _distinct(targets)


def _distinct(targets: list[Target]) -> list[Target]:
    """Name by format where that is unique, else by file name, else by place in the list too."""
    schemes = (
        [target.name for target in targets],
        [target.path.name for target in targets],
        [f"{number}: {target.path.name}" for number, target in enumerate(targets, 1)],
    )
    names = next(names for names in schemes if len(set(names)) == len(names))
    return [replace(target, name=name) for target, name in zip(targets, names, strict=True)]


def _possible_caches(paths: Sequence[Path], wanted: Sequence[Cache]) -> tuple[list[Cache], list[str]]:
    if "cold" not in wanted or all(page_cache.can_be_cold(path) for path in paths):
        return list(wanted), []
    note = "cold reads cannot be measured here: these files lie in memory (tmpfs), which has no other copy"
    if "warm" not in wanted:
        raise ResourceError(note, expected="files on a disk or server", next_step="Use --cache warm")
    return ["warm"], [note]


def _one_condition(
    targets: list[Target],
    config: BenchConfig,
    order: Order,
    state: Cache,
    samples: int,
    capped: bool,
    failed: dict[str, str],
) -> list[Record]:
    sums: dict[str, int] = {}
    cases = []
    for target in targets:
        indices = _indices(target.samples, samples, order, config.seed)
        run: Callable[[], Outcome] = functools.partial(_run_cold, target, indices, sums)
        if state == "warm":
            passes = attempt(target.name, functools.partial(_warmed, target, indices, capped), failed)
            if passes is None:
                continue
            run = functools.partial(_run_warm, target, indices, passes, sums)
        cases.append(Case(target.name, run, warm_up=False))
    outcomes = interleaved(cases, config.repeats, config.seed, f"{order} reads, {state}", failed)
    measured = [target for target in targets if target.name in outcomes]
    _same_bytes({target.name: sums[target.name] for target in measured}, measured, order)
    return [_record(target, outcomes[target.name], order, state, config.seed) for target in measured]


def _warmed(target: Target, indices: list[int], capped: bool) -> int:
    """Fill the cache, and learn how many passes make a run."""
    if capped:
        return 1
    _fill_by_reading(target, indices)
    return _calibrated(target, indices)


def _indices(total: int, samples: int, order: Order, seed: int) -> list[int]:
    if order == "sequential":
        return list(range(samples))
    chosen: list[int] = np.random.default_rng(seed).permutation(total)[:samples].tolist()
    return chosen


def _fill_by_reading(target: Target, indices: list[int]) -> None:
    """Warm the cache in the same way for all formats, however they were written."""
    if page_cache.can_be_cold(target.path):
        with contextlib.suppress(ResourceError):  # where the cache cannot be emptied, warm is what is there
            page_cache.drop(_files(target, indices))
    _read_all(target, sorted(indices))


def _files(target: Target, indices: list[int]) -> list[Path]:
    """What these reads touch: of plain files only the chosen ones, since a set has a million."""
    if target.format != "files":
        return page_cache.files_of(target.path)
    with closing(formats.open(target.path, target.format)) as reader:
        spans = [reader.span(index) for index in indices]
    return [span[0] for span in spans if span is not None]


def _calibrated(target: Target, indices: list[int]) -> int:
    """Read once, to learn how many passes make a run long enough to time."""
    seconds = _read_all(target, indices).seconds
    return min(_MOST_PASSES, max(1, ceil(_RUN_S / max(seconds, 1e-6))))


def _run_warm(target: Target, indices: list[int], passes: int, sums: dict[str, int]) -> Outcome:
    runs = [_read_all(target, indices) for _ in range(passes)]
    sums[target.name] = int(runs[0].extra["sum"])
    return Outcome(
        sum(run.samples for run in runs),
        sum(run.bytes for run in runs),
        sum(run.seconds for run in runs),
        {"open_s": runs[0].extra["open_s"]},
    )


def _run_cold(target: Target, indices: list[int], sums: dict[str, int]) -> Outcome:
    page_cache.drop(_files(target, indices), clean=target.name in sums)
    run = _read_all(target, indices)
    sums[target.name] = int(run.extra["sum"])
    return Outcome(run.samples, run.bytes, run.seconds, {"open_s": run.extra["open_s"]})


def _read_all(target: Target, indices: list[int]) -> Outcome:
    """One pass with a reader of its own; opening is timed apart."""
    began = perf_counter()
    with closing(formats.open(target.path, target.format)) as reader:
        reader.size(indices[0])  # opens, since readers open late
        opened = perf_counter()
        read_bytes, total = _touch(reader, indices)
        ended = perf_counter()
    extra = {"open_s": opened - began, "sum": total}
    return Outcome(len(indices), read_bytes, ended - opened, extra)


def _touch(reader: Reader, indices: list[int]) -> tuple[int, int]:
    read, hashed = reader.read, xxhash.xxh3_64_intdigest
    total = read_bytes = 0
    for index in indices:
        data = read(index)
        total += hashed(data)
        read_bytes += len(data)
    return read_bytes, total & (2**64 - 1)


def _same_bytes(sums: dict[str, int], targets: list[Target], order: Order) -> None:
    """Refuse to compare files that delivered different bytes."""
    if len(set(sums.values())) > 1:
        raise UsageError(
            f"{', '.join(str(t.path) for t in targets)} delivered different bytes in {order} order",
            expected="files packed from one data set in one order",
            next_step="Run verify on each, and pack them with equal --shuffle",
        )


def _record(target: Target, outcomes: list[Outcome], order: Order, state: Cache, seed: int) -> Record:
    seconds = sorted(outcome.seconds for outcome in outcomes)
    opened = sorted(float(outcome.extra["open_s"]) for outcome in outcomes)
    return Record(
        what=f"{order} reads",
        name=target.name,
        format=target.format,
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=seconds[len(seconds) // 2],
        filesystem=machine.filesystem(target.path).kind,
        cache=state,
        touched=TOUCHED,
        set_samples=target.samples,
        set_bytes=target.bytes,
        seed=seed,
        extra={"open_s": opened[len(opened) // 2]},
        machine=machine.describe(),
        versions=versions_of(_PACKAGES),
    )
