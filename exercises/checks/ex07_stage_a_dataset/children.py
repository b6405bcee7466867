"""Children that run the participant's function: asked for a report, stopped in the middle, ended.

A child is forked, since functions of a notebook cannot be sent elsewhere, and it leaves by `os._exit`,
or the rest of the kernel would run a second time. It has a process group of its own, so that a copying
command that it started is stopped with it. Exercise 07.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import json
import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from exercises.checks.attempt import line_of
from exercises.checks.ex07_stage_a_dataset import moved

LIMIT_S = 8.0
_POLL_S = 0.001
_NEW_MOUNTS, _NEW_USER = 0x0002_0000, 0x1000_0000  # sched.h
_write, _exit = os.write, os._exit


class Child:
    """A forked child that calls `answer(src, folder)` at once.

    Args:
        answer: The participant's function.
        src: What it shall copy.
        folder: Where to.
        stop_at: It stops itself when it has written so many bytes.
        prepare: Run first in the child, to make its disk small for example; if it returns False,
            the child ends and reports nothing.
    """

    def __init__(
        self,
        answer: Callable[[Path, Path], Any],
        src: Path,
        folder: Path,
        *,
        stop_at: int | None = None,
        prepare: Callable[[], bool] | None = None,
    ) -> None:
        self._receiver, sender = os.pipe()
        self._folder, self._text, self.code = folder, b"", None
        self._before = set(listing(folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a kernel has threads; the child uses none
            self.pid = os.fork()
        if self.pid == 0:
            _run(answer, src, folder, sender, stop_at, prepare)
        os.close(sender)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    code: int | None

    def report(self, limit_s: float = LIMIT_S) -> dict[str, Any] | None:
        """What it says of its call; None if it said nothing in this time, or ended without a word."""
        end = time.monotonic() + limit_s
        while select.select([self._receiver], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(self._receiver, 1 << 16)
            if not part:
                return dict(json.loads(self._text)) if self._text else None
            self._text += part
        return None

    def caught(self) -> bool:
        """Whether it is stopped now in the middle of its copy, by itself or by us."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if self._wait(os.WUNTRACED) or self.code is not None:
                return self.code is None
            if any(size for name, size in listing(self._folder).items() if name not in self._before):
                time.sleep(20 * _POLL_S)  # it stops itself a little later, if its calls are ones that we know
                if self._wait(os.WUNTRACED) or self.code is not None:
                    return self.code is None
                self.send(signal.SIGSTOP)
                while not self._wait(os.WUNTRACED) and self.code is None:
                    time.sleep(_POLL_S)
                return self.code is None and not select.select([self._receiver], [], [], 0)[0]
            time.sleep(_POLL_S)
        return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def ended(self, limit_s: float = LIMIT_S) -> bool:
        """Whether it ended in this time; `code` is then its exit code."""
        end = time.monotonic() + limit_s
        while self.code is None and time.monotonic() < end:
            self._wait(0)
            time.sleep(_POLL_S)
        return self.code is not None

    def close(self) -> None:
        """End it, whatever it does."""
        self.send(signal.SIGKILL)
        self.ended()
        os.close(self._receiver)

    def _wait(self, flags: int) -> bool:
        """Whether it is newly stopped; notes its exit code if it has ended."""
        if self.code is not None:
            return False
        pid, status = os.waitpid(self.pid, os.WNOHANG | flags)
        if pid and not os.WIFSTOPPED(status):
            self.code = os.waitstatus_to_exitcode(status)
        return bool(pid) and os.WIFSTOPPED(status)


@contextlib.contextmanager
def child(answer: Callable[[Path, Path], Any], src: Path, folder: Path, **how: Any) -> Iterator[Child]:
    """A child that does not outlive the block; arguments as for `Child`."""
    made = Child(answer, src, folder, **how)
    try:
        yield made
    finally:
        made.close()


def listing(folder: Path) -> dict[str, int]:
    """Size of each file in a folder by relative name; links count as nothing."""
    found = {}
    for path in folder.rglob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # it may go while we look
            if path.is_file():
                found[str(path.relative_to(folder))] = 0 if path.is_symlink() else path.lstat().st_size
    return found


def digest(path: Path) -> str:
    """What tells one content from another; empty if there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def small_disk(point: Path, size_bytes: int) -> Callable[[], bool]:
    """Makes `point` a real, small file system that only the child sees; False where that is not allowed."""

    def prepare() -> bool:
        libc, user, group = ctypes.CDLL(None), os.geteuid(), os.getegid()
        if libc.unshare(_NEW_USER | _NEW_MOUNTS):
            return False
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        except OSError:
            return False
        options = f"size={size_bytes},mode=700".encode()
        return not libc.mount(b"smallfiles", os.fsencode(point), b"tmpfs", 0, options)

    return prepare


def small_files(size_bytes: int) -> Callable[[], bool]:
    """Lets no file of the child grow beyond a size: where no small disk is to be had."""

    def prepare() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return True

    return prepare


def _run(
    answer: Callable[[Path, Path], Any],
    src: Path,
    folder: Path,
    sender: int,
    stop_at: int | None,
    prepare: Callable[[], bool] | None,
) -> None:
    """What the child does; never returns."""
    code = 1
    try:
        _settle()
        if prepare is None or prepare():
            if stop_at is not None:
                moved.install(moved.Meter(stop_at))
            told, code = _called(answer, src, folder)
            getattr(atexit, "_run_exitfuncs", lambda: None)()  # those of the answer; ours were cleared
            told["listing"] = listing(folder)
            _write(sender, json.dumps(told).encode())
    finally:
        _exit(code)


def _settle() -> None:
    """Give the child the habits of a fresh process: nobody's handlers, no alarm, no output."""
    os.setpgid(0, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    getattr(atexit, "_clear", lambda: None)()
    os.umask(0o022)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)


def _called(answer: Callable[[Path, Path], Any], src: Path, folder: Path) -> tuple[dict[str, Any], int]:
    """Call the answer; what to report, and the exit code."""
    before = signal.getsignal(signal.SIGTERM)
    told: dict[str, Any] = {"error": None, "kind": "", "path": "", "digest": ""}
    code = 0
    try:
        result = answer(src, folder)
        told |= {"kind": type(result).__name__, "is_path": isinstance(result, Path), "path": str(result)}
        told["digest"] = digest(Path(told["path"])) if told["path"] else ""
    except BaseException as error:  # nothing may go on in this copy of the kernel
        told["error"] = type(error).__name__
        told["is_os_error"] = isinstance(error, OSError)
        told["text"] = f"{type(error).__name__}: {str(error)[:200]}"
        place = line_of(error)
        told["text"] += f" in {place}" if place else ""
        status = error.code if isinstance(error, SystemExit) else 1
        code = status & 0xFF if isinstance(status, int) else int(status is not None)
    told["handler_left"] = signal.getsignal(signal.SIGTERM) != before
    return told, code
