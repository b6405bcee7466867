"""Clean up when a signal ends the process: one handler for all modules.

SIGTERM, which a scheduler sends at the time limit, ends Python at once: no `finally`, no `atexit`. A staged
copy and a ring of batches would stay behind in the memory of the node.

The traps: if two modules each set a handler, the second finds that of the first and does not clean up. So
there is one, which is set only where the program handles the signal in no other way. And importing PyTorch
takes seconds, on a busy file system minutes, in which a signal kills a training without a handler: so this
module imports only the standard library. Notebooks 07 and 10 teach it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
STOPPERS = (signal.SIGUSR1, signal.SIGTERM)
"""Signals that stop a training between two steps: Slurm sends them before a time limit."""

_cleanups: list[Callable[[], object]] = []


def add(cleanup: Callable[[], object]) -> None:
    """Have `cleanup` called before a signal ends this process; adding it twice changes nothing.

    Args:
        cleanup: Must not wait for long. A forked child inherits it: it must know whose it is.
    """
    if cleanup not in _cleanups:
        _cleanups.append(cleanup)
    if threading.current_thread() is not threading.main_thread():
        return  # Python sets handlers in the main thread only
    for number in SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def remove(cleanup: Callable[[], object]) -> None:
    """Remove a clean-up; after the last one the handlers of before are restored."""
    with contextlib.suppress(ValueError):
        _cleanups.remove(cleanup)
    if _cleanups or threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    for cleanup in tuple(_cleanups):
        with contextlib.suppress(Exception):  # a failure must not prevent the others
            cleanup()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def end_by(number: int) -> None:
    """End this process by a signal, as a program ended that it stands for, without a dump of its memory."""
    if number in (signal.SIGKILL, signal.SIGSTOP):
        os.kill(os.getpid(), number)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def listening(
    numbers: Iterable[signal.Signals] = STOPPERS, then: Callable[[], object] = lambda: None
) -> Iterator[list[int]]:
    """Collect the signals that arrive during the block; afterwards the former handlers are restored.

    Args:
        numbers: Those that are listened for.
        then: Called whenever one came.
    """
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def hear(number: int, frame: FrameType | None) -> None:
        came.append(number)
        then()

    for number in numbers:
        with contextlib.suppress(ValueError):  # not in the main thread: a notebook's
            before[number] = signal.signal(number, hear)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def before_interrupts() -> Iterator[None]:
    """Finish the block, which tidies up, before Control-C is heard; blocked, it would reach other threads."""
    with listening((signal.SIGINT,)) as came:
        yield
    if came:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block the signals that end a program until the end of the block, unless it waits for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
