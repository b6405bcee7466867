"""Answers to the requests of the kernel from a real folder, each with the time to send it.

With latency: look-up of a file name (also a missing one), open, listing, target of a link, status of the
file system. Without latency: a folder that was looked up before and an open file, which a client of a
parallel file system caches; close; read, which is limited by the bandwidth only.

The kernel caches names of files for 0 seconds, so each path is looked up again, and attributes for one
second, so that a `stat` is one request and not two. It drops the pages of a file at each open, so bytes are
read again too; until then they can be mapped. The trap: a file that stays open is read from memory the
second time, as on a real client.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from stat import S_ISDIR
from typing import NamedTuple

from smallfiles.slowfs import protocol
from smallfiles.slowfs.delays import Delays
from smallfiles.slowfs.protocol import Operation

# A file may be replaced after its look-up: do not block on a pipe, do not follow a link.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER_NAME_S, _FILE_NAME_S, _ATTRIBUTES_S = 3600, 0, 1


class Answer(NamedTuple):
    """A body, and when to send it (monotonic seconds; 0 for at once)."""

    body: bytes
    leave_at: float = 0.0


class Tree:
    """A folder as the kernel sees it: nodes are numbers, open files are handles.

    Args:
        root: The folder.
        delays: Delays operations and bytes.
    """

    def __init__(self, root: bytes, delays: Delays) -> None:
        self._delays = delays
        self._lock = threading.Lock()
        self._paths = {protocol.ROOT: root.rstrip(b"/") or b"/"}  # never forgotten: as many as files
        self._nodes: dict[bytes, int] = {}
        self._held: Counter[int] = Counter()
        self._listings: dict[int, list[bytes]] = {}
        self._last_listing = 0
        self.answers: dict[int, Callable[[int, memoryview], Answer]] = {
            Operation.LOOKUP: self._lookup,
            Operation.GETATTR: self._getattr,
            Operation.READLINK: self._readlink,
            Operation.OPEN: self._open,
            Operation.READ: self._read,
            Operation.RELEASE: self._release,
            Operation.STATFS: self._statfs,
            Operation.OPENDIR: self._open_folder,
            Operation.READDIR: self._read_folder,
            Operation.RELEASEDIR: self._release_folder,
        }

    def _lookup(self, node: int, body: memoryview) -> Answer:
        leave_at = self._delays.operation("lookup")
        path = self._paths[node] + b"/" + bytes(body[:-1])
        try:
            about = os.lstat(path)
        except OSError as error:
            raise LateError(error.errno or 0, leave_at) from error
        name_s = _FOLDER_NAME_S if S_ISDIR(about.st_mode) else _FILE_NAME_S
        known = self._node(path)
        return Answer(protocol.entry_out(known, about, name_s=name_s, attributes_s=_ATTRIBUTES_S), leave_at)

    def _node(self, path: bytes) -> int:
        with self._lock:
            node = self._nodes.setdefault(path, len(self._paths) + 1)
            self._paths[node] = path
            return node

    def _getattr(self, node: int, body: memoryview) -> Answer:
        about = os.lstat(self._paths[node])
        known = S_ISDIR(about.st_mode) or self._held[node] > 0
        leave_at = 0.0 if known else self._delays.operation("lookup")
        return Answer(protocol.attributes_out(about, attributes_s=_ATTRIBUTES_S), leave_at)

    def _readlink(self, node: int, body: memoryview) -> Answer:
        target = os.readlink(self._paths[node])  # noqa: PTH115 - as bytes
        return Answer(target, self._delays.operation("other"))

    def _open(self, node: int, body: memoryview) -> Answer:
        leave_at = self._delays.operation("open")
        handle = os.open(self._paths[node], _FLAGS)
        with self._lock:
            self._held[node] += 1
        return Answer(protocol.open_out(handle), leave_at)

    def _read(self, node: int, body: memoryview) -> Answer:
        handle, offset, size = protocol.READ_IN.unpack_from(body)
        data = os.pread(handle, size, offset)
        return Answer(data, self._delays.transfer(len(data)))

    def _release(self, node: int, body: memoryview) -> Answer:
        (handle,) = protocol.HANDLE_IN.unpack_from(body)
        with self._lock:
            self._held[node] -= 1
        os.close(handle)
        return Answer(b"")

    def _statfs(self, node: int, body: memoryview) -> Answer:
        return Answer(protocol.statfs_out(os.statvfs(self._paths[node])), self._delays.operation("other"))

    def _open_folder(self, node: int, body: memoryview) -> Answer:
        leave_at = self._delays.operation("list")
        entries = [protocol.entry_of_folder(name, 1, 0o040000, at) for at, name in ((1, b"."), (2, b".."))]
        with os.scandir(self._paths[node]) as found:
            for entry in found:
                about = entry.stat(follow_symlinks=False)
                position = len(entries) + 1
                entries.append(protocol.entry_of_folder(entry.name, about.st_ino, about.st_mode, position))
        with self._lock:
            self._last_listing += 1
            self._listings[self._last_listing] = entries
            return Answer(protocol.open_out(self._last_listing), leave_at)

    def _read_folder(self, node: int, body: memoryview) -> Answer:
        handle, offset, size = protocol.READ_IN.unpack_from(body)
        return Answer(protocol.part_of_listing(self._listings[handle], offset, size))

    def _release_folder(self, node: int, body: memoryview) -> Answer:
        (handle,) = protocol.HANDLE_IN.unpack_from(body)
        with self._lock:
            del self._listings[handle]
        return Answer(b"")


class LateError(OSError):
    """A failure with the latency of a success: the server had to look up the name."""

    def __init__(self, number: int, leave_at: float) -> None:
        super().__init__(number, os.strerror(number))
        self.leave_at = leave_at
