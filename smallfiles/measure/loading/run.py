"""Measure loaders: every case once per round, in changing order, in separate processes.

Ours share one process; each other loader has its own, since the threads of their libraries conflict. The
clock runs in that process, around the epoch.

The trap: loaders cannot be compared with different pictures, crops or numbers of cores. So all read the same
samples from the same storage, and a record contains its conditions. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles import formats
from smallfiles.errors import UsageError
from smallfiles.measure import BUSY, LoadBenchConfig
from smallfiles.measure.bench import Bench, Target, one_set
from smallfiles.measure.loading.ours import run_ours, stages_of
from smallfiles.measure.loading.steps import Pass
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.table import STAGES
from smallfiles.measure.workers import Job, WorkerPool, WorkFailed, peak_of
from smallfiles.samples import Reader

_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "torch", "simplejpeg", "turbojpeg")


@dataclass(frozen=True)
class Candidate:
    """A loader to measure.

    Args:
        name: Its name in records.
        workers: Number of workers.
        job: Runs an epoch in a measuring process, and returns a `Pass`.
        samples: Samples per epoch.
        format: Format that it reads; its name if not given.
        key: Candidates of one key share a process.
        facts: Further facts for its record.
    """

    name: str
    workers: int
    job: Job
    samples: int
    format: str = ""
    key: object = "ours"
    facts: Mapping[str, Any] = field(default_factory=dict)


def bench_loading(
    paths: Sequence[Path], config: LoadBenchConfig | None = None, *, others: str = ""
) -> Result:
    """Measure whole epochs of packed files, and the stages of a batch.

    Args:
        paths: Packed files with labels; those with the same samples are compared with each other.
        config: How to measure.
        others: The module whose function `peers` provides other loaders.

    Returns:
        For each kind of pictures and number of workers one record per file and mode, and one per installed
        peer; for each file one with the stages of a batch.

    Raises:
        UsageError: Files have captions, or no candidate has the requested name.
        FormatError: A file cannot be read.
    """
    config = config or LoadBenchConfig()
    more = importlib.import_module(others) if others else None
    bench = Bench(config, (*_PACKAGES, *(more.PACKAGES if more is not None else ())))
    runs = (config.repeats + 1) * len(config.workers) * len(config.modes) * len(paths)
    allowed = bench.allowed(paths, config.count, runs)
    found = [_target(Path(path), allowed.samples) for path in paths]
    if config.step_s is not None:
        bench.notes.append(
            f"accelerators are emulated by sleeping {config.step_ms:g} ms per step of {config.batch} "
            "samples, as in MLPerf Storage (this is not one of its results); several of them share one "
            f"loader in turn, to measure how many are busy {BUSY:.0%} of the time"
        )
    kinds = dict.fromkeys(target.kind for target in found)
    groups = [one_set([target for target in found if target.kind == kind]) for kind in kinds]
    with WorkerPool() as pool:
        for group in groups:
            others_of: Any = (
                contextlib.nullcontext([]) if more is None else more.peers(group[0], config, bench)
            )
            with others_of as peers:
                _measure(bench, pool, group[0], [*_ours(group, config), *peers], config)
        _measure_stages(bench, pool, groups, config)
    if not bench.records and not bench.failed:
        raise UsageError(
            f"no candidate is called {', '.join(config.only)}",
            expected=f"one of {', '.join(sorted(_modes_of(groups[0][0], config)))}",
            next_step="Leave --only out to measure all",
        )
    return bench.result()


def _target(path: Path, most: int) -> Target:
    format = formats.name_of(path, None)
    with contextlib.closing(formats.open(path, format)) as reader:
        samples = min(len(reader), most)
        if not samples or "label" not in reader.fields:
            raise UsageError(
                f"{path} has {len(reader)} samples with the fields {', '.join(reader.fields)}",
                expected="pictures with labels",
                next_step="Pack a data set with labels, or measure reading with: bench read",
            )
        size = sum(reader.size(index) for index in range(samples))
        return Target(path, format, format, samples, size, _kind(reader))


def _kind(reader: Reader) -> str:
    scaled = (reader.info().get("provenance") or {}).get("resize")
    stored = "JPEG" if (scaled or {}).get("store", "jpeg") == "jpeg" else "raw"
    return f"{stored} scaled to {scaled.get('short_side')} ahead" if isinstance(scaled, dict) else stored


def _ours(group: Sequence[Target], config: LoadBenchConfig) -> list[Candidate]:
    return [
        Candidate(
            name, workers, partial(run_ours, target, mode, workers, config), target.samples, target.format
        )
        for workers in config.workers
        for target in group
        for mode in config.modes
        if (name := f"{target.name}, {mode}") in config.only or not config.only
    ]


def _measure(
    bench: Bench,
    pool: WorkerPool,
    target: Target,
    candidates: Sequence[Candidate],
    config: LoadBenchConfig,
) -> None:
    """Measure all candidates. Each round includes all numbers of workers, so that they can be compared."""
    broken, memory = dict[str, str](), dict[str, int]()
    cases = [
        Case(
            f"{each.name} ({what})",
            partial(_run, pool, each, target, broken, memory),
            warm_up=each.key != "ours",  # ours warms up in each run; other loaders stay open
            format=each.format,
            workers=each.workers,
            what=what,
        )
        for each in sorted(candidates, key=lambda each: config.workers.index(each.workers))
        for what in [epoch_of(target, config, each.workers)]
    ]
    conditions = {"crop_pixels": config.size, "filter": "antialias", "step_ms": config.step_ms}
    bench.measure(
        f"epoch of {target.kind}{config.trained}",
        cases,
        place=target.path,
        whole=(target.samples, target.bytes),
        touched="every batch handed to the trainer",
        batch=config.batch,
        extra=lambda runs: {**_waits(runs), **conditions, **runs[0].extra["facts"]},
    )


def epoch_of(target: Target, config: LoadBenchConfig, workers: int) -> str:
    """Return the name of the operation for records."""
    return f"epoch of {target.kind}{config.trained}, {workers} workers"


def _run(
    pool: WorkerPool, each: Candidate, target: Target, broken: dict[str, str], memory: dict[str, int]
) -> Outcome:
    if each.name in broken:  # not tried again with other numbers of workers
        raise WorkFailed(broken[each.name])
    try:
        done = _watched(pool, each, target.path.parent, memory)
    except WorkFailed as error:
        if each.key != "ours":
            broken[each.name] = str(error)
        raise
    facts = {**each.facts, "memory_bytes": memory[f"{each.name}/{each.workers}"]}
    return Outcome(done.samples, target.bytes, done.seconds, {"pass": done, "facts": facts})


def _watched(pool: WorkerPool, each: Candidate, data: Path, memory: dict[str, int]) -> Pass:
    """Run a candidate. In its first run, also watch its memory, in a process that no other has used."""
    name = f"{each.name}/{each.workers}"
    if name in memory:
        return pool.run({each.key: each.job}, each.samples)[0]  # type: ignore[no-any-return]
    with WorkerPool() if each.key == "ours" else contextlib.nullcontext(pool) as own:
        own.start(each.key)
        with peak_of(own.workers[each.key].process.pid, data) as peak:
            done: Pass = own.run({each.key: each.job}, each.samples)[0]
    memory[name] = peak[0]
    return done


def _waits(runs: Sequence[Outcome]) -> dict[str, float | None]:
    passes: list[Pass] = [run.extra["pass"] for run in runs]
    waits = np.concatenate([done.waits_s for done in passes])
    starts = [done.first_s for done in passes if done.first_s is not None]
    found = {
        "first_batch_s": float(np.median(starts)) if starts else None,
        "wait_p50_s": float(np.percentile(waits, 50)),
        "wait_p99_s": float(np.percentile(waits, 99)),
        "cpu_s": float(np.median([done.cpu_s for done in passes])),
    }
    if passes[0].busy is not None:
        found["utilisation"] = float(np.median([done.busy for done in passes]))
        found["accelerators"] = float(np.median([done.accelerators for done in passes]))
    return found


def _measure_stages(
    bench: Bench, pool: WorkerPool, groups: Sequence[Sequence[Target]], config: LoadBenchConfig
) -> None:
    """Make a record per file, with the seconds of each stage of a batch."""

    def run(target: Target) -> Outcome:
        (stages,) = pool.run({"ours": partial(stages_of, target, config)}, target.samples)
        made_s = sum(stages[f"{stage}_s"] for stage in ("read", "decode", "augment", "collate"))
        batch = min(config.batch, target.samples)
        return Outcome(batch, target.bytes * batch // target.samples, made_s, stages)

    for group in groups:
        wanted = [each for each in group if not config.only or _modes_of(each, config) & set(config.only)]
        bench.measure(
            STAGES,
            [
                Case(f"{each.name}, {each.kind}", partial(run, each), warm_up=False, format=each.format)
                for each in wanted
            ],
            place=group[0].path,
            whole=(group[0].samples, group[0].bytes),
            touched="every page read, every picture decoded",
            batch=config.batch,
        )


def _modes_of(target: Target, config: LoadBenchConfig) -> set[str]:
    """Return the names that a file has in the records of epochs."""
    return {f"{target.name}, {mode}" for mode in config.modes}
