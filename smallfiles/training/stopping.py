"""Signals that ask a training to stop: noted from the first moment on, obeyed between two steps.

Slurm sends them before a time limit, and may do so up to a minute early. The trap: importing PyTorch takes
seconds, on a busy file system minutes, and a signal in that time kills the process unless somebody listens
already. So this module needs nothing but the standard library. Notebook 10 stops a training.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

STOPPERS = (signal.SIGUSR1, signal.SIGTERM)


@contextlib.contextmanager
def listening() -> Iterator[list[int]]:
    """The signals that came while the block ran; afterwards they mean what they did before."""
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}
    for number in STOPPERS:
        with contextlib.suppress(ValueError):  # not in the main thread: a notebook's
            before[number] = signal.signal(number, lambda which, frame: came.append(which))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
