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
from pathlib import Path
from time import perf_counter

import numpy as np

from smallfiles import machine, slowfs, sources
from smallfiles.errors import UsageError
from smallfiles.manifest import Manifest
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.methods import REFERENCE, Method, methods
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.packing import SLOW_SAMPLES
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of
from smallfiles.measure.scratch import memory_folder
from smallfiles.pack import PackConfig, pack
from smallfiles.samples import ByteStore
from smallfiles.slowfs import SlowConfig, SlowFolder

SERIAL = "serial script"
CEILING = "bare readers"
IN_FLIGHT = 32
_TOO_SLOW = ("Jülich HDF5",)  # it waits for its own Python, not for storage
_OURS = {"arrow": "packed.arrow", "hdf5": "packed.h5", "tar": "packed.tars"}
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "webdataset", "xxhash")
_SPARE_BYTES = 64 << 20


def bench_slow(
    folder: Path, config: BenchConfig | None = None, slow: SlowConfig | None = None, *, others: str = ""
) -> Result:
    """Measure packing of a folder whose metadata operations take milliseconds.

    Args:
        folder: One sub-folder a class.
        config: Repeats, samples at most, seed.
        slow: The storage to imitate.
        others: The module with the scripts of others; see `methods`.

    Returns:
        One record a method; the bare readers' is the most that the mount serves.

    Raises:
        ResourceError: No folder can be mounted here, or memory has no room for the output.
        UsageError: It is no folder.
    """
    config, slow = config or BenchConfig(), slow or SlowConfig()
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", expected="a folder to show slowly", next_step="Give one")
    scripts = {SERIAL if name == REFERENCE else name: each for name, each in methods(others).items()}
    scripts = {name: each for name, each in scripts.items() if name not in _TOO_SLOW}
    runs = config.repeats * (len(scripts) + len(_OURS) + 1)
    with slowfs.mounted(folder, slow) as shown:
        source = sources.load(shown.path)
        allowed = allowance([folder], min(config.count, len(source.manifest)), runs, cap=config.cap)
        chosen = dataclasses.replace(source, manifest=source.manifest.select(range(allowed.samples)))
        room = int(1.5 * _sizes(chosen.manifest).sum()) + _SPARE_BYTES
        with memory_folder(room) as scratch:
            work = _Work(chosen, shown, scratch, allowed.in_flight or IN_FLIGHT, scripts)
            reasons: dict[str, str] = {}
            outcomes = interleaved(
                work.cases(), config.repeats, config.seed, "packing from a slow folder", reasons
            )
        found = machine.filesystem(shown.path)
    size = (len(source.manifest), int(_sizes(source.manifest).sum()))
    records = [
        _record(name, runs_of, slow, 1 if name in scripts else work.in_flight, found.kind, size, config.seed)
        for name, runs_of in outcomes.items()
    ]
    notes = (f"slow folder: {slow.summary()}; scripts pack {SLOW_SAMPLES} samples at most", allowed.note)
    failed = tuple(Failed(f"packing at {slow.summary()}", name, why) for name, why in reasons.items())
    return Result(tuple(records), tuple(note for note in notes if note), failed)


@dataclasses.dataclass(frozen=True)
class _Work:
    """What is measured: each method as a call that times itself and leaves nothing."""

    source: sources.Source
    shown: SlowFolder
    scratch: Path
    in_flight: int
    scripts: dict[str, Method]

    def cases(self) -> list[Case]:
        scripts = [Case(name, self._script(script), warm_up=False) for name, script in self.scripts.items()]
        ours = [Case(name, self._ours(name), warm_up=False) for name in _OURS]
        return [*scripts, Case(CEILING, self._ceiling, warm_up=False), *ours]

    def _script(self, script: Method) -> Callable[[], Outcome]:
        manifest = self.source.manifest.select(range(min(SLOW_SAMPLES, len(self.source.manifest))))
        paths = [f"{self.shown.path}/{path}" for path in manifest.paths.to_pylist()]
        labels = [max(0, label) for label in manifest.targets.to_pylist()]
        out = self.scratch / "packed"
        return lambda: self._timed(lambda: script(paths, labels, out), manifest)

    def _ours(self, name: str) -> Callable[[], Outcome]:
        out, config = self.scratch / _OURS[name], PackConfig(in_flight=self.in_flight)
        return lambda: self._timed(lambda: pack(self.source, out, config), self.source.manifest)

    def _ceiling(self) -> Outcome:
        manifest, store = self.source.manifest, self.source.store
        paths, largest = manifest.paths.to_pylist(), int(_sizes(manifest).max()) + 1
        return self._timed(lambda: seconds_to_read(store, paths, largest, self.in_flight), manifest)

    def _timed(self, work: Callable[[], object], manifest: Manifest) -> Outcome:
        began = perf_counter()
        try:
            work()
            seconds = perf_counter() - began
        finally:
            for path in self.scratch.glob("packed*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return Outcome(len(manifest), int(_sizes(manifest).sum()), seconds)


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


def _sizes(manifest: Manifest) -> np.ndarray:
    return np.zeros(len(manifest), np.int64) if manifest.sizes is None else manifest.sizes


def _record(
    name: str,
    outcomes: Sequence[Outcome],
    slow: SlowConfig,
    in_flight: int,
    kind: str,
    size: tuple[int, int],
    seed: int,
) -> Record:
    return Record(
        what=f"packing at {slow.summary()}",
        name=name,
        format=name,
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=sorted(outcome.seconds for outcome in outcomes)[len(outcomes) // 2],
        filesystem=kind,
        cache="warm",
        touched="every byte read; written too, except by the bare readers",
        set_samples=size[0],
        set_bytes=size[1],
        seed=seed,
        extra={"in_flight": in_flight, **dataclasses.asdict(slow)},
        machine=machine.describe(),
        versions=versions_of(_PACKAGES),
    )
