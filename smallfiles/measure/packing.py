"""Packing warm data to memory, one process, against plain concatenation and against peers.

Storage is taken out of the question on both sides (source in the page cache, target in memory), so
what remains is the cost of the method. The clock runs from the first open to the published output;
processor time, which threads may have spent on several cores, is told beside it. Each run is a
process of its own; bare runs (no hashing, no reading back) are what the peers do, careful runs are
what `smallfiles pack` does by default. Notebooks 03 to 05 use its records.

The trap: a slow peer on the whole data set would take minutes, so the Jülich HDF5 method is measured
on a few hundred samples; its rate does not depend on how many.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smallfiles import machine
from smallfiles.errors import PackError, UsageError
from smallfiles.formats.output import writing
from smallfiles.measure.child import Task, command
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.methods import methods
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of
from smallfiles.measure.scratch import memory_folder

FORMATS = ("arrow", "hdf5", "tar", "squashfs", "files")
SLOW_SAMPLES = 300
_SLOW = ("Jülich HDF5",)
_SUFFIXES = {"arrow": ".arrow", "hdf5": ".h5", "tar": ".tars", "squashfs": ".sqfs", "files": ".files"}
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "webdataset", "xxhash")
_LIMIT_S = 600
_WHAT = "packing"
_SERIAL = "all methods open one file at a time, as concatenation does (pack would choose by file system)"
_SPARE_BYTES = 64 << 20
_PIECE_BYTES = 4 << 20


def bench_packing(
    source: Path, config: BenchConfig | None = None, *, root: Path | None = None, others: str = ""
) -> Result:
    """Measure packing of a data set in every format, bare and careful, beside concatenation.

    Args:
        source: A folder or a manifest whose files lie in a folder.
        config: Repeats, samples at most, seed.
        root: Where the files of a manifest are, if it does not say.
        others: The module with the methods of others; see `methods`.

    Returns:
        One record a method, with peak memory in `extra`.

    Raises:
        ResourceError: Memory has no room for the output.
        UsageError: The source is an archive, which peers cannot read.
    """
    config = config or BenchConfig()
    set_samples, set_bytes = _measure(source, root)
    tasks = _tasks(source, root, min(config.count, set_samples), others)
    allowed = allowance(
        [source], min(config.count, set_samples), len(tasks) * config.repeats * 2, cap=config.cap
    )
    tasks = [replace(task, samples=min(task.samples, allowed.samples)) for task in tasks]
    room = int(set_bytes * min(1.0, allowed.samples / max(1, set_samples)) * 1.5) + _SPARE_BYTES
    with memory_folder(room) as folder:
        _touch_memory(folder / "touched", room - _SPARE_BYTES)
        kind = machine.filesystem(folder).kind
        cases = [Case(_name(task), _Runner(task, folder), warm_up=False) for task in tasks]
        reasons: dict[str, str] = {}
        outcomes = interleaved(cases, config.repeats, config.seed, "packing", reasons)
    records = tuple(
        _record(task, outcomes[_name(task)], kind, (set_samples, set_bytes), config.seed)
        for task in tasks
        if _name(task) in outcomes
    )
    notes = tuple(note for note in (_SERIAL, allowed.note, _fewer(records)) if note)
    return Result(records, notes, tuple(Failed(_WHAT, name, why) for name, why in reasons.items()))


def _touch_memory(path: Path, size: int) -> None:
    """Write and remove as much as a run will, so that no run is the first to use that memory.

    In a virtual machine memory that was never touched comes from the host page by page: several times
    slower, and paid by whichever method happens to run first.
    """
    piece = bytes(_PIECE_BYTES)
    with writing(path), path.open("wb", buffering=0) as file:
        for _ in range(-(-size // _PIECE_BYTES)):
            file.write(piece)
    path.unlink()


def _fewer(records: Sequence[Record]) -> str:
    """What to say of methods that packed fewer samples than the others."""
    most = max((record.samples for record in records), default=0)
    slow = [f"{record.name} ({record.samples:,})" for record in records if record.samples < most]
    return f"packed fewer than {most:,} samples a run, since it is slow: {', '.join(slow)}" if slow else ""


def _measure(source: Path, root: Path | None) -> tuple[int, int]:
    from smallfiles import sources

    found = sources.load(source, root=root)
    if not hasattr(found.store, "root"):
        raise UsageError(
            f"{source} is an archive",
            expected="a folder of files, or a manifest of one: the methods compared read plain files",
            next_step="Give a folder, or measure without a target",
        )
    store, paths = found.store, found.manifest.paths.to_pylist()
    if not paths:
        raise UsageError(f"{source} is empty", expected="samples to pack", next_step="Give another folder")
    return len(paths), sum(store.size(path) for path in paths)


def _tasks(source: Path, root: Path | None, samples: int, others: str) -> list[Task]:
    where = (str(source.absolute()), None if root is None else str(root.absolute()))
    ours = [
        Task(name, True, careful, *where, out=f"packed{_SUFFIXES[name]}", samples=samples)
        for name in FORMATS
        for careful in (False, True)
    ]
    peers = [
        Task(
            name,
            False,
            False,
            *where,
            out="packed",
            samples=min(samples, SLOW_SAMPLES) if name in _SLOW else samples,
            others=others,
        )
        for name in methods(others)
    ]
    return peers + ours


def _name(task: Task) -> str:
    if not task.ours:
        return task.name
    return f"{task.name}, {'hashed and verified' if task.careful else 'bare'}"


@dataclass(frozen=True)
class _Runner:
    """Runs one task in a new process, in a folder that is emptied afterwards."""

    task: Task
    folder: Path

    def __call__(self) -> Outcome:
        place = self.folder / "run"
        place.mkdir()
        try:
            return self._measured(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _measured(self, place: Path) -> Outcome:
        task = replace(self.task, out=str(place / self.task.out))
        try:
            done = subprocess.run(
                command(task), capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise self._failed(f"did not finish in {_LIMIT_S} s") from None
        if done.returncode:
            lines: Sequence[str] = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise self._failed(lines[-1])
        answer = json.loads(done.stdout)
        costs = {name: answer[name] for name in ("cpu_s", "peak_bytes", "interpreter_bytes", "ready_bytes")}
        return Outcome(int(answer["samples"]), int(answer["bytes"]), float(answer["seconds"]), costs)

    def _failed(self, why: str) -> PackError:
        return PackError(
            f"the measured run of {_name(self.task)} failed: {why}",
            expected="it to pack the data set",
            next_step="Pack with this method by itself to see more",
        )


def _record(task: Task, outcomes: list[Outcome], kind: str, size: tuple[int, int], seed: int) -> Record:
    middle = len(outcomes) // 2
    peak = max(outcome.extra["peak_bytes"] - outcome.extra["interpreter_bytes"] for outcome in outcomes)
    working = max(outcome.extra["peak_bytes"] - outcome.extra["ready_bytes"] for outcome in outcomes)
    return Record(
        what=_WHAT,
        name=_name(task),
        format=task.name,
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=sorted(outcome.seconds for outcome in outcomes)[middle],
        filesystem=kind,
        cache="warm",
        touched="every byte read and written",
        set_samples=size[0],
        set_bytes=size[1],
        seed=seed,
        extra={
            "cpu_s": sorted(outcome.extra["cpu_s"] for outcome in outcomes)[middle],
            "peak_above_interpreter_bytes": peak,
            "peak_above_imports_bytes": working,
        },
        machine=machine.describe(),
        versions=versions_of(_PACKAGES),
    )
