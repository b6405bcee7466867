"""Explain why a worker died, and what to change, when torch reports only that it did.

    signal 9            the system or the scheduler killed it: the memory of the job was used up
    bus error           a page was not available: a mapped file was truncated, or /dev/shm is full (before
                        PyTorch 2.10; since then torch says "unable to allocate shared memory")
    ancdata, too many   every batch in transit is an open file, and their number is limited

The trap: "DataLoader worker (pid 4242) is killed by signal: Killed" names neither, so people lower the
batch size until it works (pytorch#5040, #973). Appendix 12 shows each.
"""

from __future__ import annotations

import re
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

from smallfiles import machine
from smallfiles.errors import ResourceError, SmallfilesError

T = TypeVar("T")

SHM = Path("/dev/shm")

NOTICED_AFTER_S = 2.0
"""Time until torch notices the end of a worker after its connection was cut."""

_CUT_OFF = (ConnectionError, EOFError, FileNotFoundError)
"""What torch raises if a worker died between announcing a batch and sending it."""

_PID = re.compile(r"pid(?:\(s\))? ([\d, ]+)")
_SIGNAL = re.compile(r"killed by signal: ([^.]+)")


class WorkerDiedError(ResourceError):
    """A worker process of a loader died."""


@dataclass(frozen=True)
class WorkerMemory:
    """The workers of a loader and their memory, for messages.

    Args:
        workers: Number of processes.
        prefetch: Batches that each makes ahead.
        batch_bytes: Size of a batch.
        files: The files that are read, with their sizes when the loader was made.
    """

    workers: int
    prefetch: int
    batch_bytes: int
    files: tuple[tuple[Path, int], ...] = ()

    @property
    def ahead_bytes(self) -> int:
        """Shared memory for all batches made ahead, and the one in use."""
        return (self.workers * self.prefetch + 1) * self.batch_bytes


def files_of(path: Path) -> tuple[tuple[Path, int], ...]:
    """List the files of a packed file or folder of shards, with their sizes.

    Args:
        path: Path of a reader. A folder of plain files is not listed, since it may have millions of files and
            none of them is mapped.
    """
    found = [path] if path.is_file() else []
    if path.is_dir() and path.suffix != ".files":
        found = sorted(each for each in path.iterdir() if each.is_file())
    return tuple((each, each.stat().st_size) for each in found)


def explained(call: Callable[[], T], memory: WorkerMemory, workers: Sequence[BaseProcess] = ()) -> T:
    """Call torch, and turn its errors about dead workers and open files into sentences.

    Torch's signal handler raises at any line, even inside the handling of the broken connection. So this is
    no context manager, which has lines outside of its own `try`. And it raises once for each death: where
    that is in a destructor, Python drops the error, and only exit codes tell.

    Args:
        call: A call of torch's loader.
        memory: Of the loader.
        workers: Its processes.

    Returns:
        The result of the call.

    Raises:
        WorkerDiedError: A worker was killed or has ended.
        ResourceError: Too many open files.
    """
    try:
        try:
            return call()
        except _CUT_OFF:
            time.sleep(NOTICED_AFTER_S)
            raise
    except SmallfilesError:
        raise
    except (RuntimeError, OSError, EOFError) as error:
        try:
            found = explain(error, memory, workers)
        except RuntimeError as later:  # about the same death
            found = explain(later, memory, workers)
        if found is None and isinstance(error, _CUT_OFF):
            found = _died(*_killed(workers), memory)
        if found is None:
            raise
        try:
            raise found from error
        finally:
            del found  # or error and frame would keep each other, and the workers, alive


def explain(
    error: BaseException, memory: WorkerMemory, workers: Sequence[BaseProcess] = ()
) -> ResourceError | None:
    """Return the sentence for an error of torch, or None if it is not about workers or open files."""
    text = _summary(error)
    if "ancdata" in text or "Too many open files" in text or "unable to open shared memory" in text:
        return _too_many_files(text)
    if "allocate shared memory" in text or ("shared memory" in text and "DataLoader worker" not in text):
        return ResourceError(
            f"shared memory could not be allocated ({re.findall('.*shared memory.*', text)[0][:200]})",
            expected=f"{_mib(memory.ahead_bytes)} in {SHM} for batches in transit",
            next_step=_LESS_SHM,
        )
    pids = _PID.search(text)
    if "DataLoader worker" not in text or pids is None:
        return None
    name = _SIGNAL.search(text)
    return _died(pids[1], name[1] if name else _killed(workers)[1], memory)


def _killed(workers: Sequence[BaseProcess]) -> tuple[str, str]:
    """Return the number of a process that a signal ended, and the signal as torch names it."""
    for worker in workers:
        if (code := worker.exitcode or 0) < 0:
            return str(worker.pid), signal.strsignal(-code) or str(-code)
    return "unknown", ""


def _summary(error: BaseException) -> str:
    """Join the texts of an error and its causes, since torch may name the signal in any of them."""
    texts, earlier = [str(error)], error.__cause__ or error.__context__
    while earlier is not None and len(texts) < 9:
        texts.append(str(earlier))
        earlier = earlier.__cause__ or earlier.__context__
    return "\n".join(texts)


def check_shared_memory(memory: WorkerMemory) -> None:
    """Refuse settings with which workers would run out of shared memory.

    Raises:
        ResourceError: It has too little free space for the batches made ahead.
    """
    free = machine.filesystem(SHM).free_bytes
    if memory.workers and memory.ahead_bytes > free:
        raise ResourceError(
            f"{SHM} has {_mib(free)} free, and {memory.workers} workers with {memory.prefetch} batches "
            f"ahead need {_mib(memory.ahead_bytes)}",
            expected="room for all batches in transit",
            next_step=_LESS_SHM,
        )


_LESS_SHM = (
    "Use threads (--mode threads), fewer workers, a smaller prefetch or batch; a container gets more with "
    "--shm-size"
)


def _died(pids: str, name: str, memory: WorkerMemory) -> WorkerDiedError:
    how = f"was ended by the signal {name}" if name else "ended without a message"
    expected = "workers that run as long as the loader"
    next_step = "Look for its own message above; try --mode main, where a crash shows the line"
    if name.startswith("Killed"):
        how, limit = "was killed by signal 9", _mib(machine.memory_limit_bytes())
        expected = f"{memory.workers} workers within the memory of this job, {limit} for all its processes"
        next_step = (
            "Unless you killed it yourself, memory was used up: ask for more (--mem), use fewer "
            "workers or a smaller prefetch, or threads (--mode threads)"
        )
    elif name.startswith("Bus error"):
        how, expected, next_step = _bus_error(memory)
    worker = f"a worker of the loader (process {pids.strip(', ')})"
    return WorkerDiedError(f"{worker} {how}", expected=expected, next_step=next_step)


def _bus_error(memory: WorkerMemory) -> tuple[str, str, str]:
    """Return what we got, what was expected, and what to do next after a bus error."""
    for path, before in memory.files:
        now = path.stat().st_size if path.exists() else 0
        if now < before:
            return (
                f"got a bus error: {path} has {now:,} bytes, and had {before:,} when the loader was made",
                "packed files that keep their size while they are read",
                "Copy it again from an intact source or pack it again, and find out what writes to it",
            )
    free = _mib(machine.filesystem(SHM).free_bytes)
    expected = f"{_mib(memory.ahead_bytes)} of shared memory for batches ({SHM} has {free} free now)"
    return "got a bus error", expected, _LESS_SHM


def _too_many_files(text: str) -> ResourceError:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ResourceError(
        f"no more files could be opened for batches in transit ({text.splitlines()[0][:120]})",
        expected=f"fewer than {soft:,} open files, the limit of this process",
        next_step=f"Raise it with: ulimit -n {hard}; keep no batches in lists, since each is an open file; "
        "or call torch.multiprocessing.set_sharing_strategy('file_system')",
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
