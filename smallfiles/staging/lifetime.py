"""Copies go when the process that uses them goes: at exit and on signals.

The trap: a signal's default action ends a process without any `finally`. So where a program has no
handler of its own, ours gives back what is staged and then lets the signal do what it would have
done. A handler that is there already (a training that saves its state on SIGTERM and reads on) stays
in charge, and the exit that follows cleans up. What a `kill -9` leaves, the next job removes.
Notebook 07.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable

from smallfiles import signals

_held: dict[int, tuple[int, bool, Callable[[], object]]] = {}
"""By descriptor of the lock: who took it, whether forked children keep it, how it is given back."""

_ready = False


def enter(descriptor: int, give_back: Callable[[], object], *, inherited: bool) -> None:
    """Have `give_back` called when this process ends, unless `leave` is called before.

    Args:
        descriptor: The open lock, which names the entry.
        give_back: Must not wait for long, and not fail.
        inherited: Whether forked children keep the lock: they use a finished copy, but they do not
            make one.
    """
    global _ready
    if not _ready:
        atexit.register(give_back_all)
        os.register_at_fork(after_in_child=_in_child)
        _ready = True
    _held[descriptor] = (os.getpid(), inherited, give_back)
    signals.add(give_back_all)


def leave(descriptor: int) -> bool:
    """Forget an entry; whether it was there (False in a forked child, which owns nothing)."""
    found = _held.pop(descriptor, None)
    if not _held:
        signals.remove(give_back_all)
    return found is not None and found[0] == os.getpid()


def give_back_all() -> None:
    """Give back everything that this process took."""
    while _held:
        _, (pid, _, give_back) = _held.popitem()
        if pid == os.getpid():
            with contextlib.suppress(Exception):  # the next one must still be given back
                give_back()


def _in_child() -> None:
    """A forked worker reads what its parent staged and must not remove it when it ends.

    The descriptor of a shared lock stays open: the copy is in use while a worker lives. That of an
    exclusive one is closed, or a worker would keep others waiting after its parent was killed.
    """
    while _held:
        descriptor, (_, inherited, _) = _held.popitem()
        if not inherited:
            os.close(descriptor)
