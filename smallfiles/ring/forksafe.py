"""Things that a forked child must let go of: locks, and the ends of sockets.

The trap: a socket tells that its other side has died only when *every* copy of that side is closed. A
DataLoader worker forked at the wrong moment inherits a copy, and the death of its parent goes unseen; a
file lock stays held likewise. So each child closes them first of all. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Closable(Protocol):
    """Anything with a `close` that may be called twice."""

    def close(self) -> None:
        """Let go of it."""


_open: dict[int, weakref.ref[Closable]] = {}
_forking = threading.local()


def close_in_children(thing: Closable) -> None:
    """Have every child that is forked from now on close `thing` before it does anything else."""
    number = id(thing)
    _open[number] = weakref.ref(thing, lambda _: _open.pop(number, None))


@contextmanager
def keeping(thing: Closable) -> Iterator[None]:
    """A child forked inside, by this thread, keeps `thing`: it is meant for that child."""
    _forking.kept = thing
    try:
        yield
    finally:
        _forking.kept = None


def _close_all() -> None:
    kept = getattr(_forking, "kept", None)
    for reference in list(_open.values()):
        thing = reference()
        if thing is not None and thing is not kept:
            thing.close()


os.register_at_fork(after_in_child=_close_all)
