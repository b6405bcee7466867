"""A process for each measured candidate, so that a failure loses only its own case.

Another library may fail at import, in the middle of an epoch, or in processes that it starts; it may abort,
hang, or print a page for each picture. So each runs in its own process group with redirected output and a
time limit, and a failed group is killed as a whole. A job is a function that is sent to the worker; its
`WorkerState` keeps values for the next job.

The traps: children of a worker hold its pipe open, so a killed worker is detected by its state, not by the
end of the pipe. And libraries that start their own threads use further cores, so they do not share a
process. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from smallfiles.errors import SmallfilesError

PATIENCE_S = 300.0
"""Time limit of a start, in which some libraries compile code."""
SAMPLE_S = 0.05
"""Additional time per sample; no loader is as slow."""
_LOOK_S = 0.2
_ENDING_S = 3.0
_LAST_BYTES = 4096
_MAPPING = re.compile(r"^[0-9a-f]+-\S+ \S+ \S+ \S+ \d+ *(.*)\n(?:\w+: .*\n)*?Pss: +(\d+)", re.MULTILINE)
_Kept = TypeVar("_Kept")


class WorkFailed(Exception):
    """A job of a worker failed; the text is the reason."""


@dataclass(frozen=True)
class WorkerState:
    """Values that a worker keeps between jobs.

    Args:
        kept: The values, by any key.
        stack: Closed at the end.
        began_bytes: Memory of the worker before its first job.
    """

    kept: dict[object, Any] = field(default_factory=dict)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    began_bytes: int = 0

    def keep(self, key: object, make: Callable[[], _Kept]) -> _Kept:
        """Return the value of a key. It is made at the first call."""
        if key not in self.kept:
            self.kept[key] = make()
        found: _Kept = self.kept[key]
        return found


Job: TypeAlias = Callable[[WorkerState], Any]
"""Sent to a worker and called there; the result is sent back."""


class Worker:
    """A process that runs one job after another.

    Args:
        context: How the process is started.
    """

    def __init__(self, context: BaseContext) -> None:
        self._pipe, there = context.Pipe()
        self.process: Any = context.Process(target=_begin, args=(there,))  # type: ignore[attr-defined]
        self.process.start()  # no daemon: those may have no children
        there.close()
        self.ended = False

    def send(self, job: Job | None) -> None:
        """Send a job; take its result before sending the next."""
        with contextlib.suppress(OSError):  # it was killed; `answer` raises
            self._pipe.send(job)

    def answer(self, samples: int) -> Any:
        """Wait for the result of the last job.

        Args:
            samples: Number of samples of the job, which decides the time limit.

        Raises:
            WorkFailed: The job failed, was killed or timed out; then the process is ended.
        """
        limit_s = PATIENCE_S + SAMPLE_S * samples
        until_s = monotonic() + limit_s
        try:
            while not self._pipe.poll(_LOOK_S):
                if not self.process.is_alive() and not self._pipe.poll():
                    raise EOFError
                if monotonic() > until_s:
                    self.end(0.0)
                    raise WorkFailed(f"no answer in {limit_s:.0f} s")
            fine, answer = self._pipe.recv()
        except (EOFError, OSError):
            self.end(_LOOK_S)
            raise WorkFailed(f"its process was killed{_by_signal(self.process.exitcode)}") from None
        if not fine:
            raise WorkFailed(answer)
        return answer

    def end(self, within_s: float = _ENDING_S) -> None:
        """End the process and its children."""
        if self.ended:
            return
        self.ended = True
        self.send(None)
        self.process.join(within_s)
        with contextlib.suppress(OSError):  # all are gone
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self._pipe.close()


class WorkerPool:
    """A worker for each key, started at its first job, and again after a failure.

    Args:
        method: How processes are started.
        preload: Modules that `forkserver` imports once for all workers.
        prepare: The first job of each worker.
    """

    def __init__(
        self, method: str = "spawn", preload: tuple[str, ...] = (), prepare: Job | None = None
    ) -> None:
        self._context: Any = multiprocessing.get_context(method)
        if preload:
            self._context.set_forkserver_preload(list(preload))
        self._prepare = prepare
        self.workers: dict[object, Worker] = {}

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers.values():
            worker.end()

    def start(self, *keys: object) -> None:
        """Start the workers of these keys, before any clock runs."""
        for key in keys:
            if key not in self.workers or self.workers[key].ended:
                self.workers[key] = worker = Worker(self._context)
                if self._prepare is not None:
                    worker.send(self._prepare)
                    worker.answer(0)

    def run(self, jobs: Mapping[object, Job], samples: int) -> list[Any]:
        """Run jobs concurrently, each in the worker of its key; the results.

        Raises:
            WorkFailed: A job failed, hung, or its process was killed.
        """
        self.start(*jobs)
        for key, job in jobs.items():
            self.workers[key].send(job)
        answers = [
            self._answer(key, samples) for key in jobs
        ]  # all of them: none may be left for the next run
        for answer in answers:
            if isinstance(answer, WorkFailed):
                raise answer
        return answers

    def _answer(self, key: object, samples: int) -> Any:
        try:
            return self.workers[key].answer(samples)
        except WorkFailed as error:
            return error


def _by_signal(code: int | None) -> str:
    return f" by {signal.Signals(-code).name}" if code is not None and -65 < code < 0 else ""


def _begin(pipe: Connection) -> None:
    """Run jobs until the pipe is closed or sends None."""
    os.setpgid(0, 0)
    apart = os.memfd_create("output") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    os.dup2(apart, 1)
    os.dup2(apart, 2)
    place = WorkerState(began_bytes=status_bytes("VmRSS"))
    with place.stack, contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while (job := pipe.recv()) is not None:
            try:
                answer = True, job(place)
            except Exception as error:  # other libraries raise anything
                answer = False, reason(error)
            pipe.send(answer)


def status_bytes(field: str) -> int:
    """Return a memory value of this process from /proc in bytes, or 0 if it is missing."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def processes_of(pid: int) -> list[int]:
    """Return a process and all processes that it started, directly or not."""
    found = [pid]
    for each in found:  # it grows meanwhile
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, path.read_text(encoding="ascii").split())
    return found


def processor_s(pid: int) -> float:
    """Return the processor time so far of a process and of all that it started, ended ones included."""
    ticks = 0
    for each in processes_of(pid):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{each}/stat").read_text(encoding="utf-8", errors="replace")
            ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int, data: Path) -> int:
    """Return the memory of a process and of all that it started: what no file holds, a shared page once.

    It is the proportional share (PSS, proc_pid_smaps(5)) of heaps, stacks, and shared memory. Libraries and
    the data itself are not in it, because Linux can drop these pages and read them again.

    Args:
        pid: The process.
        data: The folder of the data, which may be in memory.
    """
    total = 0
    for each in processes_of(pid):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{each}/smaps").read_text(encoding="utf-8", errors="replace")
            for path, pss in _MAPPING.findall(text):
                own = not path.startswith("/") or path.startswith(("/dev/shm/", "/memfd:", "/dev/zero"))
                total += int(pss) * 1024 if own and not path.startswith(f"{data}/") else 0
    return total


@contextlib.contextmanager
def peak_of(pid: int, data: Path) -> Iterator[list[int]]:
    """Watch `memory_bytes` during the block, and put the peak into a list."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], memory_bytes(pid, data))
            if done.wait(_LOOK_S):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Measure by how many bytes the peak of memory grows within the `with` block.

    The yielded list gets the number at the end. Unlike tracemalloc, it includes what libraries
    allocate. The peak of `getrusage` may be from before the
    block, even from before exec.
    """
    grown: list[int] = []
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = status_bytes("VmHWM")
    yield grown
    grown.append(status_bytes("VmHWM") - before)


def reason(error: BaseException) -> str:
    """Return the reason of a failure in one line."""
    if isinstance(error, SmallfilesError):
        return error.got
    if isinstance(error, WorkFailed):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def last_words() -> str:
    """Return the last line that this worker printed, to append to a sentence, or an empty text."""
    try:
        size = os.fstat(2).st_size
        lines = os.pread(2, _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace").split("\n")
    except OSError:
        return ""
    found = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its last output: {found[:200]}" if found else ""
