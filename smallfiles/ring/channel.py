"""Short messages between filler, producers and trainer, over Unix sockets that tell of a death.

Each message is one packet holding one JSON object; nothing that arrives is ever executed. When a process
is killed, however, the kernel closes its end and the other side reads an end of file at once: no
semaphore stays taken, nobody polls.

The trap: a named socket's path ends at 107 bytes; it is addressed through its open folder instead.
Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from smallfiles.ring.folder import check_private
from smallfiles.ring.forksafe import close_in_children

Message: TypeAlias = dict[str, Any]

LIMIT_BYTES = 1 << 16
"""No message is longer: the default buffer of a Unix socket holds three of these."""

_SOCKET = "socket"
_CREDENTIALS = struct.Struct("3i")


class Channel:
    """One end of a connection.

    Args:
        sock: A connected Unix socket of packets; the channel owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        close_in_children(self)

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self.socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = (), *, wait: bool = True) -> bool:
        """Send one message, perhaps with file descriptors.

        Args:
            message: What JSON can hold, small.
            fds: Open files that the other side shall have too.
            wait: Wait for room in the buffer; if False, a full buffer counts as a dead peer.

        Returns:
            Whether it left; False if the other side is gone.
        """
        data = json.dumps(message, separators=(",", ":")).encode()
        flags = socket.MSG_NOSIGNAL | (0 if wait else socket.MSG_DONTWAIT)
        try:
            if fds:
                socket.send_fds(self.socket, [data], list(fds), flags)
            else:
                self.socket.send(data, flags)
        except OSError:
            return False
        return True

    def receive(self, wait_s: float | None = None) -> Message | None:
        """The next message; None when the other side is gone.

        Args:
            wait_s: Give up after this many seconds; None waits as long as it takes.

        Raises:
            TimeoutError: Nothing came in time.
        """
        message, fds = self.receive_fds(wait_s)
        for fd in fds:
            os.close(fd)
        return message

    def receive_fds(self, wait_s: float | None = None) -> tuple[Message | None, list[int]]:
        """The next message with the file descriptors that came with it."""
        if wait_s is not None and not self._ready(wait_s):
            raise TimeoutError
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, LIMIT_BYTES, 4)
        except OSError:
            return None, []
        message = _parsed(data)
        return message, list(fds)

    def peer_is_gone(self) -> bool:
        """Whether the other side has died, even if messages of it are still unread."""
        poller = select.poll()
        poller.register(self.socket, 0)
        return any(
            events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in poller.poll(0)
        )

    def peer_pid(self) -> int:
        """Process number of the other side when it connected; 0 if it lies in another namespace."""
        record = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(record)[0]
        return pid

    def close(self) -> None:
        """Close this end; the other side reads an end of file."""
        self.socket.close()

    def _ready(self, wait_s: float) -> bool:
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(wait_s * 1000))


def _parsed(data: bytes) -> Message | None:
    if not data:
        return None
    try:
        message = json.loads(data)
    except ValueError:
        return None  # a stranger; treated like somebody who left
    return message if isinstance(message, dict) else None


def pair() -> tuple[Channel, Channel]:
    """Two connected ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), Channel(theirs)


class Door:
    """Where others connect: a named socket in the ring's folder.

    Args:
        folder_fd: The open folder.
    """

    def __init__(self, folder_fd: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=folder_fd)
        self.socket.bind(f"/proc/self/fd/{folder_fd}/{_SOCKET}")
        self.socket.listen(16)
        close_in_children(self)

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self.socket.fileno()

    def accept(self) -> Channel:
        """The next one who knocked."""
        return Channel(self.socket.accept()[0])

    def close(self) -> None:
        """Take no more connections."""
        self.socket.close()


def connect(folder: Path) -> Channel | None:
    """A channel to whoever serves in `folder`; None if nobody does.

    Raises:
        ResourceError: Somebody else could serve there.
    """
    if folder.parent.is_dir():
        check_private(folder.parent)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(f"/proc/self/fd/{fd}/{_SOCKET}")
    except OSError:
        sock.close()
        return None
    finally:
        os.close(fd)
    return Channel(sock)
