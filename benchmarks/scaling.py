"""The model beside reality: processes read a slow folder, and `smallfiles.scaling` says how fast they should.

The slow folder works on a few operations at once, each taking some milliseconds, so its capacity is known
whatever this machine can do: with few processes a round trip is the limit, with many the queue.

The trap: a model that was fitted to the run that it explains explains nothing. Here it gets what the folder
was told, how often it was asked per file, and the time of one read without any delay.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter

from smallfiles import slowfs, sources
from smallfiles.measure import BenchConfig, requests
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.options import option
from smallfiles.scaling import Storage, Way, Work, simulate
from smallfiles.slowfs import SlowConfig

_PROCESSES = (1, 2, 4, 8)
_FILES = 60  # of each process
_ENDLESS = 1e15


@dataclass(frozen=True)
class ScalingBenchConfig(BenchConfig):
    """How to measure, on how slow a storage."""

    latency_ms: float = option(5.0, "milliseconds of an operation", least=0.1, metavar="T")
    servers: int = option(4, "operations worked on at once", least=1)


def bench_scaling(folder: Path, config: ScalingBenchConfig | None = None, *, others: str = "") -> Result:
    """Measure processes that read files of a slow folder, and forecast the same.

    Args:
        folder: One sub-folder a class, with some hundred files.
        config: Repeats, seed, and the storage to imitate.
        others: Not used.

    Returns:
        A record for each number of processes; the forecast is in its `extra`.
    """
    config = config or ScalingBenchConfig()
    # Times vary as those of the model do: as much as they last.
    slow = SlowConfig(latency_s=config.latency_ms / 1e3, servers=config.servers, jitter=1.0)
    bench = Bench(config, ("smallfiles", "numpy"))
    paths = sources.load(folder).manifest.paths.to_pylist()[: _FILES * max(_PROCESSES)]
    plain_s = median(_read(folder, paths[:_FILES]) for _ in range(3)) / _FILES
    with slowfs.mounted(folder, slow) as shown:
        root = shown.path
        assert root is not None
        with requests(shown) as counted:
            slow_s = _read(root, paths[:_FILES])
        asked = counted["metadata"] / _FILES
        own_s = max(plain_s, slow_s / _FILES - asked * slow.latency_s)  # the kernel and the mount's process
        cases = [Case(f"{count} at once", partial(_together, root, paths, count)) for count in _PROCESSES]
        size = sum((folder / path).stat().st_size for path in paths)
        bench.measure(
            f"reading files at {slow.summary()}",
            cases,
            place=root,
            whole=(len(paths), size),
            touched="every byte read",
        )
    for record, count in zip(bench.records, _PROCESSES, strict=False):
        forecast = _forecast(count, slow, asked, own_s)
        measured = median(record.rates_per_s)
        record.extra["forecast_per_s"] = forecast
        bench.notes.append(
            f"{record.name}: {measured:,.0f} files/s measured, {forecast:,.0f} forecast "
            f"({forecast / measured - 1:+.0%}), with {asked:.2f} operations per file"
        )
    return bench.result()


def _forecast(processes: int, slow: SlowConfig, asked: float, own_s: float) -> float:
    """Files per second, of GPUs that take no time, so that workers are all there is."""
    servers = slow.servers or 1
    storage = Storage(
        metadata_ops_s=servers / slow.latency_s,
        metadata_threads=servers,
        latency_s=0,
        target_bytes_s=_ENDLESS,
        request_s=0,
        node_bytes_s=_ENDLESS,
    )
    files = 4000 * processes
    work = Work(samples=files, batch=1, gpus=1, workers=processes, prefetch=1000, step_s=0, decode_s=own_s)
    return files / simulate(work, storage, Way(operations=asked, requests=0), 1).epoch_s


def _together(root: Path, paths: Sequence[str], count: int) -> Outcome:
    """Processes that begin at once, each with files of its own."""
    with tempfile.TemporaryDirectory() as scratch, get_context("fork").Pool(count) as pool:
        shares = [paths[number * _FILES : (number + 1) * _FILES] for number in range(count)]
        go = Path(scratch) / "go"
        waiting = [pool.apply_async(_read, (root, share, go)) for share in shares]
        go.touch()
        seconds = max(each.get() for each in waiting)
    return Outcome(_FILES * count, 0, seconds)


def _read(root: Path, paths: Sequence[str], go: Path | None = None) -> float:
    while go is not None and not go.exists():
        pass
    began = perf_counter()
    for path in paths:
        descriptor = os.open(root / path, os.O_RDONLY)
        while os.read(descriptor, 1 << 20):
            pass
        os.close(descriptor)
    return perf_counter() - began
