"""The process behind a slow mount: what it answers to whom, and when it ends.

A process of its own, since a file system that runs in the interpreter which uses it stops both:
a page fault of the user would hold the lock that the file system needs to answer it.

Several threads take requests and find the answers, so that a folder on a real parallel file system
is not asked one question at a time; one thread sends late answers when they are due. So an operation
in flight costs no thread.

The trap: a mount without its process is a folder where every call fails. So it ends, and takes the
mount away, when it is told to (SIGTERM), and also when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import mmap
import os
import resource
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smallfiles.errors import SmallfilesError
from smallfiles.signals import SIGNALS
from smallfiles.slowfs import protocol
from smallfiles.slowfs.config import SlowConfig
from smallfiles.slowfs.delays import COUNTS_BYTES, Delays
from smallfiles.slowfs.points import mount, unmount
from smallfiles.slowfs.protocol import Operation
from smallfiles.slowfs.tree import Tree

READY = "ready"
_THREADS = 4
_LOOK_S = 0.25


@dataclass(frozen=True)
class MountRequest:
    """What the parent asks for.

    Args:
        folder: The folder to show.
        point: Where to mount it.
        config: Fields of a `SlowConfig`.
        counts: Descriptor of the memory for the counts.
        parent: The process without which there is no reason to go on.
        remove: Whether the mount point is removed at the end.
    """

    folder: str
    point: str
    config: dict[str, Any]
    counts: int
    parent: int
    remove: bool

    def command(self) -> list[str]:
        """The command line of the server."""
        code = "from smallfiles.slowfs.server import main; main()"
        return [sys.executable, "-c", code, json.dumps(asdict(self))]


class Sender(threading.Thread):
    """Sends answers to the kernel when they are due.

    Args:
        channel: Descriptor of `/dev/fuse`.
    """

    def __init__(self, channel: int) -> None:
        super().__init__(daemon=True, name="slowfs-send")
        self._channel = channel
        self._waiting: list[tuple[float, int, tuple[bytes, bytes]]] = []
        self._changed = threading.Condition()

    def send(self, number: int, body: bytes, leave_at: float = 0.0, error: int = 0) -> None:
        """Answer request `number` at `leave_at`, or at once if that is over."""
        message = (protocol.header(number, len(body), error), body)
        if leave_at <= time.monotonic():
            self._write(message)
            return
        with self._changed:
            heapq.heappush(self._waiting, (leave_at, number, message))
            if self._waiting[0][1] == number:  # sooner than all that are waited for
                self._changed.notify()

    def run(self) -> None:
        """For ever: sleep until the first answer is due, send all that are."""
        while True:
            for message in self._due():
                self._write(message)

    def _due(self) -> list[tuple[bytes, bytes]]:
        with self._changed:
            left_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
            if left_s is None or left_s > 0:
                self._changed.wait(left_s)
            now, due = time.monotonic(), []
            while self._waiting and self._waiting[0][0] <= now:
                due.append(heapq.heappop(self._waiting)[2])
            return due

    def _write(self, message: tuple[bytes, bytes]) -> None:
        with contextlib.suppress(OSError):  # who asked was interrupted and is gone, or so is the mount
            os.writev(self._channel, message)


class Answering(threading.Thread):
    """Takes requests from the kernel and finds their answers, until the mount is gone."""

    def __init__(self, channel: int, tree: Tree, sender: Sender) -> None:
        super().__init__(daemon=True, name="slowfs-answer")
        self._channel, self._tree, self._sender = channel, tree, sender

    def run(self) -> None:
        """One request after the other; a failure of one is its answer."""
        buffer = bytearray(protocol.REQUEST_BYTES)
        view = memoryview(buffer)
        while True:
            try:
                length = os.readv(self._channel, (buffer,))
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # taken back while it was read
                    continue
                return  # ENODEV: unmounted
            self._answer(view[:length])

    def _answer(self, request: memoryview) -> None:
        _, operation, number, node, *_ = protocol.IN_HEADER.unpack_from(request)
        body = request[protocol.IN_HEADER.size :]
        if operation in protocol.UNANSWERED:
            return
        if operation == Operation.INIT:
            self._sender.send(number, protocol.init_out(body))
            _tell(READY)
            return
        find = self._tree.answers.get(operation)
        if find is None:
            self._sender.send(number, b"", error=errno.ENOSYS)
            return
        try:
            answer = find(node, body)
        except OSError as error:
            self._sender.send(number, b"", getattr(error, "leave_at", 0.0), error.errno or errno.EIO)
        except Exception:  # whatever it is, who asked must not wait for ever
            self._sender.send(number, b"", error=errno.EIO)
        else:
            self._sender.send(number, answer.body, answer.leave_at)


def _tell(word: str) -> None:
    """A line to the parent, who may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode(errors="replace"))


def serve(order: MountRequest) -> None:
    """Mount, answer until there is a reason to stop, unmount."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # in all threads; waited for below
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    counts = memoryview(mmap.mmap(order.counts, COUNTS_BYTES))
    tree = Tree(os.fsencode(order.folder), Delays(SlowConfig(**order.config), counts))
    channel = mount(Path(order.point))
    try:
        sender = Sender(channel)
        threads = [Answering(channel, tree, sender) for _ in range(_THREADS)]
        for thread in (sender, *threads):
            thread.start()
        while signal.sigtimedwait(SIGNALS, _LOOK_S) is None:
            if os.getppid() != order.parent or not all(thread.is_alive() for thread in threads):
                break
    finally:
        unmount(Path(order.point))
        if order.remove:
            with contextlib.suppress(OSError):
                Path(order.point).rmdir()


def main() -> None:
    """Serve the order on the command line; tell a failure in JSON."""
    try:
        serve(MountRequest(**json.loads(sys.argv[1])))
    except SmallfilesError as error:
        _tell(json.dumps([error.got, error.expected, error.next_step]))
        os._exit(1)
    os._exit(0)  # threads may still wait for requests that nobody will make
