"""Run a participant's code in a forked child, as a DataLoader does, without being hurt by it.

Functions of a notebook cannot be sent to a spawned process, since it cannot import the notebook, so the
child is forked. The traps: a forked child that goes on after its work would run the rest of the kernel a
second time, so it leaves by `os._exit`; and what it starts itself has to end with it, so it has a process
group of its own. Exercises 04, 06 and 07 use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

_LIMIT_S = 8.0
_POLL_S = 0.001
_write, _exit = os.write, os._exit  # exercise 07 replaces the first in its children


class Child:
    """A forked child that runs `work` at once, and reports what it returns, if JSON can hold it."""

    code: int | None = None  # its exit code, once it has ended

    def __init__(self, work: Callable[[], Any]) -> None:
        self._receiver, sender = os.pipe()
        self._text = b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a kernel has threads; the child uses none
            self.pid = os.fork()
        if self.pid == 0:
            _work_and_leave(work, sender)
        os.close(sender)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    def report(self, limit_s: float = _LIMIT_S) -> Any:
        """What `work` returned, `{"error": …}` if it raised; None if nothing came in this time."""
        end = time.monotonic() + limit_s
        while select.select([self._receiver], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(self._receiver, 1 << 16)
            if not part:
                return json.loads(self._text) if self._text else None
            self._text += part
        return None

    def caught(self, begun: Callable[[], bool]) -> bool:
        """Whether it is stopped now in the middle of its work: by itself, or by us when it has `begun`."""
        end = time.monotonic() + _LIMIT_S
        while not self._stopped() and self.code is None and time.monotonic() < end:
            if begun():
                time.sleep(20 * _POLL_S)  # it stops itself a little later, if it can
                self.send(signal.SIGSTOP)
            time.sleep(_POLL_S)
        return self.code is None and not select.select([self._receiver], [], [], 0)[0]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def ended(self, limit_s: float = _LIMIT_S) -> bool:
        """Whether it ended in this time."""
        end = time.monotonic() + limit_s
        while self.code is None and time.monotonic() < end:
            self._stopped()
            time.sleep(_POLL_S)
        return self.code is not None

    def close(self) -> None:
        """End it, whatever it does."""
        self.send(signal.SIGKILL)
        self.ended()
        os.close(self._receiver)

    def _stopped(self) -> bool:
        """Whether it is newly stopped; notes its exit code if it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED) if self.code is None else (0, 0)
        if pid and not os.WIFSTOPPED(status):
            self.code = os.waitstatus_to_exitcode(status)
        return bool(pid) and os.WIFSTOPPED(status)


def child(work: Callable[[], Any]) -> AbstractContextManager[Child]:
    """A child that does not outlive the block."""
    return contextlib.closing(Child(work))


def in_worker(work: Callable[[], Any], limit_s: float = 5.0) -> Any:
    """What `work` returns in a child, `{"error": …}` if it raised, None if it died or took longer."""
    with child(work) as one:
        return one.report(limit_s)


def offsets_of(path: Path) -> dict[str, int]:
    """Where the offset of each descriptor of a file is in this process; `pread` does not move it."""
    found, wanted = {}, str(path.resolve())
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is gone by now
            if str(link.readlink()) == wanted:
                lines = Path(f"/proc/self/fdinfo/{link.name}").read_text(encoding="ascii").splitlines()
                found[link.name] = int(lines[0].split()[1])
    return found


def _work_and_leave(work: Callable[[], Any], sender: int) -> None:
    try:
        os.setpgid(0, 0)
        answer = work()
    except BaseException as error:  # nothing may go on in this copy of the kernel
        answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    try:
        _write(sender, json.dumps(answer).encode())
    finally:
        _exit(answer.get("code", 0) if isinstance(answer, dict) else 0)
