"""The process of a slow mount: it mounts without root, and answers the kernel from a real folder.

It is a separate process, since a file system in the interpreter that uses it would deadlock: a page fault
would hold the lock (GIL) that the file system needs to answer. Several threads receive requests and compute
answers, so that a folder on a real parallel file system gets concurrent requests; one thread sends delayed
answers when they are due. So an operation in flight needs no thread.

With latency: look-up of a file name (also a missing one), open, listing, target of a link, status of the file
system. Without latency: a folder that was looked up before and an open file, which a client of a parallel
file system caches; close; read, which is limited by the bandwidth only. The kernel caches names of files for
0 seconds, so each path is looked up again, and attributes for one second, so that a `stat` is one request and
not two. It drops the pages of a file at each open, so bytes are read again too; until then they can be
mapped.

The FUSE protocol over `/dev/fuse` is here as far as a read-only file system needs it. Each message is a
header and a body of C structs. An answer repeats the number of its request, so answers may be sent in any
order.

The traps: on a mount without its process every call fails. So the process unmounts and ends on SIGTERM, and
when its parent has ended. A file that stays open is read from memory the second time, as on a real client.
And without PARALLEL_DIROPS in the answer to INIT, the kernel sends look-ups of one folder one after the
other, and a slow server looks slower than it is. libfuse 3.14 (Debian 12, Ubuntu 24.04) omits it: there 8
threads got 442 of 4,000 look-ups per second. So this module uses no library.

Format: `include/uapi/linux/fuse.h` of Linux, protocol 7.31; fuse(4).

A user mounts through `fusermount3`, a small privileged program that returns the open channel to the
kernel. A mount whose process was killed stays in the table of mounts, and each call on it fails
with "Transport endpoint is not connected"; `repair` unmounts it.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Any, NamedTuple

from pysquashfs.mounts import read_mounts
from pysquashfs.text import like_this
from smallfiles.errors import ResourceError, SmallfilesError, UsageError
from smallfiles.machine.filesystems import mount_of
from smallfiles.processes import SIGNALS
from smallfiles.slowfs import COUNTS_BYTES, Delays, SlowConfig

ROOT = 1
IN_HEADER = struct.Struct("=IIQQIIII")
"""Length, operation, number, node, user, group, process, padding."""

READ_IN = struct.Struct("=QQI")
"""Handle, offset, size; further fields are not needed."""

HANDLE_IN = struct.Struct("=Q")
_INIT_IN = struct.Struct("=IIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHH32x")
_OUT_HEADER = struct.Struct("=IiQ")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("=QQQQII")
_VALID = struct.Struct("=QII")
_OPEN_OUT = struct.Struct("=QII")
_STATFS_OUT = struct.Struct("=QQQQQIII28x")
_ENTRY_OF_FOLDER = struct.Struct("=QQII")

_ASYNC_READ, _PARALLEL_DIROPS, _MAX_PAGES = 1 << 0, 1 << 18, 1 << 22
_MINOR, _PAGES, _IN_FLIGHT, _LEAST_WRITE = 31, 256, 1024, 4096
_FOLDER_NAME_S, _FILE_NAME_S, _ATTRIBUTES_S = 3600, 0, 1
REQUEST_BYTES = 65536
"""Enough for any request: without writes, names are the longest part."""


class Operation(IntEnum):
    """Requests of the kernel; after the answer ENOSYS it does not send an operation again."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    READLINK = 5
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


UNANSWERED = frozenset({Operation.FORGET, Operation.BATCH_FORGET, Operation.INTERRUPT})
"""Requests to which the kernel expects no answer."""


def header(number: int, length: int, error: int = 0) -> bytes:
    """Return the header for a body of `length` bytes, or for an error without a body."""
    return _OUT_HEADER.pack(_OUT_HEADER.size + length, -error, number)


def init_out(body: memoryview) -> bytes:
    """Return the answer to INIT: protocol version, and number of concurrent operations."""
    _, minor, readahead, _ = _INIT_IN.unpack_from(body)
    flags = _ASYNC_READ | _PARALLEL_DIROPS | _MAX_PAGES
    return _INIT_OUT.pack(
        7, min(minor, _MINOR), readahead, flags, _IN_FLIGHT, _IN_FLIGHT, _LEAST_WRITE, 1, _PAGES, 0
    )


def entry_out(node: int, about: os.stat_result) -> bytes:
    """Return the answer to LOOKUP, with the seconds for which the kernel may keep name and attributes."""
    name_s = _FOLDER_NAME_S if S_ISDIR(about.st_mode) else _FILE_NAME_S
    return _ENTRY.pack(node, 0, name_s, _ATTRIBUTES_S, 0, 0) + _attributes(about)


def open_out(handle: int) -> bytes:
    """Return the answer to OPEN and OPENDIR. It makes the kernel drop pages from an earlier open."""
    return _OPEN_OUT.pack(handle, 0, 0)


def statfs_out(about: os.statvfs_result) -> bytes:
    """Return the answer to STATFS."""
    return _STATFS_OUT.pack(
        *(about.f_blocks, about.f_bfree, about.f_bavail, about.f_files, about.f_ffree),
        *(about.f_bsize, about.f_namemax, about.f_frsize),
    )


def entry_of_folder(name: bytes, inode: int, mode: int, position: int) -> bytes:
    """Return one entry of a listing. `position` is the position of the next entry."""
    kind = (mode >> 12) & 0o17
    padding = -(_ENTRY_OF_FOLDER.size + len(name)) % 8
    return _ENTRY_OF_FOLDER.pack(inode, position, len(name), kind) + name + bytes(padding)


def part_of_listing(entries: Sequence[bytes], start: int, room: int) -> bytes:
    """Return the entries from `start` on that fit into `room` bytes."""
    taken = []
    for entry in entries[start:]:
        room -= len(entry)
        if room < 0:
            break
        taken.append(entry)
    return b"".join(taken)


def _attributes(about: os.stat_result) -> bytes:
    seconds, parts = zip(
        *(divmod(ns, 10**9) for ns in (about.st_atime_ns, about.st_mtime_ns, about.st_ctime_ns)), strict=True
    )
    return _ATTRIBUTES.pack(
        *(about.st_ino, about.st_size, about.st_blocks),
        *(second % (1 << 64) for second in seconds),  # before 1970 too
        *parts,
        *(about.st_mode, about.st_nlink, about.st_uid, about.st_gid, 0, about.st_blksize, 0),
    )


# A file may be replaced after its look-up: do not block on a pipe, do not follow a link.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Answer(NamedTuple):
    """A body or an error, and when to send it (monotonic seconds; 0 for at once)."""

    body: bytes
    leave_at: float = 0.0
    error: int = 0


class Tree:
    """A folder as the kernel sees it: nodes are numbers, open files are handles.

    Args:
        root: The folder.
        delays: Delays operations and bytes.
    """

    def __init__(self, root: bytes, delays: Delays) -> None:
        self._delays = delays
        self._lock = threading.Lock()
        self._paths = {ROOT: root.rstrip(b"/") or b"/"}  # never forgotten: as many as files
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
        except OSError as error:  # with the latency of a success: the server had to look up the name
            return Answer(b"", leave_at, error.errno or errno.EIO)
        with self._lock:
            known = self._nodes.setdefault(path, len(self._paths) + 1)
            self._paths[known] = path
        return Answer(entry_out(known, about), leave_at)

    def _getattr(self, node: int, body: memoryview) -> Answer:
        about = os.lstat(self._paths[node])
        known = S_ISDIR(about.st_mode) or self._held[node] > 0
        leave_at = 0.0 if known else self._delays.operation("lookup")
        return Answer(_VALID.pack(_ATTRIBUTES_S, 0, 0) + _attributes(about), leave_at)

    def _readlink(self, node: int, body: memoryview) -> Answer:
        target = os.readlink(self._paths[node])  # noqa: PTH115 - as bytes
        return Answer(target, self._delays.operation("other"))

    def _open(self, node: int, body: memoryview) -> Answer:
        leave_at = self._delays.operation("open")
        handle = os.open(self._paths[node], _FLAGS)
        with self._lock:
            self._held[node] += 1
        return Answer(open_out(handle), leave_at)

    def _read(self, node: int, body: memoryview) -> Answer:
        handle, offset, size = READ_IN.unpack_from(body)
        data = os.pread(handle, size, offset)
        return Answer(data, self._delays.transfer(len(data)))

    def _release(self, node: int, body: memoryview) -> Answer:
        (handle,) = HANDLE_IN.unpack_from(body)
        with self._lock:
            self._held[node] -= 1
        os.close(handle)
        return Answer(b"")

    def _statfs(self, node: int, body: memoryview) -> Answer:
        return Answer(statfs_out(os.statvfs(self._paths[node])), self._delays.operation("other"))

    def _open_folder(self, node: int, body: memoryview) -> Answer:
        leave_at = self._delays.operation("list")
        entries = [entry_of_folder(name, 1, 0o040000, at) for at, name in ((1, b"."), (2, b".."))]
        with os.scandir(self._paths[node]) as found:
            for entry in found:
                about = entry.stat(follow_symlinks=False)
                position = len(entries) + 1
                entries.append(entry_of_folder(entry.name, about.st_ino, about.st_mode, position))
        with self._lock:
            self._last_listing += 1
            self._listings[self._last_listing] = entries
            return Answer(open_out(self._last_listing), leave_at)

    def _read_folder(self, node: int, body: memoryview) -> Answer:
        handle, offset, size = READ_IN.unpack_from(body)
        return Answer(part_of_listing(self._listings[handle], offset, size))

    def _release_folder(self, node: int, body: memoryview) -> Answer:
        (handle,) = HANDLE_IN.unpack_from(body)
        with self._lock:
            del self._listings[handle]
        return Answer(b"")


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
        """Return the command line of the server."""
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
        message = (header(number, len(body), error), body)
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
    buffer = bytearray(REQUEST_BYTES)
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
    _, operation, number, node, *_ = IN_HEADER.unpack_from(request)
    body = request[IN_HEADER.size :]
    find = tree.answers.get(operation)
    if operation == Operation.INIT:
        sender.send(number, init_out(body))
        _report(READY)
    elif find is None:
        if operation not in UNANSWERED:
            sender.send(number, b"", error=errno.ENOSYS)
    else:
        try:
            sender.send(number, *find(node, body))
        except OSError as error:
            sender.send(number, b"", error=error.errno or errno.EIO)
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
        unmount(Path(request.point), request.remove)


def main() -> None:
    """Serve the request on the command line; report a failure as JSON."""
    try:
        serve(MountRequest(**json.loads(sys.argv[1])))
    except SmallfilesError as error:
        _report(json.dumps([error.got, error.expected, error.next_step]))
        os._exit(1)
    os._exit(0)  # threads may still wait for requests


SUBTYPE = "smallfiles-slowfs"
KIND = f"fuse.{SUBTYPE}"
"""The type of file system in the table of mounts."""

DEVICE = Path("/dev/fuse")
_TOOLS = ("fusermount3", "fusermount")
_OPTIONS = f"ro,nosuid,nodev,fsname=slowfs,subtype={SUBTYPE}"
_LIMIT_S = 10


def why_not(device: Path = DEVICE) -> str | None:
    """Return why no folder can be mounted here, or None if it is possible."""
    if not device.exists():
        return f"{device} does not exist (the kernel, or the container, has no FUSE)"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"you may not use {device}"
    if _tool() is None:
        return "the command fusermount3 is missing (package fuse3)"
    return None


def check(folder: Path, point: Path) -> None:
    """Refuse a folder or a mount point that cannot be used.

    Raises:
        UsageError: Not a folder, or nested mounts.
        ResourceError: The mount point is in use, or one of the two cannot be examined.
    """
    try:
        problem = _problem(folder, point)
        free = problem is not None or not point.exists() or (point.is_dir() and not any(point.iterdir()))
    except OSError as error:
        raise ResourceError(
            f"{error.filename} cannot be used ({error.strerror})",
            expected="a folder and a mount point that you may read",
            next_step="Check their permissions, and unmount dead mounts (fusermount3 -u)",
        ) from error
    if problem is not None:
        raise UsageError(
            problem,
            expected="a folder, and a mount point outside of it, neither on a slow mount",
            next_step="Check the paths, and use the folder behind a slow mount",
        )
    if not free:
        raise ResourceError(
            f"{point} is not an empty folder",
            expected="an empty folder, or a name that is free, to mount at",
            next_step="Choose another mount point",
        )


def _problem(folder: Path, point: Path) -> str | None:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if point.is_relative_to(folder) or folder.is_relative_to(point):
        return f"{point} and {folder} lie within each other"
    slow = next((path for path in (folder, point) if _kind(path) == KIND), None)
    return None if slow is None else f"{slow} is already on a slow mount"


def mount(point: Path) -> int:
    """Mount an empty file system at `point`.

    Returns:
        The descriptor through which the kernel sends its requests.

    Raises:
        ResourceError: It is not possible here; the message has the reason.
    """
    reason, tool = why_not(), _tool()
    if reason is None and tool is not None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            environment = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
            command = [tool, "-o", _OPTIONS, "--", str(point)]
            done = _run(command, env=environment, pass_fds=[theirs.fileno()])
            theirs.close()
            if done.returncode == 0:
                _, descriptors, *_ = socket.recv_fds(ours, 1, 1)
                return descriptors[0]
        reason = done.stderr.decode(errors="replace").strip() or f"{tool} failed"
    raise impossible(f"{point} cannot be mounted: {reason}")


def _run(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
    closed = subprocess.DEVNULL
    return subprocess.run(command, stdin=closed, capture_output=True, timeout=_LIMIT_S, check=False, **more)


def impossible(got: str) -> ResourceError:
    """Return the error for a machine on which mounting is not possible."""
    return ResourceError(
        got,
        expected="FUSE, which lets users mount folders",
        next_step="Use slowfs.open_slow, which delays reads in this process instead",
    )


def unmount(point: Path, remove: bool = False) -> None:
    """Unmount a slow mount, also if it is in use or dead; does nothing if there is none.

    Args:
        point: The mount point.
        remove: Whether to remove it then.
    """
    tool = _tool()
    if tool is not None and point in _points():
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            _run([tool, "-u", "-z", "-q", "--", str(point)])
    if remove:
        with contextlib.suppress(OSError):  # of another user
            point.rmdir()


def _points() -> list[Path]:
    """List the slow mounts of the table of mounts, without a request to them."""
    return [Path(found.point) for found in read_mounts() if found.kind == KIND]


def repair(point: Path) -> None:
    """Unmount a slow mount at `point` whose process is dead."""
    if point in _points() and _is_dead(point):
        unmount(point)


def sweep(parent: Path, prefix: str) -> None:
    """Unmount and remove the mounts of killed processes in `parent`."""
    for point in _points():
        if point.parent == parent and point.name.startswith(prefix) and _is_dead(point):
            unmount(point, remove=True)


def _is_dead(point: Path) -> bool:
    try:
        os.stat(point)  # noqa: PTH116 - Path.stat would be the same call
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _kind(path: Path) -> str:
    found = mount_of(os.path.realpath(path), read_mounts())
    return found.kind if found else ""


def _tool() -> str | None:
    return next(filter(None, map(shutil.which, _TOOLS)), None)
