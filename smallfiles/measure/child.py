"""One packing run, in a process of its own that was started for it.

So each run starts from the same interpreter and has a peak memory that belongs to this run alone. The
source is read once before the clock starts, so that it is warm, into one small buffer, so that this does
not count as memory. The trap: `VmHWM` is the peak since the process began, imports included; so the memory
of the bare interpreter is taken before anything is imported, and this module imports next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from smallfiles.measure import workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from smallfiles.sources import Source


@dataclass(frozen=True)
class Task:
    """What the parent asks for.

    Args:
        name: One of `methods(others)`, or a format of ours.
        careful: Whether ours hashes while writing and verifies a sample; None for a method.
        source: Data set.
        out: What to write.
        samples: Samples to pack at most, from the start.
        others: The module with the methods of others.
    """

    name: str
    careful: bool | None
    source: Path
    out: Path
    samples: int
    others: str = ""


def serve(pipe: Connection) -> None:
    """Carry out tasks that come through a pipe."""
    workers.serve(pipe, partial(run, interpreter_bytes=_status_bytes("VmRSS")))


def run(task: Task, interpreter_bytes: int) -> dict[str, Any]:
    """Do it and tell seconds, samples, bytes and memory."""
    import pyarrow as pa

    from smallfiles import sources

    source = sources.load(task.source)
    source = replace(source, manifest=source.manifest.select(range(min(task.samples, len(source.manifest)))))
    total_bytes = _warm(source)
    work = _method(task, source) if task.careful is None else _ours(task, source, task.careful)
    pa.array([0])  # imports pandas where it is installed: a second that no method shall be charged for
    ready_bytes = _status_bytes("VmRSS")
    began, cpu_began = perf_counter(), process_time()
    work()
    seconds, cpu_s, peak_bytes = perf_counter() - began, process_time() - cpu_began, _status_bytes("VmHWM")
    return {
        "samples": len(source.manifest),
        "bytes": total_bytes,
        "seconds": seconds,
        "extra": {
            "cpu_s": cpu_s,
            "peak_above_interpreter_bytes": peak_bytes - interpreter_bytes,
            "peak_above_imports_bytes": peak_bytes - ready_bytes,
        },
    }


def _status_bytes(field: str) -> int:
    """A memory figure of this process from /proc, in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _warm(source: Source) -> int:
    """Read all samples once; their bytes."""
    buffer = memoryview(bytearray(1 << 20))
    total = 0
    for path in source.manifest.paths.to_pylist():
        size = source.store.read_into(path, buffer)
        while size > len(buffer):
            buffer = memoryview(bytearray(2 * len(buffer)))
            size = source.store.read_into(path, buffer)
        total += size
    return total


def _ours(task: Task, source: Source, careful: bool) -> Callable[[], object]:
    from smallfiles import formats
    from smallfiles.pack import PackConfig, pack

    formats.get(task.name)
    verify, check = ("sample", "header") if careful else ("none", "none")
    config = PackConfig(format=task.name, in_flight=1, verify=verify, check=check, digest=careful)  # type: ignore[arg-type]
    return lambda: pack(source, task.out, config)


def _method(task: Task, source: Source) -> Callable[[], object]:
    from smallfiles.measure.methods import imported, listed

    method, (paths, labels) = imported(task.name, task.others), listed(source)
    return lambda: method(paths, labels, task.out)
