"""Compare the answer of `smallfiles advise` with epochs that are measured on the same storage.

The data set is packed twice beside itself, as plain files and as one Arrow file, so that all of it lies on
one storage. `--latency-ms` puts a slow folder before it. `advise` measures the plain files and forecasts the
epochs of a training on this node. Then a loader with as many workers reads both, cold, and a sleep stands for
the step.

The trap: a warm epoch of a small set comes from memory, and then plain files look fine on any storage. So
pages are dropped before each epoch. Samples are not decoded, since that costs the same for both.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

from smallfiles import slowfs, sources
from smallfiles.advise import advise, measure_folder
from smallfiles.errors import ResourceError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.measure import BenchConfig, requests
from smallfiles.measure.bench import Bench
from smallfiles.measure.cache import drop, files_of
from smallfiles.measure.counting import CALLS
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.scratch import private_folder
from smallfiles.options import option
from smallfiles.pack import pack
from smallfiles.scaling import TrainingPlan
from smallfiles.slowfs import SlowConfig, SlowFolder

PLAN = TrainingPlan(gpus=1, batch=32, step_s=0.2, workers=2)
SETS = {"plain files": "x.files", "packed": "x.arrow"}
WAYS = {"plain files": "files", "packed": "packed"}


@dataclass(frozen=True)
class AdviceBenchConfig(BenchConfig):
    """How to measure, on how slow a storage."""

    latency_ms: float = option(0.0, "milliseconds of an operation of a slow folder", least=0, metavar="T")


def bench_advice(source: Path, config: AdviceBenchConfig | None = None) -> Result:
    """Measure epochs of plain files and of a packed file, beside what `advise` says about the files.

    Args:
        source: A data set; its storage, or the slow folder before it, is what `advise` measures.
        config: Rounds, and the storage to imitate.

    Returns:
        A record of the epoch of each. In `extra`: the advised way, the forecast rate, the time that a file
        took, and the counted requests per 1,000 samples of an epoch.

    Raises:
        ResourceError: No slow folder can be mounted here.
    """
    config = config or AdviceBenchConfig()
    bench = Bench(config, ("smallfiles", "torch", "pyarrow", "numpy"))
    with ExitStack() as stack:
        home = stack.enter_context(private_folder(source.parent, "smallfiles-advice-"))
        for name in SETS.values():
            pack(sources.load(source), home / name)
        drop(files_of(home))
        storage: SlowFolder | Path = home
        if config.latency_ms:
            slow = SlowConfig(latency_s=config.latency_ms / 1e3)
            storage = stack.enter_context(slowfs.mounted(home, slow))
            bench.notes.append(f"slow folder: {slow.summary()}")
        found = replace(measure_folder(storage / SETS["plain files"]), decode_s=0.0)
        advice = advise(found, PLAN, str(source))
        bench.notes.append(f"advised: {advice.way}; one file takes {1e3 * found.alone_s:.2g} ms")
        cases = [
            Case(name, partial(_epoch, storage, home, SETS[name], found.sample_bytes), format=name)
            for name in SETS
        ]
        bench.measure(
            f"an epoch with {PLAN.workers} workers and a step of {1e3 * PLAN.step_s:.0f} ms",
            cases,
            place=storage / "",
            whole=(found.samples, found.samples * found.sample_bytes),
            touched="every byte is sent to the training process",
            cache="cold",
            batch=PLAN.batch,
        )
    for record in bench.records:
        forecast = advice.forecasts[WAYS[record.name]]
        rate = found.samples / forecast.epoch_s
        record.extra.update(advised=advice.way, forecast_per_s=rate, file_s=found.alone_s, kind=found.kind)
        bench.notes.append(f"{record.name}: {record.spread.median:.0f} samples/s, {rate:.0f} forecast")
    return bench.result()


def _epoch(storage: SlowFolder | Path, home: Path, name: str, sample_bytes: int) -> Outcome:
    """Read one epoch; the clock starts with the first batch, when all workers run."""
    drop(files_of(home / name), clean=True)
    with suppress(ResourceError, OSError):  # a mount without a cache
        drop(files_of(storage / name), clean=True)
    loader = make_loader(
        storage / name, LoaderConfig(mode="processes", workers=2, batch=PLAN.batch), transform=None
    )
    with requests(storage) as asked:
        epoch, seen, began = iter(loader), 0, 0.0
        for batch in epoch:
            began = began or perf_counter()
            seen += len(batch["index"])
            sleep(PLAN.step_s)
    seconds = perf_counter() - began
    calls = asked.unit == CALLS  # of this process, and not of the workers
    return Outcome(seen, seen * sample_bytes, seconds, {} if calls else asked.facts(seen))
