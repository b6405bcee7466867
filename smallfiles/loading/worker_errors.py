"""Say why a worker died, and what to change, where torch says that it did.

    signal 9            the system or the scheduler killed it: the memory of the job was used up
    bus error           a page could not be had: /dev/shm is full, or somebody cut a mapped file
    ancdata, too many   every batch on its way is an open file, and their number is limited

The trap: "DataLoader worker (pid 4242) is killed by signal: Killed" names neither, so people lower the
batch size until it works (pytorch#5040, #973). Appendix 12 shows each.
"""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from smallfiles import machine
from smallfiles.errors import ResourceError, SmallfilesError

T = TypeVar("T")

SHM = Path("/dev/shm")

NOTICED_AFTER_S = 2.0
"""So long the end of a worker may take to be noticed after its connection was cut."""

_CUT_OFF = (ConnectionError, EOFError, FileNotFoundError)
"""What torch raises where a worker died between telling of a batch and handing it over."""

_PID = re.compile(r"pid(?:\(s\))? ([\d, ]+)")
_SIGNAL = re.compile(r"killed by signal: ([^.]+)")


class WorkerDiedError(ResourceError):
    """A process that made batches is gone."""


@dataclass(frozen=True)
class WorkerMemory:
    """What a loader has at work, for messages.

    Args:
        workers: Processes.
        prefetch: Batches that each makes ahead.
        batch_bytes: Size of a batch.
        files: What is read, and how many bytes it had before.
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
    """The files that a packed file or folder of shards consists of, and their sizes.

    Args:
        path: Of a reader; plain files, of which there may be millions, are not mapped and not listed.
    """
    found = [path] if path.is_file() else []
    if path.is_dir() and path.suffix != ".files":
        found = sorted(each for each in path.iterdir() if each.is_file())
    return tuple((each, each.stat().st_size) for each in found)


def explained(call: Callable[[], T], memory: WorkerMemory) -> T:
    """Call torch, and turn what it says about dead workers and lost files into sentences.

    Torch tells of a death wherever its handler of signals comes in between, also amid the error of the
    connection that broke. So this is no `with`: the lines of one are outside of its own `try`.

    Args:
        call: Of torch's loader.
        memory: Of the loader.

    Returns:
        What the call returns.

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
            found = explain(error, memory)
        except RuntimeError as later:  # of the same death
            found = explain(later, memory)
        if found is None and isinstance(error, _CUT_OFF):
            found = _died("unknown", "", memory)
        if found is None:
            raise
        try:
            raise found from error
        finally:
            del found  # or error and frame would keep each other, and the workers, alive


def explain(error: BaseException, memory: WorkerMemory) -> ResourceError | None:
    """The sentence for an error of torch's; None for one that is not about workers or open files."""
    text = _summary(error)
    if "ancdata" in text or "Too many open files" in text or "unable to open shared memory" in text:
        return _files(text)
    if "shared memory" in text and "DataLoader worker" not in text:
        return ResourceError(
            f"shared memory could not be had ({text.splitlines()[0][:200]})",
            expected=f"{_mib(memory.ahead_bytes)} in {SHM} for batches on their way",
            next_step=_LESS_SHM,
        )
    pids = _PID.search(text)
    if "DataLoader worker" not in text or pids is None:
        return None
    signal = _SIGNAL.search(text)
    return _died(pids[1], signal[1] if signal else "", memory)


def _summary(error: BaseException) -> str:
    """What an error says, and those before it: torch tells the signal in one and hides it behind another."""
    texts, earlier = [str(error)], error.__cause__ or error.__context__
    while earlier is not None and len(texts) < 9:
        texts.append(str(earlier))
        earlier = earlier.__cause__ or earlier.__context__
    return "\n".join(texts)


def check_shared_memory(memory: WorkerMemory, folder: Path = SHM) -> None:
    """Refuse before the start what would end in a bus error.

    Args:
        memory: What will be at work.
        folder: Where shared memory lies.

    Raises:
        ResourceError: It has not enough free space for the batches made ahead.
    """
    free = machine.filesystem(folder).free_bytes
    if memory.workers and memory.ahead_bytes > free:
        raise ResourceError(
            f"{folder} has {_mib(free)} free, and {memory.workers} workers with {memory.prefetch} batches "
            f"ahead need {_mib(memory.ahead_bytes)}",
            expected="room for all batches on their way",
            next_step=_LESS_SHM,
        )


_LESS_SHM = (
    "Use threads (--mode threads), fewer workers, a smaller prefetch or batch; a container gets more with "
    "--shm-size"
)


def _died(pids: str, signal: str, memory: WorkerMemory) -> WorkerDiedError:
    how = f"was ended by the signal {signal}" if signal else "ended without a word"
    expected = "workers that live as long as the loader"
    next_step = "Look for its own message above; try --mode main, where a crash shows its place"
    if signal.startswith("Killed"):
        how, limit = "was killed by signal 9", _mib(machine.memory_limit_bytes())
        expected = f"{memory.workers} workers within the memory of this job, {limit} for all its processes"
        next_step = (
            "If nobody killed it by hand, memory was used up: ask for more (--mem), use fewer "
            "workers or a smaller prefetch, or threads (--mode threads)"
        )
    elif signal.startswith("Bus error"):
        how, expected, next_step = _bus_error(memory)
    who = f"a worker of the loader (process {pids.strip(', ')})"
    return WorkerDiedError(f"{who} {how}", expected=expected, next_step=next_step)


def _bus_error(memory: WorkerMemory) -> tuple[str, str, str]:
    """What came, what was expected, and what to do."""
    for path, before in memory.files:
        now = path.stat().st_size if path.exists() else 0
        if now < before:
            return (
                f"got a bus error: {path} has {now:,} bytes, and had {before:,} when the loader was made",
                "packed files that nobody shortens while they are read",
                "Copy it again from where it is whole, or pack it again, and see who writes to it",
            )
    free = _mib(machine.filesystem(SHM).free_bytes)
    expected = f"{_mib(memory.ahead_bytes)} of shared memory for batches ({SHM} has {free} free now)"
    return "got a bus error", expected, _LESS_SHM


def _files(text: str) -> ResourceError:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ResourceError(
        f"no more files could be opened for batches on their way ({text.splitlines()[0][:120]})",
        expected=f"fewer than {soft:,} open files, the limit of this process",
        next_step=f"Raise it with: ulimit -n {hard}; keep no batches in lists, since each is an open file; "
        "or call torch.multiprocessing.set_sharing_strategy('file_system')",
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
