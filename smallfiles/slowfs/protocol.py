"""The FUSE protocol over `/dev/fuse`, as far as a read-only file system needs it.

Each message is a header and a body of C structs. An answer repeats the number of its request, so answers
may be sent in any order, with many operations in flight.

The trap: without PARALLEL_DIROPS in the answer to INIT, the kernel sends look-ups of one folder one after
the other, and a slow server looks slower than it is. libfuse 3.14 (Debian 12, Ubuntu 24.04) omits it: there
8 threads got 442 of 4,000 look-ups per second. So this module uses no library.

Format: `include/uapi/linux/fuse.h` of Linux, protocol 7.31; fuse(4).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from enum import IntEnum

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
    """The header of a body of `length` bytes, or of an error without a body."""
    return _OUT_HEADER.pack(_OUT_HEADER.size + length, -error, number)


def init_out(body: memoryview) -> bytes:
    """The answer to INIT: protocol version, and concurrent operations."""
    _, minor, readahead, _ = _INIT_IN.unpack_from(body)
    flags = _ASYNC_READ | _PARALLEL_DIROPS | _MAX_PAGES
    return _INIT_OUT.pack(
        7, min(minor, _MINOR), readahead, flags, _IN_FLIGHT, _IN_FLIGHT, _LEAST_WRITE, 1, _PAGES, 0
    )


def entry_out(node: int, about: os.stat_result, *, name_s: int, attributes_s: int) -> bytes:
    """The answer to LOOKUP, with the seconds for which the kernel may keep name and attributes."""
    return _ENTRY.pack(node, 0, name_s, attributes_s, 0, 0) + _attributes(about)


def attributes_out(about: os.stat_result, *, attributes_s: int) -> bytes:
    """The answer to GETATTR."""
    return _VALID.pack(attributes_s, 0, 0) + _attributes(about)


def open_out(handle: int) -> bytes:
    """The answer to OPEN and OPENDIR; pages kept from an earlier open are dropped."""
    return _OPEN_OUT.pack(handle, 0, 0)


def statfs_out(about: os.statvfs_result) -> bytes:
    """The answer to STATFS."""
    return _STATFS_OUT.pack(
        *(about.f_blocks, about.f_bfree, about.f_bavail, about.f_files, about.f_ffree),
        *(about.f_bsize, about.f_namemax, about.f_frsize),
    )


def entry_of_folder(name: bytes, inode: int, mode: int, position: int) -> bytes:
    """One entry of a listing; `position` is where the next begins."""
    kind = (mode >> 12) & 0o17
    padding = -(_ENTRY_OF_FOLDER.size + len(name)) % 8
    return _ENTRY_OF_FOLDER.pack(inode, position, len(name), kind) + name + bytes(padding)


def part_of_listing(entries: Sequence[bytes], start: int, room: int) -> bytes:
    """As many entries from `start` on as fit into `room` bytes."""
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
