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

from smallfiles import machine, slowfs, sources, staging
from smallfiles.errors import MissingPackageError, ResourceError
from smallfiles.formats.output import writing
from smallfiles.measure import cache as page_cache
from smallfiles.measure.config import BenchConfig, Cache
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of
from smallfiles.measure.scratch import memory_folder
from smallfiles.pack import PackConfig, pack
from smallfiles.slowfs import SlowConfig

DD = "dd bs=4M"
STAGE = "stage, digest checked"
CP = "cp -r of small files"
_FORMATS = {DD: "arrow", STAGE: "arrow", CP: "files"}
SLOW_SAMPLES = 600
_SLOW = SlowConfig()
_LIMIT_S = 600
_SPARE_BYTES = 64 << 20


def bench_staging(
    source: Path,
    config: BenchConfig | None = None,
    *,
    root: Path | None = None,
    slow: SlowConfig | None = _SLOW,
) -> Result:
    """Measure how fast a packed file comes to memory, beside `dd` and beside its small files.

    Args:
        source: A folder, an archive or a manifest.
        config: Repeats, samples at most, seed; `cold` among its caches adds copies from a cold disk.
        root: Where the files of a manifest are, if it does not say.
        slow: The storage that the slow folder imitates; None leaves that out.

    Returns:
        For each storage one record a method, `dd` first; their ratios tell what hashing costs and what
        packing buys.

    Raises:
        ResourceError: Memory has no room for two sets and a copy, or a command failed.
    """
    config = config or BenchConfig()
    found = sources.load(source, root=root)
    allowed = allowance([source], min(config.count, len(found.manifest)), 2, cap=config.cap)
    chosen = replace(found, manifest=found.manifest.select(range(min(allowed.samples, len(found.manifest)))))
    notes = [allowed.note] if allowed.note else []
    failed: list[Failed] = []
    with memory_folder(4 * _size(chosen) + _SPARE_BYTES) as memory:
        records = _warm(_packed(chosen, memory, allowed.in_flight), memory / "to", config, failed)
    with memory_folder(_size(chosen) + _SPARE_BYTES) as memory, _on_disk() as disk:
        if "cold" in config.caches and not page_cache.can_be_cold(disk):
            notes.append(f"cold copies were not measured: {disk.parent} lies in memory")
        elif "cold" in config.caches:
            records += _cold(_packed(chosen, disk, allowed.in_flight), memory / "to", config, failed)
    try:
        records += _slow(chosen, config, slow, failed) if slow is not None else []
    except ResourceError as error:
        notes.append(f"a slow folder was not measured: {error.got}")
    return Result(tuple(records), tuple(notes), tuple(failed))


@dataclass(frozen=True)
class _Packed:
    """The same samples as one file and as small files."""

    file: Path
    tree: Path
    samples: int
    bytes: int


def _size(source: sources.Source) -> int:
    return sum(source.store.size(path) for path in source.manifest.paths.to_pylist())


def _packed(source: sources.Source, folder: Path, in_flight: int | None = None) -> _Packed:
    packed = _Packed(folder / "set.arrow", folder / "set.files", len(source.manifest), _size(source))
    for out in (packed.file, packed.tree):
        pack(source, out, PackConfig(verify="none", in_flight=in_flight))
    return packed


@contextmanager
def _on_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smallfiles-bench-") as folder:
        yield Path(folder)


def _warm(packed: _Packed, to: Path, config: BenchConfig, failed: list[Failed]) -> list[Record]:
    return _measured("staging to memory", "warm", packed, to, config, failed)


def _cold(packed: _Packed, to: Path, config: BenchConfig, failed: list[Failed]) -> list[Record]:
    """The cache forgets all that is copied before each run; names and inodes stay known."""
    files = [packed.file, *page_cache.files_of(packed.tree)]
    page_cache.drop(files)
    forget = partial(page_cache.drop, files, clean=True)
    return _measured("staging to memory", "cold", packed, to, config, failed, before=forget)


def _slow(
    source: sources.Source, config: BenchConfig, slow: SlowConfig, failed: list[Failed]
) -> list[Record]:
    """Fewer samples, since `cp -r` waits for each; the rate does not depend on how many."""
    few = replace(source, manifest=source.manifest.select(range(min(SLOW_SAMPLES, len(source.manifest)))))
    with memory_folder(3 * _size(few) + _SPARE_BYTES) as memory:
        real = memory / "storage"
        real.mkdir()
        packed = _packed(few, real)
        with slowfs.mounted(real, slow) as shown:
            seen = replace(packed, file=shown.path / packed.file.name, tree=shown.path / packed.tree.name)
            return _measured(f"staging at {slow.summary()}", "warm", seen, memory / "to", config, failed)


def _measured(
    what: str,
    cache: Cache,
    packed: _Packed,
    to: Path,
    config: BenchConfig,
    failed: list[Failed],
    before: Callable[[], object] = lambda: None,
) -> list[Record]:
    runs = _runs(packed.file, packed.tree, to, packed.samples, packed.bytes)

    def run(name: str) -> Outcome:
        before()
        return runs[name]()

    cases = [Case(name, partial(run, name)) for name in runs]
    reasons: dict[str, str] = {}
    outcomes = interleaved(cases, config.repeats, config.seed, f"{what}, {cache}", reasons)
    failed += [Failed(what, name, why, cache) for name, why in reasons.items()]
    kind = machine.filesystem(packed.file).kind
    return [_record(what, name, found, kind, cache, packed, config.seed) for name, found in outcomes.items()]


def _runs(
    packed: Path, tree: Path, to: Path, samples: int, set_bytes: int
) -> dict[str, Callable[[], Outcome]]:
    dd = ["dd", f"if={packed}", f"of={to / packed.name}", "bs=4M", "status=none"]
    cp = ["cp", "-r", str(tree), str(to)]

    def stage() -> Outcome:
        with _emptied(to), staging.staged(packed, to, config=staging.StageConfig(leave_bytes=0)) as copy:
            return Outcome(samples, set_bytes, copy.seconds)

    return {
        DD: lambda: _command(dd, to, samples, set_bytes),
        STAGE: stage,
        CP: lambda: _command(cp, to, samples, set_bytes),
    }


def _command(words: list[str], to: Path, samples: int, set_bytes: int) -> Outcome:
    if shutil.which(words[0]) is None:
        raise MissingPackageError(
            f"the command {words[0]} is not here",
            expected="it, to compare with",
            next_step="Measure on a machine that has the usual commands",
        )
    with _emptied(to):
        began = perf_counter()
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise ResourceError(
                f"{words[0]} did not finish in {_LIMIT_S} s",
                expected="it to copy the samples",
                next_step="Measure fewer samples with --count",
            ) from None
        seconds = perf_counter() - began
    if done.returncode:
        raise ResourceError(
            f"{words[0]} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}",
            expected="it to copy the samples",
            next_step="Measure fewer samples with --count",
        )
    return Outcome(samples, set_bytes, seconds)


@contextmanager
def _emptied(to: Path) -> Iterator[None]:
    """A new folder for one run; making and emptying it is not measured."""
    with writing(to):
        to.mkdir(mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(to, ignore_errors=True)


def _record(
    what: str, name: str, outcomes: list[Outcome], kind: str, cache: Cache, packed: _Packed, seed: int
) -> Record:
    return Record(
        what=what,
        name=name,
        format=_FORMATS[name],
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=sorted(outcome.seconds for outcome in outcomes)[len(outcomes) // 2],
        filesystem=kind,
        cache=cache,
        touched="every byte read and written",
        set_samples=packed.samples,
        set_bytes=packed.bytes,
        seed=seed,
        machine=machine.describe(),
        versions=versions_of(("smallfiles", "xxhash", "numpy")),
    )
