"""Processes of their own for what is measured: one loses its case when it fails, and nothing else.

A library of others may fail when it is imported, in the middle of an epoch or in processes that it has
started; it may abort, hang, or print a page for each picture. So each runs in a process group of its own,
whose output is kept aside, and is waited for only so long; a group that failed is ended as a whole. A job
is a function that is sent there; what it keeps in its `WorkerState` is there for the next one.

The traps: processes that a worker has started hold its pipe open, so the end of a worker that was killed
is asked for, not read from the pipe. And libraries that start threads of their own use cores that others
were not given, so those do not share a process. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from smallfiles.errors import SmallfilesError

PATIENCE_S = 120.0
"""What a start may take: a compiler runs in some."""
SAMPLE_S = 0.05
"""What a sample may take on top; no loader is as slow."""
_LOOK_S = 0.2
_ENDING_S = 3.0
_LAST_BYTES = 4096
_Kept = TypeVar("_Kept")


class WorkFailed(Exception):
    """What was asked of a worker failed; the text says why."""


@dataclass(frozen=True)
class WorkerState:
    """What a worker keeps between jobs.

    Args:
        kept: By any key.
        stack: Closed at the end.
        began_bytes: Memory of the worker before it did anything.
    """

    kept: dict[object, Any] = field(default_factory=dict)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    began_bytes: int = 0

    def keep(self, key: object, make: Callable[[], _Kept]) -> _Kept:
        """What is kept under a key, made the first time."""
        if key not in self.kept:
            self.kept[key] = make()
        found: _Kept = self.kept[key]
        return found


Job: TypeAlias = Callable[[WorkerState], Any]
"""Sent to a worker, called there; its answer is sent back."""


class Worker:
    """A process that is sent jobs and answers each.

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
        """Give a job; its answer must be taken before the next."""
        with contextlib.suppress(OSError):  # one that was killed; its answer tells
            self._pipe.send(job)

    def answer(self, samples: int) -> Any:
        """The answer to the last job.

        Args:
            samples: How many it was about, for how long to wait.

        Raises:
            WorkFailed: It failed, or the process was killed or gave no answer; then it is ended.
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
        """End the process and what it has started."""
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
    """A worker for each key, started when there is a job for it, and anew when it was lost.

    Args:
        method: How processes are started.
        preload: Modules that `forkserver` imports once for all of them.
        prepare: A job that each worker does first.
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
        """Have the workers of these keys ready, so that no clock sees their start."""
        for key in keys:
            if key not in self.workers or self.workers[key].ended:
                self.workers[key] = worker = Worker(self._context)
                if self._prepare is not None:
                    worker.send(self._prepare)
                    worker.answer(0)

    def run(self, jobs: Mapping[object, Job], samples: int) -> list[Any]:
        """The answers to jobs that are done side by side, by the workers of their keys.

        Raises:
            WorkFailed: One failed, hung, or its process was killed.
        """
        self.start(*jobs)
        for key, job in jobs.items():
            self.workers[key].send(job)
        answers = [self._answer(key, samples) for key in jobs]  # all of them, or the next run would find one
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
    """Carry out jobs until the pipe is closed or says so."""
    os.setpgid(0, 0)
    apart = os.memfd_create("output") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    os.dup2(apart, 1)
    os.dup2(apart, 2)
    place = WorkerState(began_bytes=status_bytes("VmRSS"))
    with place.stack, contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while (job := pipe.recv()) is not None:
            try:
                answer = True, job(place)
            except Exception as error:  # libraries of others raise anything
                answer = False, reason(error)
            pipe.send(answer)


def status_bytes(field: str) -> int:
    """A memory figure of this process from /proc, in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


@contextlib.contextmanager
def peak_memory() -> Iterator[list[int]]:
    """How many bytes more this process used at most while the block ran, in a list that is filled at its end.

    What libraries allocate is in it, unlike in tracemalloc. The peak of `getrusage` may be from before the
    block, even from before exec.
    """
    grown: list[int] = []
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = status_bytes("VmHWM")
    yield grown
    grown.append(status_bytes("VmHWM") - before)


def reason(error: BaseException) -> str:
    """Why something failed, in one line."""
    if isinstance(error, SmallfilesError):
        return error.got
    if isinstance(error, WorkFailed):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def last_words() -> str:
    """The last line that this worker printed, as an ending of a sentence; empty if it printed nothing."""
    try:
        size = os.fstat(2).st_size
        lines = os.pread(2, _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace").split("\n")
    except OSError:
        return ""
    found = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; it said: {found[:200]}" if found else ""
