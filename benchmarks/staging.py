"""Copying to memory of this node: our staging, `dd`, and `cp -r` of the same samples as small files.

All three copy the same samples from the same storage, interleaved round by round, so that their rates
in samples a second compare: from memory, from a local disk with a cold cache, and through a folder
that answers as slowly as a parallel file system. Ours is timed as a user sees it: looking, locking,
hashing, comparing with the digest, publishing. Notebook 07 uses its records.

The trap: memory that a virtual machine never touched comes from its host page by page, which makes
the first copy slow whoever does it; so each method runs once before anything is measured. And small
files in the page cache flatter `cp -r`: no job finds a million of them there.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

from smallfiles import slowfs, sources, staging
from smallfiles.errors import MissingPackageError, ResourceError, writing
from smallfiles.measure import BenchConfig, Cache
from smallfiles.measure import cache as page_cache
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.scratch import memory_folder
from smallfiles.pack import PackConfig, pack
from smallfiles.slowfs import SlowConfig

DD = "dd bs=4M"
STAGE = "stage, digest checked"
CP = "cp -r of small files"
SLOW_SAMPLES = 600
_SLOW = SlowConfig()
_LIMIT_S = 600
_SPARE_BYTES = 64 << 20


def bench_staging(
    source: Path, config: BenchConfig | None = None, *, slow: SlowConfig | None = _SLOW
) -> Result:
    """Measure how fast a packed file comes to memory, beside `dd` and beside its small files.

    Args:
        source: A folder, an archive or a manifest.
        config: Repeats, samples at most, seed; `cold` among its caches adds copies from a cold disk.
        slow: The storage that the slow folder imitates; None leaves that out.

    Returns:
        For each storage one record a method, `dd` first; their ratios tell what hashing costs and what
        packing buys.

    Raises:
        ResourceError: Memory has no room for two sets and a copy, or a command failed.
    """
    config = config or BenchConfig()
    bench = Bench(config, ("smallfiles", "xxhash", "numpy"))
    found = sources.load(source)
    allowed = bench.allowed([source], min(config.count, len(found.manifest)), 2)
    chosen = first_of(found, allowed.samples)
    with memory_folder(4 * _size(chosen) + _SPARE_BYTES) as memory:
        _measure(bench, "staging to memory", _packed(chosen, memory, allowed.in_flight), memory / "to")
    if "cold" in config.caches:
        _measure_cold(bench, chosen, allowed.in_flight)
    if slow is not None:
        try:
            _measure_slow(bench, chosen, slow)
        except ResourceError as error:
            bench.notes.append(f"a slow folder was not measured: {error.got}")
    return bench.result()


@dataclass(frozen=True)
class _Packed:
    """The same samples as one file and as small files."""

    file: Path
    tree: Path
    samples: int
    bytes: int


def first_of(source: sources.Source, samples: int) -> sources.Source:
    """Its first samples, as a source."""
    return replace(source, manifest=source.manifest.select(range(min(samples, len(source.manifest)))))


def _size(source: sources.Source) -> int:
    return sum(map(source.store.size, source.manifest.paths.to_pylist()))


def _packed(source: sources.Source, folder: Path, in_flight: int | None = None) -> _Packed:
    packed = _Packed(folder / "set.arrow", folder / "set.files", len(source.manifest), _size(source))
    for out in (packed.file, packed.tree):
        pack(source, out, PackConfig(verify="none", in_flight=in_flight))
    return packed


def _measure_cold(bench: Bench, source: sources.Source, in_flight: int | None) -> None:
    """From a disk whose cache forgets all that is copied before each run; names and inodes stay known."""
    with (
        memory_folder(_size(source) + _SPARE_BYTES) as memory,
        tempfile.TemporaryDirectory(prefix="smallfiles-bench-") as disk,
    ):
        if not page_cache.can_be_cold(Path(disk)):
            bench.notes.append(f"cold copies were not measured: {Path(disk).parent} lies in memory")
            return
        packed = _packed(source, Path(disk), in_flight)
        files = [packed.file, *page_cache.files_of(packed.tree)]
        page_cache.drop(files)
        forget = partial(page_cache.drop, files, clean=True)
        _measure(bench, "staging to memory", packed, memory / "to", "cold", forget)


def _measure_slow(bench: Bench, source: sources.Source, slow: SlowConfig) -> None:
    """Fewer samples, since `cp -r` waits for each; the rate does not depend on how many."""
    few = first_of(source, SLOW_SAMPLES)
    with memory_folder(3 * _size(few) + _SPARE_BYTES) as memory:
        real = memory / "storage"
        real.mkdir()
        packed = _packed(few, real)
        with slowfs.mounted(real, slow) as shown:
            seen = replace(packed, file=shown.path / packed.file.name, tree=shown.path / packed.tree.name)
            _measure(bench, f"staging at {slow.summary()}", seen, memory / "to")


def _measure(
    bench: Bench,
    what: str,
    packed: _Packed,
    to: Path,
    cache: Cache = "warm",
    before: Callable[[], object] = lambda: None,
) -> None:
    dd = ["dd", f"if={packed.file}", f"of={to / packed.file.name}", "bs=4M", "status=none"]
    cp = ["cp", "-r", str(packed.tree), str(to)]

    def run(copy: Callable[[], float]) -> Outcome:
        before()
        with _emptied(to):
            return Outcome(packed.samples, packed.bytes, copy())

    cases = [
        Case(DD, partial(run, partial(_command, dd)), format="arrow"),
        Case(STAGE, partial(run, partial(_staged, packed.file, to)), format="arrow"),
        Case(CP, partial(run, partial(_command, cp)), format="files"),
    ]
    whole = (packed.samples, packed.bytes)
    bench.measure(
        what, cases, place=packed.file, whole=whole, touched="every byte read and written", cache=cache
    )


def _staged(file: Path, to: Path) -> float:
    with staging.staged(file, to, config=staging.StageConfig(leave_bytes=0)) as copy:
        return copy.seconds


def _command(words: list[str]) -> float:
    """Seconds that a command takes."""
    if shutil.which(words[0]) is None:
        raise MissingPackageError(
            f"the command {words[0]} is not here",
            expected="it, to compare with",
            next_step="Measure on a machine that has the usual commands",
        )
    began = perf_counter()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        why = f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"did not finish in {_LIMIT_S} s"
    if why:
        raise ResourceError(
            f"{words[0]} {why}",
            expected="it to copy the samples",
            next_step="Measure fewer samples with --count",
        )
    return perf_counter() - began


@contextmanager
def _emptied(to: Path) -> Iterator[None]:
    """A new folder for one run; making and emptying it is not measured."""
    with writing(to):
        to.mkdir(mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(to, ignore_errors=True)
