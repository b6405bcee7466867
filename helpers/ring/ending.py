"""Clean up when the process ends by a signal that Python does not turn into an exception.

The trap: SIGTERM, which a scheduler sends at the time limit, ends Python at once; no `finally`, no
`atexit`. Only where nobody else handles it, a handler is set that cleans up and then lets it end the process
as it would have. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

_cleanups: dict[int, tuple[int, Callable[[], None]]] = {}  # with the process that they belong to


def at_sigterm(cleanup: Callable[[], None]) -> Callable[[], None]:
    """Have `cleanup` called before SIGTERM ends this process; returns what forgets it again."""
    number = id(cleanup)
    _cleanups[number] = os.getpid(), cleanup
    with contextlib.suppress(ValueError):  # not in the main thread, which alone may set handlers
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end)
    return lambda: (_cleanups.pop(number, None), None)[1]


def _end(number: int, frame: FrameType | None) -> None:
    for pid, cleanup in list(_cleanups.values()):
        if pid == os.getpid():  # a forked child inherits the handler, and nothing to clean up
            cleanup()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
