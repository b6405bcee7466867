"""One packing run in a process of its own: `python -m smallfiles.measure.child JSON`, result on stdout.

A process of its own starts each run from the same interpreter and has a peak memory that belongs to
this run alone. The source is read once before the clock starts, so that it is warm, into one small
buffer, so that this does not count as memory. The trap: `VmHWM` is the peak since the process
began, imports included; so the memory of the bare interpreter is taken in the first line.
"""

from __future__ import annotations

from pathlib import Path


def _status_bytes(field: str) -> int:
    """A memory figure of this process from /proc, in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


INTERPRETER_BYTES = _status_bytes("VmRSS")

import json  # noqa: E402
import sys  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from time import perf_counter, process_time  # noqa: E402
from typing import Any  # noqa: E402


@dataclass(frozen=True)
class Task:
    """What the parent asks for.

    Args:
        name: One of `methods(others)`, or a format of ours.
        ours: Whether `name` is a format of ours.
        careful: Hash while writing and verify a sample (ours only).
        source: Data set.
        root: Folder of the files, if a manifest does not say.
        out: What to write.
        samples: Samples to pack at most, from the start.
        in_flight: Opens in flight; one, as in the methods that ours are compared with.
        others: The module with the methods of others.
    """

    name: str
    ours: bool
    careful: bool
    source: str
    root: str | None
    out: str
    samples: int
    in_flight: int = 1
    others: str = ""


def run(task: Task) -> dict[str, Any]:
    """Do it and tell seconds, samples, bytes and memory."""
    import pyarrow as pa

    from smallfiles import sources

    root = Path(task.root) if task.root is not None else None
    source = sources.load(Path(task.source), root=root)
    manifest = source.manifest.select(range(min(task.samples, len(source.manifest))))
    total_bytes = _warm(source, manifest)
    work = _ours(task, source, manifest) if task.ours else _peer(task, source, manifest)
    pa.array([0])  # imports pandas where it is installed: a second that no method shall be charged for
    ready_bytes = _status_bytes("VmRSS")
    began, cpu_began = perf_counter(), process_time()
    work()
    seconds, cpu_s = perf_counter() - began, process_time() - cpu_began
    return {
        "samples": len(manifest),
        "bytes": total_bytes,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "peak_bytes": _status_bytes("VmHWM"),
        "interpreter_bytes": INTERPRETER_BYTES,
        "ready_bytes": ready_bytes,
    }


def _warm(source: Any, manifest: Any) -> int:
    buffer = memoryview(bytearray(1 << 20))
    total = 0
    for path in manifest.paths.to_pylist():
        size = source.store.read_into(path, buffer)
        while size > len(buffer):
            buffer = memoryview(bytearray(2 * len(buffer)))
            size = source.store.read_into(path, buffer)
        total += size
    return total


def _ours(task: Task, source: Any, manifest: Any) -> Any:
    import dataclasses

    from smallfiles import formats
    from smallfiles.pack import PackConfig, pack

    formats.get(task.name)
    config = PackConfig(
        format=task.name,
        in_flight=task.in_flight,
        verify="sample" if task.careful else "none",
        check="header" if task.careful else "none",
        digest=task.careful,
    )
    chosen = dataclasses.replace(source, manifest=manifest)
    return lambda: pack(chosen, Path(task.out), config)


def _peer(task: Task, source: Any, manifest: Any) -> Any:
    from smallfiles.measure.methods import imported

    method = imported(task.name, task.others)
    paths = [f"{source.store.root}/{path}" for path in manifest.paths.to_pylist()]
    targets = manifest.targets.to_pylist()
    labels = [max(target, 0) if isinstance(target, int) else 0 for target in targets]
    return lambda: method(paths, labels, Path(task.out))


def command(task: Task) -> list[str]:
    """The command line that runs `task`."""
    return [sys.executable, "-m", "smallfiles.measure.child", json.dumps(asdict(task))]


if __name__ == "__main__":
    from smallfiles.errors import SmallfilesError

    try:
        sys.stdout.write(json.dumps(run(Task(**json.loads(sys.argv[1])))) + "\n")
    except SmallfilesError as error:
        sys.exit(str(error))
