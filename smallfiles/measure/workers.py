"""Processes of their own for what is measured: one loses its case when it fails, and nothing else.

A library of others may fail when it is imported, in the middle of an epoch or in processes that it has
started; it may abort, hang, or print a page for each picture. So each runs in a process group of its own,
whose output is kept aside, and is waited for only so long; a group that failed is ended as a whole.

The trap: processes that a worker has started hold its pipe open. So the end of a worker that was killed
is asked for, not read from the pipe. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any, TypeAlias

from smallfiles.errors import SmallfilesError

PATIENCE_S = 120.0
"""What a start may take: a compiler runs in some."""
SAMPLE_S = 0.05
"""What a sample may take on top; no loader is as slow."""
_LOOK_S = 0.2
_ENDING_S = 3.0
_LAST_BYTES = 4096

CarryOut: TypeAlias = Callable[[Any], Any]
"""Does what an order says, and answers."""


class WorkFailed(Exception):
    """What was asked of a worker failed; the text says why."""


class Worker:
    """A process that is sent orders and answers each.

    Args:
        context: How processes are started.
        work: Called in the process with its pipe and `arguments`; calls `serve`.
        *arguments: For `work`.
    """

    def __init__(self, context: BaseContext, work: Callable[..., None], *arguments: Any) -> None:
        self._pipe, there = context.Pipe()
        self.process: Any = context.Process(target=_begin, args=(work, there, *arguments))  # type: ignore[attr-defined]
        self.process.start()  # no daemon: those may have no children
        there.close()
        self.ended = False

    def send(self, order: Any) -> None:
        """Give an order; its answer must be taken before the next."""
        with contextlib.suppress(OSError):  # one that was killed; its answer tells
            self._pipe.send(order)

    def answer(self, samples: int) -> Any:
        """The answer to the last order.

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


def _by_signal(code: int | None) -> str:
    return f" by {signal.Signals(-code).name}" if code is not None and -65 < code < 0 else ""


def _begin(work: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    os.setpgid(0, 0)
    aside = os.memfd_create("output") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    os.dup2(aside, 1)
    os.dup2(aside, 2)
    work(pipe, *arguments)


def serve(pipe: Connection, carry_out: CarryOut) -> None:
    """Carry out orders until the pipe is closed or says so.

    Args:
        pipe: Brings orders, takes answers.
        carry_out: Does what an order says.
    """
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while (order := pipe.recv()) is not None:
            try:
                answer = True, carry_out(order)
            except Exception as error:  # libraries of others raise anything
                answer = False, reason(error)
            pipe.send(answer)


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
