"""One `progress()` for notebook, terminal and job log.

A bar that redraws itself fills the log of a job with thousands of lines, so a log gets one line every
30 seconds, with rate and time left, also while nothing advances; it shows whether the time limit suffices.
Everything goes to standard error, since standard output is for data. The trap: a rate over all samples
hides a stall; watch whether the time left falls. Used by every notebook from 01 on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic
from typing import Any, Protocol

from smallfiles.errors import printable

LOG_INTERVAL_S = 30.0


class Progress(Protocol):
    """The bar of `progress()`; thread-safe."""

    def advance(self, n: int = 1, bytes: int = 0) -> None:
        """Report `n` more items, and their bytes."""


@contextmanager
def progress(
    total: int | None,
    what: str,
    *,
    unit: str = "samples",
    enabled: bool | None = None,
    since: float | None = None,
) -> Iterator[Progress]:
    """Show the progress of a long task.

    Args:
        total: How many there are to do; None if not known.
        what: What is being done, in a word or two ("packing train").
        unit: What is counted, in the plural.
        enabled: False shows nothing; None and True show what suits the place.
        since: When the work began of which this is a later step (`time.monotonic`): a log is then not silent
            for longer because a new bar began.

    Yields:
        An object whose `advance(n, bytes)` is called as work gets done.
    """
    shown: _Silent | _Bar | _LogLines
    what = printable(what)  # it may name an output
    if enabled is False:
        shown = _Silent()
    elif _in_notebook() or _is_terminal():
        shown = _Bar(total, what, unit)
    else:
        shown = _LogLines(total, what, unit, since)
    try:
        yield shown
    finally:
        shown.close()


@lru_cache(1024)
def note(message: str) -> None:
    """Write a warning once per process; names in it cannot control the terminal.

    A notebook shows it as plain output: standard error is red there, and looks like a failure.
    """
    print(f"note: {printable(message)}", file=sys.stdout if _in_notebook() else sys.stderr)


class _Silent:
    def advance(self, n: int = 1, bytes: int = 0) -> None:
        pass

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, total: int | None, what: str, unit: str) -> None:
        from tqdm.auto import tqdm

        self._bar: Any = tqdm(total=total, desc=what, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True)
        self._bytes = 0
        self._started = monotonic()
        self._lock = threading.Lock()

    def advance(self, n: int = 1, bytes: int = 0) -> None:
        with self._lock:
            self._bytes += bytes
            if self._bar.update(n):  # true when it has just redrawn itself
                self._set_rate()

    def close(self) -> None:
        self._set_rate()  # a short task too ends with what it took
        self._bar.close()

    def _set_rate(self) -> None:
        if self._bytes:
            rate = self._bytes / max(monotonic() - self._started, 1e-9)
            self._bar.set_postfix_str(f"{bytes_text(rate)}/s", refresh=False)


_writing = threading.RLock()
os.register_at_fork(
    before=_writing.acquire, after_in_parent=_writing.release, after_in_child=_writing.release
)  # a child forked while a line is written would wait forever for standard error


class _LogLines:
    last_written = 0.0

    def __init__(self, total: int | None, what: str, unit: str, since: float | None) -> None:
        self._total, self._what, self._unit = total, what, unit
        self._done = self._bytes = 0
        self._started = monotonic()
        self._last_line = self._started if since is None else max(since, _LogLines.last_written)
        self._written = False
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="progress", daemon=True).start()

    def _watch(self) -> None:
        """Write lines also while nothing advances."""
        with contextlib.suppress(OSError, ValueError):  # the stream is closed
            while not self._closed.wait(max(0.01, self._last_line + LOG_INTERVAL_S - monotonic())):
                self.advance(0)

    def advance(self, n: int = 1, bytes: int = 0) -> None:
        with _writing:
            self._done += n
            self._bytes += bytes
            now = monotonic()
            if now - self._last_line >= LOG_INTERVAL_S and not self._closed.is_set():
                self._last_line = now
                self._print(now - self._started)

    def close(self) -> None:
        self._closed.set()
        if self._written:  # a short task writes nothing
            self._print(monotonic() - self._started)

    def _print(self, elapsed_s: float) -> None:
        line = _progress_line(self._what, self._unit, self._done, self._total, self._bytes, elapsed_s)
        print(line, file=sys.stderr, flush=True)
        self._written, _LogLines.last_written = True, monotonic()


def _progress_line(
    what: str, unit: str, done: int, total: int | None, done_bytes: int, elapsed_s: float
) -> str:
    rate = done / max(elapsed_s, 1e-9)
    share = f" of {total:,} {unit} ({100 * done / total:.0f} %)" if total else f" {unit}"
    parts = [f"{what}: {done:,}{share}", f"{rate:,.0f} {unit}/s"]
    if done_bytes:
        parts.append(f"{bytes_text(done_bytes / max(elapsed_s, 1e-9))}/s")
    if total and 0 < done < total:
        parts.append(f"{duration_text((total - done) / rate)} left")
    else:
        parts.append(f"{duration_text(elapsed_s)} so far" if total != done else duration_text(elapsed_s))
    return ", ".join(parts)


def say_notes(notes: Iterable[str]) -> None:
    """Write a warning to standard error; names in it cannot control the terminal."""
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr, flush=True)


def bytes_text(count: float) -> str:
    """Format a number of bytes, such as `1.9 GB` (powers of 1000, as for disks)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} PB"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 image`, `2 images`, `1,281,167 images`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration_text(seconds: float) -> str:
    """Format a duration, such as `8 s`, `4 min 05 s`, or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _in_notebook() -> bool:
    """Check whether this process is a Jupyter kernel, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    forks = sys.modules.get("multiprocessing")  # a forked child cannot reach the page
    child = forks is not None and forks.parent_process() is not None
    return shell is not None and hasattr(shell, "kernel") and not child
