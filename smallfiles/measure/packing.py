"""Packing warm data to memory in one process, compared with plain concatenation and with peers.

The source is in the page cache and the target in memory, so only the cost of the method remains. The
clock runs from the first open to the published output; processor time, which threads may spend on several
cores, is reported too. Each run has its own process; bare runs (no hashing, no reading back) do what the
peers do, careful runs do what `smallfiles pack` does by default. Notebooks 03 to 05 use its records.

The trap: a slow peer would take minutes on the whole data set, so the Jülich HDF5 method is measured
on a few hundred samples; its rate does not depend on their number.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from smallfiles import formats, sources
from smallfiles.errors import UsageError, writing
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench, medians
from smallfiles.measure.methods import Task, methods, packed
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Record, Result
from smallfiles.measure.scratch import memory_folder
from smallfiles.measure.workers import WorkerPool

FORMATS = {name: f"x{suffixes[0]}" for name, suffixes in formats.suffixes().items()}
SLOW_SAMPLES = 300
_SLOW = ("Jülich HDF5",)
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "xxhash")
_SERIAL = "all methods open one file at a time, as concatenation does (pack would choose by file system)"
_SPARE_BYTES = 64 << 20
_PIECE_BYTES = 4 << 20


def bench_packing(source: Path, config: BenchConfig | None = None, *, others: str = "") -> Result:
    """Measure packing of a data set into every format, bare and careful, and concatenation.

    Args:
        source: A folder or a manifest whose files lie in a folder.
        config: Repeats, samples at most, seed.
        others: The module with further methods; see `methods`.

    Returns:
        One record per method, with peak memory in `extra`.

    Raises:
        ResourceError: Memory has no room for the output.
        UsageError: The source is an archive, which peers cannot read.
    """
    config = config or BenchConfig()
    more = importlib.import_module(others).PACKAGES if others else ()
    bench = Bench(config, (*_PACKAGES, *more))
    bench.notes.append(_SERIAL)
    whole = _measure(source)
    wanted = min(config.count, whole[0])
    runs = (len(methods(others)) + 2 * len(FORMATS)) * config.repeats * 2
    allowed = bench.allowed([source], wanted, runs).samples
    room = int(whole[1] * min(1.0, allowed / whole[0]) * 1.5) + _SPARE_BYTES
    with memory_folder(room) as folder:
        _touch_memory(folder / "touched", room - _SPARE_BYTES)
        place = folder / "run"

        def case(name: str, format: str, out: str, careful: bool | None) -> Case:
            samples = min(allowed, SLOW_SAMPLES) if name in _SLOW else allowed
            task = Task(format, careful, source.absolute(), place / out, samples, others)
            return Case(name, partial(_run, task, place), warm_up=False, format=format)

        cases = [case(name, name, "x", None) for name in methods(others)]
        for format, out in FORMATS.items():
            cases.append(case(f"{format}, bare", format, out, False))
            cases.append(case(f"{format}, hashed and verified", format, out, True))
        bench.measure(
            "packing", cases, place=folder, whole=whole, touched="every byte read and written", extra=_costs
        )
    bench.notes += _fewer(bench.records)
    return bench.result()


def _touch_memory(path: Path, size: int) -> None:
    """Write and remove as much as a run will, so that no run is the first to use that memory.

    In a virtual machine the host provides new memory page by page, which makes the first run several
    times slower.
    """
    piece = bytes(_PIECE_BYTES)
    with writing(path), path.open("wb", buffering=0) as file:
        for _ in range(-(-size // _PIECE_BYTES)):
            file.write(piece)
    path.unlink()


def _fewer(records: Sequence[Record]) -> list[str]:
    """Return a note on the methods that packed fewer samples."""
    most = max((record.samples for record in records), default=0)
    slow = [f"{record.name} ({record.samples:,})" for record in records if record.samples < most]
    return (
        [f"packed fewer than {most:,} samples per run, since it is slow: {', '.join(slow)}"] if slow else []
    )


def _measure(path: Path) -> tuple[int, int]:
    source = sources.load(path)
    if not hasattr(source.store, "root"):
        raise UsageError(
            f"{path} is an archive",
            expected="a folder of files, or a manifest of one: the methods compared read plain files",
            next_step="Give a folder, or measure without a target",
        )
    paths = source.manifest.paths.to_pylist()
    if not paths:
        raise UsageError(f"{path} is empty", expected="samples to pack", next_step="Give another folder")
    return len(paths), sum(map(source.store.size, paths))


def _run(task: Task, place: Path) -> Outcome:
    """Run a task in a new process and a new folder, and remove both afterwards."""
    place.mkdir()
    try:
        with WorkerPool() as pool:
            return Outcome(**pool.run({"packing": partial(packed, task)}, task.samples)[0])
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _costs(runs: Sequence[Outcome]) -> Mapping[str, Any]:
    """Return the medians of processor time and requests, and the maximum of the memory."""
    peak = "peak_above_interpreter_bytes"
    return medians(runs) | {peak: max(run.extra[peak] for run in runs)}
