"""The compared methods of packing; each run has its own process.

Concatenation is the minimum work of any packer, so its rate is the reference on every machine. Other
software is wrapped by a module outside of the toolbox, which is imported in the process of the method:
`METHODS`, functions from paths and labels to one output, and `prepare(name)`, which imports what a method
needs before its clock starts, or raises an error with the command that installs it.

The trap: an import within the clock makes a fast method look slow, and an unused one makes it look large.
So this module imports almost nothing, and each process only what its method needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from smallfiles.measure.workers import WorkerState, status_bytes

if TYPE_CHECKING:
    from smallfiles.sources import Source

Method: TypeAlias = Callable[[Sequence[str], Sequence[int], Path], None]

REFERENCE = "concatenation"


def read_file(path: str) -> bytes:
    """Read all bytes of a file, as a plain script does."""
    with open(path, "rb") as file:  # noqa: PTH123 - making a Path costs as much as a cached open
        return file.read()


def concatenate(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Read each file and append it to one file."""
    with out.open("wb") as target:
        for path in paths:
            target.write(read_file(path))


def methods(others: str = "") -> dict[str, Method]:
    """Return the methods by their names in records.

    Args:
        others: Name of the module with other methods; "" for concatenation only.
    """
    more = importlib.import_module(others).METHODS if others else {}
    return {REFERENCE: concatenate, **more}


def listed(source: Source) -> tuple[list[str], list[int]]:
    """List the paths and labels of a data set of plain files. Captions become 0."""
    paths = [f"{source.store.root}/{path}" for path in source.manifest.paths.to_pylist()]  # type: ignore[attr-defined]
    targets = source.manifest.targets.to_pylist()
    return paths, [max(target, 0) if isinstance(target, int) else 0 for target in targets]


@dataclass(frozen=True)
class Task:
    """One run.

    Args:
        name: One of `methods(others)`, or a format of ours.
        careful: Whether ours hashes while writing and verifies a sample; None for a method.
        source: The data set.
        out: The output.
        samples: Maximum number of samples, from the start.
        others: The module with further methods.
    """

    name: str
    careful: bool | None
    source: Path
    out: Path
    samples: int
    others: str


def packed(task: Task, place: WorkerState) -> dict[str, Any]:
    """Pack warm data in a new process, and return samples, bytes, seconds, and memory.

    Args:
        task: The task.
        place: State of the worker, with the memory of the process before any import.
    """
    import pyarrow as pa

    from smallfiles import sources
    from smallfiles.measure.counting import requests

    source = sources.load(task.source)
    some = source.manifest.select(range(min(task.samples, len(source.manifest))))
    source = replace(source, manifest=some, notes=())
    total_bytes = _warm(source)
    work = _by_method(task, source) if task.careful is None else _by_us(task, source)
    pa.array([0])  # imports pandas if installed: a second that must not count for a method
    with requests(task.source) as asked:
        began, cpu_began = perf_counter(), _cpu_s()
        work()
        seconds, cpu_s, peak_bytes = perf_counter() - began, _cpu_s() - cpu_began, status_bytes("VmHWM")
    costs: dict[str, Any] = {"cpu_s": cpu_s, "peak_above_interpreter_bytes": peak_bytes - place.began_bytes}
    costs |= asked.facts(len(some))
    return {"samples": len(some), "bytes": total_bytes, "seconds": seconds, "extra": costs}


def _cpu_s() -> float:
    """Processor time so far, of this process and of its ended children."""
    spent = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def _warm(source: Source) -> int:
    """Read all samples once, into one buffer, which adds little memory; their bytes."""
    paths = source.manifest.paths.to_pylist()
    buffer = memoryview(bytearray(max(map(source.store.size, paths)) + 1))
    return sum(source.store.read_into(path, buffer) for path in paths)


def _by_us(task: Task, source: Source) -> Callable[[], object]:
    from smallfiles import formats
    from smallfiles.pack import PackConfig, pack

    formats.get(task.name)
    config = PackConfig(
        format=task.name,
        in_flight=1,
        verify="sample" if task.careful else "none",
        check="header" if task.careful else "none",
        digest=bool(task.careful),
    )
    return lambda: pack(source, task.out, config)


def _by_method(task: Task, source: Source) -> Callable[[], object]:
    if task.others and task.name != REFERENCE:
        importlib.import_module(task.others).prepare(task.name)
    method, (paths, labels) = methods(task.others)[task.name], listed(source)
    return lambda: method(paths, labels, task.out)
