"""Measure loaders: every case once a round, in an order that changes, in processes that do nothing else.

Ours share one process; each loader of others has its own, since their libraries do not like each other's
threads. The clock runs inside, around the epoch.

The trap: loaders that are measured with other pictures, other crops or another number of cores are not
compared. So all read the same samples from the same storage, and a record carries its conditions. Notebook
08 measures with it.
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
from smallfiles.measure.bench import Bench, Target, one_set
from smallfiles.measure.config import LoadBenchConfig
from smallfiles.measure.loading.advice import STAGES
from smallfiles.measure.loading.ours import run_ours, stages_of
from smallfiles.measure.loading.steps import BUSY, Pass
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.workers import Job, WorkerPool, WorkFailed
from smallfiles.samples import Reader

_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "torch", "simplejpeg", "turbojpeg")


@dataclass(frozen=True)
class Candidate:
    """A loader to measure.

    Args:
        name: In records.
        workers: How many make batches.
        job: Runs an epoch in a process for measuring, and gives a `Pass`.
        samples: Of an epoch.
        format: Of what it reads; its name if not given.
        key: Of the process: candidates of one key share it.
        facts: For its record.
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
    """Measure whole epochs of packed files, and where the time of a batch goes.

    Args:
        paths: Packed files with labels; those that hold the same bytes are compared with each other.
        config: How.
        others: The module whose `beside` gives the loaders of others.

    Returns:
        For each kind of pictures and number of workers one record a file and mode, and one a peer that is
        installed; for each file one with the stages of a batch.

    Raises:
        UsageError: Files hold captions, or nothing of the name that is asked for.
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
            f"accelerators are imitated by sleeping {config.step_ms:g} ms a step of {config.batch} samples, "
            "as MLPerf Storage does (this is none of its results); how many are busy "
            f"{BUSY:.0%} of the time is measured, with several numbers of them that take turns at one loader"
        )
    kinds = dict.fromkeys(target.kind for target in found)
    groups = [one_set([target for target in found if target.kind == kind]) for kind in kinds]
    with WorkerPool() as pool:
        for group in groups:
            beside: Any = contextlib.nullcontext([]) if more is None else more.beside(group[0], config, bench)
            with beside as peers:
                _measure(bench, pool, group[0], [*_ours(group, config), *peers], config)
        _measure_stages(bench, pool, groups, config)
    if not bench.records and not bench.failed:
        raise UsageError(
            f"nothing is called {', '.join(config.only)}",
            expected=f"one of {', '.join(sorted(_modes_of(groups[0][0], config)))}",
            next_step="Leave --only out to measure all",
        )
    return bench.result()


def _target(path: Path, most: int) -> Target:
    format = formats.name_of(path, None)
    with contextlib.closing(formats.open(path, format)) as reader:
        samples = min(len(reader), most)
        if not samples or reader.target_kind != "label":
            raise UsageError(
                f"{path} holds {len(reader)} samples with {reader.target_kind}",
                expected="pictures with labels",
                next_step="Pack a data set with labels, or measure reading with: bench read",
            )
        size = sum(reader.size(index) for index in range(samples))
        return Target(path, format, format, samples, size, _kind(reader))


def _kind(reader: Reader) -> str:
    scaled = (reader.info().get("provenance") or {}).get("resize")
    stored = "raw" if bytes(reader.read(0)[:2]) == b"P6" else "JPEG"
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
    """All numbers of workers take part in each round, so that they can be compared with each other."""
    broken: dict[str, str] = {}
    cases = [
        Case(
            f"{each.name} ({what})",
            partial(_run, pool, each, target.bytes, broken),
            warm_up=each.key != "ours",  # ours warms up in each run; others keep their loaders open
            format=each.format,
            workers=each.workers,
            what=what,
        )
        for each in sorted(candidates, key=lambda each: config.workers.index(each.workers))
        for what in [epoch_of(target, config, each.workers)]
    ]
    conditions = {"crop_pixels": config.size, "filter": config.filter, "step_ms": config.step_ms}
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
    """What is measured, in records."""
    return f"epoch of {target.kind}{config.trained}, {workers} workers"


def _run(pool: WorkerPool, each: Candidate, size: int, broken: dict[str, str]) -> Outcome:
    if each.name in broken:  # with other numbers of workers it is not waited for again
        raise WorkFailed(broken[each.name])
    try:
        done: Pass = pool.run({each.key: each.job}, each.samples)[0]
    except WorkFailed as error:
        if each.key != "ours":
            broken[each.name] = str(error)
        raise
    return Outcome(done.samples, size, done.seconds, {"pass": done, "facts": each.facts})


def _waits(runs: Sequence[Outcome]) -> dict[str, float | None]:
    passes: list[Pass] = [run.extra["pass"] for run in runs]
    waits = np.concatenate([done.waits_s for done in passes])
    starts = [done.first_s for done in passes if done.first_s is not None]
    found = {
        "first_batch_s": float(np.median(starts)) if starts else None,
        "wait_p50_s": float(np.percentile(waits, 50)),
        "wait_p99_s": float(np.percentile(waits, 99)),
    }
    if passes[0].busy is not None:
        found["utilisation"] = float(np.median([done.busy for done in passes]))
        found["accelerators"] = float(np.median([done.accelerators for done in passes]))
    return found


def _measure_stages(
    bench: Bench, pool: WorkerPool, groups: Sequence[Sequence[Target]], config: LoadBenchConfig
) -> None:
    """A record a file, with the seconds that each stage of a batch takes."""

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
    """The names of a file in the records of epochs."""
    return {f"{target.name}, {mode}" for mode in config.modes}
