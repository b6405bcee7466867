"""Packing from a slow folder: scripts that wait for each file, our own, and what the mount can serve.

On storage where each look-up and open takes milliseconds, a script that reads one file after the
other is idle nearly all the time. Here such scripts, `pack`, and bare readers that keep as many
files in flight as `pack` does and throw the bytes away, read the same files through one slow mount,
interleaved. The bare readers are the most that packing could reach.

The trap: scripts are measured on a few hundred samples, since they are slow; their rate does not
depend on how many. Notebook 01 shows why they are.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.packing import METHODS, WAITING
from benchmarks.staging import first_of
from smallfiles import slowfs, sources
from smallfiles.errors import UsageError
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench
from smallfiles.measure.methods import concatenate, listed
from smallfiles.measure.packing import SLOW_SAMPLES
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.scratch import memory_folder
from smallfiles.options import option
from smallfiles.pack import PackConfig, pack
from smallfiles.samples import ByteStore
from smallfiles.slowfs import SlowConfig

SERIAL = "serial script"
CEILING = "bare readers"
IN_FLIGHT = 32
_OURS = {"arrow": "packed.arrow", "hdf5": "packed.h5", "tar": "packed.tars"}
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "webdataset", "xxhash")
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class SlowBenchConfig(BenchConfig):
    """How to measure, on how slow a storage."""

    latency_ms: float = option(2.0, "milliseconds of an operation", least=0, metavar="T")


def bench_slow(folder: Path, config: SlowBenchConfig | None = None) -> Result:
    """Measure packing of a folder whose metadata operations take milliseconds.

    Args:
        folder: One sub-folder a class.
        config: Repeats, samples at most, seed, and the storage to imitate.

    Returns:
        One record a method; the bare readers' is the most that the mount serves.

    Raises:
        ResourceError: No folder can be mounted here, or memory has no room for the output.
        UsageError: It is no folder.
    """
    config = config or SlowBenchConfig()
    slow = SlowConfig(latency_s=config.latency_ms / 1e3)
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a folder", expected="a folder to show slowly", next_step="Give one"
        )
    bench = Bench(config, _PACKAGES)
    scripts = {SERIAL: concatenate, **{name: METHODS[name] for name in WAITING}}
    runs = config.repeats * (len(scripts) + len(_OURS) + 1)
    bench.notes.append(f"slow folder: {slow.summary()}; scripts pack {SLOW_SAMPLES} samples at most")
    with slowfs.mounted(folder, slow) as shown:
        source = sources.load(shown.path)
        allowed = bench.allowed([folder], min(config.count, len(source.manifest)), runs)
        chosen, in_flight = first_of(source, allowed.samples), allowed.in_flight or IN_FLIGHT
        with memory_folder(int(1.5 * _sizes(chosen).sum()) + _SPARE_BYTES) as scratch:
            few = first_of(chosen, SLOW_SAMPLES)
            works: dict[str, tuple[sources.Source, Callable[[], object]]] = {
                name: (few, partial(script, *listed(few), scratch / "packed"))
                for name, script in scripts.items()
            }
            paths, largest = chosen.manifest.paths.to_pylist(), int(_sizes(chosen).max()) + 1
            works[CEILING] = (chosen, partial(seconds_to_read, chosen.store, paths, largest, in_flight))
            for name, out in _OURS.items():
                works[name] = (chosen, partial(pack, chosen, scratch / out, PackConfig(in_flight=in_flight)))
            cases = []
            for name, (read, work) in works.items():
                facts = {"in_flight": 1 if name in scripts else in_flight, **dataclasses.asdict(slow)}
                cases.append(Case(name, partial(_timed, work, read, scratch, facts), warm_up=False))
            bench.measure(
                f"packing at {slow.summary()}",
                cases,
                place=shown.path,
                whole=(len(source.manifest), int(_sizes(source).sum())),
                touched="every byte read; written too, except by the bare readers",
                extra=lambda runs: runs[0].extra,
            )
    return bench.result()


def seconds_to_read(store: ByteStore, paths: Sequence[str], largest_bytes: int, in_flight: int) -> float:
    """Seconds of one pass over all files with so many opens in flight.

    Args:
        store: Where the bytes come from.
        paths: Files.
        largest_bytes: Of the largest of them.
        in_flight: Threads; thread n reads files n, n + in_flight and so on.
    """

    def work(number: int) -> None:
        buffer = memoryview(bytearray(max(1, largest_bytes)))
        for path in paths[number::in_flight]:
            store.read_into(path, buffer)

    began = perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(work, range(in_flight)))
    return perf_counter() - began


def _timed(
    work: Callable[[], object], source: sources.Source, scratch: Path, facts: dict[str, object]
) -> Outcome:
    """Seconds of one run, which leaves nothing."""
    began = perf_counter()
    try:
        work()
        seconds = perf_counter() - began
    finally:
        for path in scratch.glob("packed*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return Outcome(len(source.manifest), int(_sizes(source).sum()), seconds, facts)


def _sizes(source: sources.Source) -> np.ndarray:
    sizes = source.manifest.sizes
    return np.zeros(len(source.manifest), np.int64) if sizes is None else sizes
