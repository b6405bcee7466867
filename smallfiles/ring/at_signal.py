"""Close rings before a signal ends the process (see `smallfiles.signals`).

The trap: a forked child inherits the list; an ending knows in which process it has something to do.
Notebook 08 teaches the ring.
"""

from __future__ import annotations

from typing import Any
from weakref import finalize

from smallfiles import signals

_endings: list[finalize[..., Any]] = []


def at_sigterm(ending: finalize[..., Any]) -> None:
    """Have `ending` called before a signal ends this process, if it was not called before."""
    _endings[:] = [other for other in _endings if other.alive] + [ending]
    signals.add(_end_all)


def _end_all() -> None:
    for ending in tuple(_endings):
        ending()
