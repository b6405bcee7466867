"""Clean up when the process ends by a signal that Python does not turn into an exception.

The trap: SIGTERM, which a scheduler sends at the time limit, ends Python at once; no `finally`, no
`atexit`. Only where nobody else handles it, a handler is set that cleans up and then lets it end the process
as it would have. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Any
from weakref import finalize

_endings: list[finalize[..., Any]] = []


def at_sigterm(ending: finalize[..., Any]) -> None:
    """Have `ending` called before SIGTERM ends this process, if it was not called before."""
    _endings[:] = [other for other in _endings if other.alive] + [ending]
    with contextlib.suppress(ValueError):  # not in the main thread, which alone may set handlers
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    # A forked child inherits the handler; an ending knows in which process it has something to do.
    for ending in _endings:
        ending()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
