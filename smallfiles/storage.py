"""Wait for storage that does not answer, visibly and for a limited time.

    data = answered(path, os.pread, descriptor, size, start)

When a data server fails over, or a network is away for a minute, reading ends with EIO, ENXIO or ESTALE,
although every file is whole. So each read of the toolbox goes through `answered`: it tries again after
growing pauses, says so once and then rarely, and stops with a `StorageError` after `storage_timeout_s` of
the verb's or the loader's configuration.

The trap: a program that leaves out what it cannot read also leaves out what it could not read just then. So
a `StorageError` is not a fault of a sample, and no `on_error` applies to it. And after an unmount, every file
seems to be missing: so where a file is missing, `answered` looks whether the folder that was given to
`remember` is still on the same file system. Appendix 12 teaches it.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeAlias, TypeVar

from smallfiles.errors import StorageError, fault_of
from smallfiles.options import option
from smallfiles.progress import duration_text, say_notes

P = ParamSpec("P")
T = TypeVar("T")

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without the last, opening a pipe waits for a writer
TIMEOUT_S: float = 300
"""How long to wait by default: the recovery of a server of a parallel file system takes minutes."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_NOTE_EVERY_S = 60.0

_timeout_s = TIMEOUT_S


def timeout_option() -> float:
    """Define the field `storage_timeout_s`, with the same help text in every configuration."""
    found: float = option(
        TIMEOUT_S,
        "seconds to wait for storage that does not answer; then stop, and leave nothing out",
        least=0,
        metavar="S",
    )
    return found


def set_timeout(seconds: float) -> None:
    """Let this process wait so long for each read, from now on."""
    global _timeout_s
    _timeout_s = seconds
    _outage.forget()


@contextlib.contextmanager
def timeout(seconds: float) -> Iterator[None]:
    """Let this process wait so long for each read while the block runs."""
    before = _timeout_s
    set_timeout(seconds)
    try:
        yield
    finally:
        set_timeout(before)


def remember(path: str | Path) -> None:
    """Remember on which file system a folder is (or the folder of a file), before anything of it is read.

    After an unmount every file seems to be missing, although none is lost.
    """
    folder = Path(path).absolute()
    with contextlib.suppress(OSError):
        folder = folder if folder.is_dir() else folder.parent
        _devices[folder] = folder.stat().st_dev


_devices: dict[Path, int] = {}
"""The number of the file system of each folder that was remembered."""


Settings: TypeAlias = tuple[float, dict[Path, int]]


def settings() -> Settings:
    """Return how long this process waits, and what it remembers, for `adopt` in another process."""
    return _timeout_s, dict(_devices)


def adopt(found: Settings) -> None:
    """Wait as long as another process, and remember what it remembered."""
    seconds, devices = found
    set_timeout(seconds)
    _devices.update(devices)


def _unmounted(path: object) -> StorageError | None:
    """Return the error for a path in a folder that is no longer on its file system, if there is one."""
    place = Path(path).absolute() if isinstance(path, str | Path) else Path()
    for folder in (place, *place.parents):
        if folder in _devices and _device_of(folder) != _devices[folder]:
            return StorageError(
                f"the file system of {folder} is no longer mounted",
                expected="the file system on which reading began",
                next_step="Run it again when it is mounted",
            )
    return None


def _device_of(folder: Path) -> int | None:
    """Return the file system of a folder, or of the one that held it if it was removed."""
    for place in (folder, *folder.parents):
        try:
            return place.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            break
    return None


def refuse_unmounted(path: Path) -> None:
    """Raise StorageError if a path is in a folder that is no longer on its file system."""
    if error := _unmounted(path):
        raise error


def answered(path: object, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call something that reads, and again while the storage does not answer.

    Args:
        path: What is read, for messages.
        call: May be called again from the start. Calls may be nested: only the innermost one waits.
        args: Its arguments.
        kwargs: Likewise.

    Returns:
        What the call returns.

    Raises:
        StorageError: The storage did not answer for `storage_timeout_s`.
        Exception: Whatever else the call raises.
    """
    try:
        return call(*args, **kwargs)
    except (OSError, StorageError) as error:
        last = _outage_behind(path, error)
        if last is None:
            raise
    began = time.monotonic()
    ends, pause_s = began + _timeout_s, _FIRST_PAUSE_S
    while (left_s := ends - time.monotonic()) > 0 and not _is_abandoned():
        _outage.notice(path, last, began, ends)
        if _is_abandoned(
            min(left_s, pause_s * random.uniform(0.5, 1))
        ):  # so that a thousand ranks spread out
            break
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        try:
            result = call(*args, **kwargs)
        except (OSError, StorageError) as error:
            found = _outage_behind(path, error)
            if found is None:
                raise
            last = found
        else:
            _outage.end(path, time.monotonic() - began)
            return result
    raise _gave_up(path, last, time.monotonic() - began) from last


def reopening(
    path: Path,
    descriptor: int,
    same: tuple[int, int],
    call: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call something that reads a descriptor; if it fails, open the file again before `answered` tries again.

    A client of MooseFS returns the error of an outage forever for a file that was open, and a server of NFS
    may have forgotten it.

    Args:
        path: The file.
        descriptor: It stays the same number.
        same: The size and the time of modification in ns; another file is not opened.
        call: What reads.
        args: Its arguments.
        kwargs: Likewise.
    """
    try:
        return call(*args, **kwargs)
    except OSError:
        with contextlib.suppress(OSError), io.FileIO(os.open(path, READ_FLAGS)) as again:
            status = os.fstat(again.fileno())
            if (status.st_size, status.st_mtime_ns) == same:
                os.dup2(again.fileno(), descriptor, inheritable=False)
        raise


class ReadingPool(ThreadPoolExecutor):
    """Threads that read; when their owner fails or is interrupted, they stop waiting for the storage too.

    Args:
        threads: How many.
        name: What their names begin with.
    """

    def __init__(self, threads: int, name: str = "read") -> None:
        self._abandoned = threading.Event()
        super().__init__(threads, name, initializer=_belong_to, initargs=(self._abandoned,))

    def abandon(self) -> None:
        """Drop what has not begun, and let no thread wait for the storage any longer."""
        self._abandoned.set()
        self.shutdown(wait=False, cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is not None:
            self.abandon()
        return super().__exit__(kind, value, trace)


_of_thread = threading.local()
_is_exiting = threading.Event()
threading._register_atexit(_is_exiting.set)  # type: ignore[attr-defined]  # before Python joins the threads


def _belong_to(abandoned: threading.Event) -> None:
    _of_thread.abandoned = abandoned


def _is_abandoned(pause_s: float = 0) -> bool:
    """Pause, and return whether the owner of this thread no longer wants its result."""
    abandoned: threading.Event | None = getattr(_of_thread, "abandoned", None)
    if abandoned is None:
        time.sleep(pause_s)
        return False
    return abandoned.wait(pause_s) or _is_exiting.is_set()


def _outage_behind(path: object, error: OSError | StorageError) -> OSError | StorageError | None:
    """Return why the storage did not answer; None if another call would fail in the same way."""
    if isinstance(error, StorageError):
        return None if error.gave_up else error
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return _unmounted(path)
    return error if fault_of(error)[0] == "storage" else None


def _reason(error: OSError | StorageError) -> str:
    _, cause = fault_of(error)
    return error.got if cause is None and isinstance(error, StorageError) else str(cause and cause.strerror)


def _gave_up(path: object, error: OSError | StorageError, waited_s: float) -> StorageError:
    found = StorageError(
        f"the storage did not answer{_waited('for', waited_s)}: {path} ({_reason(error)})",
        expected="storage that answers; nothing was left out",
        next_step="Run it again when the storage is back, or wait longer (--storage-timeout-s S). If only "
        "this file fails again and again, copy it from where it is whole, or remove it to go on without it",
    )
    found.gave_up = True
    return found


def _waited(word: str, seconds: float) -> str:
    """Return ` for 4 min 05 s` or ` for 0.2 s`, and nothing if that rounds to zero."""
    text = duration_text(seconds) if seconds >= 1 else f"{seconds:.1f} s"
    return f" {word} {text}" if seconds >= 0.05 else ""


class _Outage:
    """Says once that the storage of this process does not answer, then rarely, and when it is back.

    An outage ends when a call that had failed is answered, or a verb or an epoch begins. Giving up does not
    end it: programs that go on with the next file would say it of each.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child, a thread of its parent may hold the lock."""
        self._lock = threading.Lock()
        self._due_at: float | None = None

    def notice(self, path: object, error: OSError | StorageError, began: float, ends: float) -> None:
        """Record that a call failed now. `began` is the time of its first failure."""
        with self._lock:
            now = time.monotonic()
            if self._due_at is not None and now < self._due_at:
                return
            self._due_at = now + _NOTE_EVERY_S
            so_far, left = _waited("for", now - began), _waited("for", ends - now)
            say_notes([f"the storage does not answer{so_far}: {path} ({_reason(error)}); trying again{left}"])

    def end(self, path: object, waited_s: float) -> None:
        """Record that a call succeeded that had failed before."""
        with self._lock:
            if self._due_at is not None:
                self._due_at = None
                say_notes([f"the storage answers again{_waited('after', waited_s)}: {path}"])


_outage = _Outage()
os.register_at_fork(after_in_child=_outage.forget)
