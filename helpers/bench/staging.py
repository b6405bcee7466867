"""Copying to memory of this node: our staging, `dd`, and `cp -r` of the same samples as small files.

All three copy the same samples from the same storage with a warm cache, interleaved round by round,
so that their rates in samples a second compare. Ours is timed as a user sees it: looking, locking,
hashing, comparing with the digest, publishing. Notebook 07 uses its records.

The trap: memory that a virtual machine never touched comes from its host page by page, which makes
the first copy slow whoever does it; so each method runs once before anything is measured.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from helpers import machine, sources, staging
from helpers.bench.config import BenchConfig
from helpers.bench.neighbour import allowance
from helpers.bench.packing import PackResult
from helpers.bench.protocol import Case, Outcome, interleaved
from helpers.bench.record import Record, versions_of
from helpers.bench.scratch import memory_folder
from helpers.errors import MissingPackageError, ResourceError
from helpers.formats.output import writing
from helpers.pack import PackConfig, pack

DD = "dd bs=4M"
STAGE = "stage, digest checked"
CP = "cp -r of small files"
_FORMATS = {DD: "arrow", STAGE: "arrow", CP: "files"}
_LIMIT_S = 600
_SPARE_BYTES = 64 << 20


def bench_staging(source: Path, config: BenchConfig | None = None, *, root: Path | None = None) -> PackResult:
    """Measure how fast a packed file comes to memory, beside `dd` and beside its small files.

    Args:
        source: A folder, an archive or a manifest.
        config: Repeats, samples at most, seed.
        root: Where the files of a manifest are, if it does not say.

    Returns:
        One record a method, `dd` first; their ratios tell what hashing costs and what packing buys.

    Raises:
        ResourceError: Memory has no room for two sets and a copy, or a command failed.
    """
    config = config or BenchConfig()
    found = sources.load(source, root=root)
    allowed = allowance([source], min(config.count, len(found.manifest)), 2, cap=config.cap)
    manifest = found.manifest.select(range(min(allowed.samples, len(found.manifest))))
    set_bytes = sum(found.store.size(path) for path in manifest.paths.to_pylist())
    with memory_folder(4 * set_bytes + _SPARE_BYTES) as folder:
        kind = machine.filesystem(folder).kind
        packed, tree = folder / "set.arrow", folder / "set.files"
        for out in (packed, tree):
            how = PackConfig(verify="none", in_flight=allowed.in_flight)
            pack(replace(found, manifest=manifest), out, how)
        runs = _runs(packed, tree, folder / "to", len(manifest), set_bytes)
        cases = [Case(name, run) for name, run in runs.items()]
        outcomes = interleaved(cases, config.repeats, config.seed, "staging")
    size = (len(manifest), set_bytes)
    records = tuple(_record(name, outcomes[name], kind, size, config.seed) for name in runs)
    return PackResult(records, (allowed.note,) if allowed.note else ())


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
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
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


def _record(name: str, outcomes: list[Outcome], kind: str, size: tuple[int, int], seed: int) -> Record:
    return Record(
        what="staging to memory",
        name=name,
        format=_FORMATS[name],
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=sorted(outcome.seconds for outcome in outcomes)[len(outcomes) // 2],
        filesystem=kind,
        cache="warm",
        touched="every byte read and written",
        set_samples=size[0],
        set_bytes=size[1],
        seed=seed,
        machine=machine.describe(),
        versions=versions_of(("smallfiles", "xxhash", "numpy")),
    )
