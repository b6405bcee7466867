"""Short messages between filler, producers and trainer, over Unix sockets that report a peer's death.

Each message is one packet holding one JSON object; nothing that arrives is ever executed. An error is sent
as its sentence. When a process is killed, the kernel closes its end and the other side reads an end of
file at once: no semaphore stays locked, and nothing polls.

The trap: a socket reports the end of its other side only when *every* copy of that side is closed. A
DataLoader worker forked at the wrong moment inherits a copy, and the death of its parent goes unnoticed. So
each forked child closes its copies before anything else. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import json
import os
import select
import socket
import weakref
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from smallfiles.errors import SmallfilesError

Message: TypeAlias = dict[str, Any]

LIMIT_BYTES = 1 << 16
"""Upper bound of a message: the default buffer of a Unix socket holds three of these."""

_LONGEST_SENTENCE = 2000
_Closable = TypeVar("_Closable", socket.socket, FileIO)
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def close_in_children(file: _Closable) -> _Closable:
    """Make every child forked from now on close a socket or lock before it does anything else."""
    _open.add(file)
    return file


def _close_all() -> None:
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_close_all)


class RingError(SmallfilesError):
    """A ring cannot be filled or read."""


def as_message(error: SmallfilesError) -> Message:
    """Return the parts of an error as JSON values."""
    parts = {"got": error.got, "expected": error.expected, "next_step": error.next_step}
    return {"kind": type(error).__name__, **{name: part[:_LONGEST_SENTENCE] for name, part in parts.items()}}


def from_message(message: Message) -> SmallfilesError:
    """Return the error that `as_message` encoded, or a `RingError` if its class is unknown here."""
    kind = next((kind for kind in _kinds(SmallfilesError) if kind.__name__ == message["kind"]), RingError)
    return kind(message["got"], expected=message["expected"], next_step=message["next_step"])


def _kinds(kind: type[SmallfilesError]) -> Iterator[type[SmallfilesError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


class Channel:
    """One end of a connection.

    Args:
        sock: A connected Unix socket of packets; the channel owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = close_in_children(sock)

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self.socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = (), *, wait: bool = True) -> bool:
        """Send one message, optionally with file descriptors.

        Args:
            message: Small; JSON values only.
            fds: Open files to pass to the other side.
            wait: Wait for room in the buffer; if False, a full buffer counts as a dead peer.

        Returns:
            Whether it was sent; False if the other side is gone.
        """
        data = json.dumps(message, separators=(",", ":")).encode()
        flags = socket.MSG_NOSIGNAL | (0 if wait else socket.MSG_DONTWAIT)
        try:
            socket.send_fds(self.socket, [data], list(fds), flags)
        except OSError:
            return False
        return True

    def receive(self, wait_s: float | None = None) -> Message | None:
        """Return the next message, or None when the other side is gone.

        Args:
            wait_s: Give up after this many seconds; None never gives up.

        Raises:
            TimeoutError: No message arrived in time.
        """
        if wait_s is not None and not self._events(select.POLLIN, wait_s):
            raise TimeoutError
        message, fds = self.receive_fds()
        for fd in fds:
            os.close(fd)
        return message

    def receive_fds(self) -> tuple[Message | None, list[int]]:
        """Return the next message with the file descriptors that came with it."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, LIMIT_BYTES, 4)
            message = json.loads(data)
        except OSError:
            return None, []
        except ValueError:
            return None, list(fds)  # end of file, or not our protocol, which counts as the end too
        return message if isinstance(message, dict) else None, list(fds)

    def peer_is_gone(self) -> bool:
        """Check whether the other side has closed, even if some of its messages are still unread."""
        return bool(self._events(0, 0) & (select.POLLHUP | select.POLLERR | select.POLLNVAL))

    def close(self) -> None:
        """Close this end; the other side reads an end of file."""
        self.socket.close()

    def _events(self, wanted: int, wait_s: float) -> int:
        poller = select.poll()
        poller.register(self.socket, wanted)
        return next((events for _, events in poller.poll(wait_s * 1000)), 0)


def pair() -> tuple[Channel, Channel]:
    """Return the two ends of a new connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), Channel(theirs)


def listen(address: str) -> socket.socket:
    """Listen for trainers on a socket at this path, and replace a socket that was left over there."""
    listener = close_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    Path(address).unlink(missing_ok=True)
    listener.bind(address)
    listener.listen(16)
    return listener


def connect(address: str) -> Channel:
    """Connect to the process that listens at this path.

    Raises:
        OSError: No process listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return Channel(sock)
