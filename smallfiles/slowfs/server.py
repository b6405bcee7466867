"""The process of a slow mount.

It is a separate process, since a file system in the interpreter that uses it would deadlock: a page fault
would hold the lock (GIL) that the file system needs to answer.

Several threads receive requests and compute answers, so that a folder on a real parallel file system gets
concurrent requests; one thread sends delayed answers when they are due. So an operation in flight needs no
thread.

The trap: on a mount without its process every call fails. So the process unmounts and ends on SIGTERM, and
when its parent has ended.
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
from functools import partial
from pathlib import Path
from typing import Any

from pysquashfs.text import like_this
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
    """The request of the parent.

    Args:
        folder: The folder to show.
        point: The mount point.
        config: Fields of a `SlowConfig`.
        counts: Descriptor of the memory for the counts.
        parent: The parent process; the server ends with it.
        remove: Whether to remove the mount point at the end.
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
        return [*like_this(), "-c", code, json.dumps(asdict(self))]


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
        """Answer request `number` at `leave_at`, or at once if that has passed."""
        message = (protocol.header(number, len(body), error), body)
        if leave_at <= time.monotonic():
            self._write(message)
            return
        with self._changed:
            heapq.heappush(self._waiting, (leave_at, number, message))
            if self._waiting[0][1] == number:  # due before all others
                self._changed.notify()

    def run(self) -> None:
        """Forever: sleep until the first answer is due, then send all due ones."""
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
        with contextlib.suppress(OSError):  # the request was interrupted, or the mount is gone
            os.writev(self._channel, message)


def _receive(channel: int, tree: Tree, sender: Sender) -> None:
    """Answer one request of the kernel after the other, until it is unmounted."""
    buffer = bytearray(protocol.REQUEST_BYTES)
    view = memoryview(buffer)
    while True:
        try:
            length = os.readv(channel, (buffer,))
        except OSError as error:
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # withdrawn while it was read
                continue
            return  # ENODEV: unmounted
        _answer(view[:length], tree, sender)


def _answer(request: memoryview, tree: Tree, sender: Sender) -> None:
    """Compute the answer of a request; a failure becomes the answer."""
    _, operation, number, node, *_ = protocol.IN_HEADER.unpack_from(request)
    body = request[protocol.IN_HEADER.size :]
    find = tree.answers.get(operation)
    if operation == Operation.INIT:
        sender.send(number, protocol.init_out(body))
        _report(READY)
    elif find is None:
        if operation not in protocol.UNANSWERED:
            sender.send(number, b"", error=errno.ENOSYS)
    else:
        try:
            answer = find(node, body)
            sender.send(number, answer.body, answer.leave_at)
        except OSError as error:
            sender.send(number, b"", getattr(error, "leave_at", 0.0), error.errno or errno.EIO)
        except Exception:  # every request needs an answer, or the caller waits forever
            sender.send(number, b"", error=errno.EIO)


def _report(word: str) -> None:
    """Send a line to the parent, if it still exists."""
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode(errors="replace"))


def serve(request: MountRequest) -> None:
    """Mount, answer until a signal or the end of the parent, unmount."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # in all threads; waited for below
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    counts = memoryview(mmap.mmap(request.counts, COUNTS_BYTES))
    tree = Tree(os.fsencode(request.folder), Delays(SlowConfig(**request.config), counts))
    channel = mount(Path(request.point))
    try:
        sender = Sender(channel)
        receiver = partial(threading.Thread, target=_receive, args=(channel, tree, sender), daemon=True)
        threads = [receiver() for _ in range(_THREADS)]
        for thread in (sender, *threads):
            thread.start()
        while signal.sigtimedwait(SIGNALS, _LOOK_S) is None:
            if os.getppid() != request.parent or not all(thread.is_alive() for thread in threads):
                break
    finally:
        unmount(Path(request.point))
        if request.remove:
            with contextlib.suppress(OSError):
                Path(request.point).rmdir()


def main() -> None:
    """Serve the request on the command line; report a failure as JSON."""
    try:
        serve(MountRequest(**json.loads(sys.argv[1])))
    except SmallfilesError as error:
        _report(json.dumps([error.got, error.expected, error.next_step]))
        os._exit(1)
    os._exit(0)  # threads may still wait for requests
