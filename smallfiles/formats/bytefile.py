"""A packed file that is read by position: through a memory map, or with `pread`.

A mapping gives views without a copy, and all workers of a node share the page cache behind it. On a
parallel file system each page that is touched may become a request of its own, so one `pread` per
sample is better there.

The trap: if another program truncates a mapped file, or its storage goes away, the next access ends this
process with SIGBUS, whereas `pread` fails or reads short, which can be reported and tried again. So with
`pread` nothing is mapped, not even metadata. Notebook 04 compares the two.
"""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pysquashfs.compression import FREE_BYTES, MOST_TIMES
from smallfiles.errors import DamagedFileError, FormatError, SmallfilesError, refuse_shortage
from smallfiles.machine import is_parallel_filesystem
from smallfiles.progress import bytes_text
from smallfiles.samples import Buffer
from smallfiles.storage import READ_FLAGS, answered, reopening

_Read = TypeVar("_Read")
Access: TypeAlias = Literal["auto", "mmap", "pread"]
# A mapping of Python before 3.13 keeps a descriptor of its own, and so does every view of it.
AHEAD_BYTES = 128 << 10
"""Bytes to announce in one call. By default, this is the read-ahead of Linux, which may ignore the excess."""
_WINDOW_BITS = 16  # of 64 KiB
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


@functools.lru_cache
def _read_ahead_bytes(device: int) -> int:
    """Return how many bytes the kernel reads ahead on a file system.

    An NFS or Lustre mount may allow megabytes.
    """
    told = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    return max(AHEAD_BYTES, int(told.read_text()) << 10) if told.exists() else AHEAD_BYTES


class ByteFile:
    """An open file without a moving offset, so that threads may share it.

    Args:
        path: The file.
        access: How bytes are fetched. With `auto`, the file system of the file decides.

    Raises:
        FormatError: The file cannot be opened.
        ResourceError: This process cannot open another file.
        DamagedFileError: The file is empty.
    """

    is_stored = True

    def __init__(self, path: Path, access: Access = "auto") -> None:
        self.path = path
        try:
            self._descriptor = answered(path, os.open, path, READ_FLAGS)
        except OSError as error:
            raise _unopened(path, error) from error
        closing = weakref.finalize(self, _close, self._descriptor)
        closing.atexit = False
        status = answered(path, os.fstat, self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _unopened(path, OSError(0, "it is no plain file"))
        self.size, self._mtime_ns = status.st_size, status.st_mtime_ns
        if self.size == 0:  # an empty file cannot be mapped
            raise damaged(path, "it is empty")
        if access == "auto":
            access = "pread" if is_parallel_filesystem(path) else "mmap"
        self.mapped = access == "mmap"
        self._view = self._map() if self.mapped else None
        self._read_to, self._piece_bytes = 0, _read_ahead_bytes(status.st_dev)
        self._met = bytearray((self.size >> _WINDOW_BITS) + 1 if self.mapped else 0)
        if self.mapped:
            closing()  # the mapping suffices, so that hundreds of shards fit under the usual limit

    @property
    def view(self) -> memoryview:
        """The file as memory.

        It exists only with `mmap` access, where a failing page fault cannot raise an exception.
        """
        assert self._view is not None, "a file that is read by position is not mapped"
        return self._view

    def array(self, kind: np.dtype[Any], count: int, start: int) -> npt.NDArray[Any]:
        """Return numbers from the file as an array.

        The array lies over the memory of the file if it is mapped. Otherwise, it is a copy.

        Args:
            kind: Type of the numbers.
            count: How many numbers to return.
            start: Position of the first number, in bytes.

        Raises:
            DamagedFileError: Some of the numbers are missing.
        """
        return np.frombuffer(self.read(start, start + count * kind.itemsize), kind, count)

    def _map(self) -> memoryview:
        try:
            # pyarrow's memory_map would read the first megabytes ahead, whichever sample is wanted.
            self._mapping = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ, **_UNTRACKED)
        except (OSError, ValueError) as error:
            raise _unopened(self.path, error) from error
        return memoryview(self._mapping)

    def read(self, start: int, stop: int) -> Buffer:
        """Return the bytes from `start` to `stop`: a view of a mapped file, or a copy fetched by one `pread`.

        Raises:
            DamagedFileError: Some of the bytes are missing.
        """
        mapped = self._view
        if mapped is not None and 0 <= start <= stop <= self.size:
            if not self._met[start >> _WINDOW_BITS]:
                self._meet(start, stop)
            return mapped[start:stop]
        if not 0 <= start - self._read_to <= mmap.PAGESIZE:  # else Linux notices it, and reads further ahead
            self.prefetch(start, min(stop, start + 64 * AHEAD_BYTES))
        self._read_to = stop
        data = self.fetch(start, stop) if 0 <= start <= stop <= self.size else b""
        if len(data) != stop - start:
            raise damaged(self.path, f"bytes {start:,} to {stop:,} are not all there")
        return data

    def _meet(self, start: int, stop: int) -> None:
        """Announce bytes to the kernel that are read for the first time.

        Linux fetches as much around a page that is touched without an announcement as its read-ahead allows:
        0.1 MB, or 8 MB on some systems, for a sample of 4 kB.
        """
        first, end = start >> _WINDOW_BITS, (stop >> _WINDOW_BITS) + 1
        self._advise(first << _WINDOW_BITS, min(end << _WINDOW_BITS, self.size))
        self._met[first:end] = b"\1" * (end - first)

    def fetch_some(self, start: int, count: int) -> bytes:
        """Return a copy of at most `count` bytes from `start` on. At the end of the file, there are fewer."""
        start = min(max(start, 0), self.size)
        stop = min(start + count, self.size)
        return self.fetch(start, stop) if self._view is None else bytes(self._view[start:stop])

    def prefetch(self, start: int, stop: int) -> None:
        """Ask the kernel to fetch these bytes in the background, because they will be read soon.

        Without this, each page of a mapped file is fetched only when it is touched. Announcing all samples of
        a batch of 64 before the first read keeps many requests in flight: 6,000 instead of 650 random samples
        per second from a cold file of 4.4 GB on a local disk (measured). It costs 2 µs per sample if they are
        cached.
        """
        if 0 <= start < stop <= self.size:
            self._advise(start, stop)

    def _advise(self, start: int, stop: int) -> None:
        start -= start % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # only advice: reading works without it
            if self.mapped:
                self._mapping.madvise(mmap.MADV_WILLNEED, start, stop - start)
            elif hasattr(os, "posix_fadvise"):
                for at in range(start, stop, piece := self._piece_bytes):
                    os.posix_fadvise(self._descriptor, at, min(piece, stop - at), os.POSIX_FADV_WILLNEED)

    def forget(self) -> None:
        """Release mapped pages that are not needed again. They stay in the page cache."""
        if self._view is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def fetch(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes from `start` to `stop`.

        At the end of the file, there may be fewer bytes.
        """
        return self._answered(self._fetch, start, stop)

    def _fetch(self, start: int, stop: int) -> bytes:
        data = os.pread(self._descriptor, stop - start, start)
        while (left := stop - start - len(data)) and (more := os.pread(self._descriptor, left, stop - left)):
            data += more  # Linux reads at most 2 GiB at once
        return data

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Read from `start` on until `buffer` is full or the file ends.

        Return the number of bytes that were read.
        """
        return self._answered(self._read_into, start, buffer)

    def _read_into(self, start: int, buffer: memoryview) -> int:
        filled = os.preadv(self._descriptor, (buffer,), start)
        while (
            filled
            and (rest := buffer[filled:])
            and (more := os.preadv(self._descriptor, (rest,), start + filled))
        ):
            filled += more
        return filled

    def _answered(self, read: Callable[..., _Read], *where: Any) -> _Read:
        """Call a function that reads, and wait if the storage does not answer."""
        try:
            same = (self.size, self._mtime_ns)
            return answered(self.path, reopening, self.path, self._descriptor, same, read, *where)
        except OSError as error:
            refuse_shortage(error, self.path)
            raise damaged(self.path, f"reading failed ({error.strerror})") from error

    def disable_readahead(self) -> None:
        """Turn off read-ahead, which would fetch a whole archive when only its headers are needed."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the mount is gone: nothing was written that could be lost
        os.close(descriptor)


_AGAIN = "Copy it again from where it is whole, or pack it again"


class RawFile(io.RawIOBase):
    """A file object with its own offset on top of a `ByteFile`, for libraries that read from file objects.

    If HDF5 were given a path, it would reuse a descriptor that this process already has for the file, and
    after a fork several processes would move its offset. Besides, shared storage may refuse a lock. The
    `ByteFile` also waits for storage that does not answer.

    Args:
        file: The file to read.
    """

    def __init__(self, file: ByteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._file.size)
        part = self._file.read(min(self._at, stop), stop)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def arrow_file(path: Path, access: Access = "auto") -> pa.NativeFile:
    """Open a file for pyarrow. It is mapped into memory only on a local disk, or if `access` is `mmap`."""
    by_position = access == "pread" or (access == "auto" and is_parallel_filesystem(path))
    return (pa.OSFile if by_position else pa.memory_map)(str(path))


def damaged(
    path: Path | str, what: str, expected: str = "the file as it was written", next_step: str = _AGAIN
) -> DamagedFileError:
    """Return the error for a file whose bytes cannot be right."""
    return DamagedFileError(f"{path} is damaged: {what}", expected=expected, next_step=next_step)


def refuse_bomb(path: Path, stored: int, unpacked: int, times: int = MOST_TIMES) -> None:
    """Refuse an archive that becomes far larger when it is unpacked, whatever its format.

    Honest data stays below the limit: text shrinks 3 to 20 times, and pictures hardly at all.

    Args:
        path: The archive.
        stored: Size of the archive in bytes.
        unpacked: Total size of its unpacked files in bytes. For a stream, the bytes unpacked so far.
        times: How many times `stored` the unpacked files may have. Data kept in memory gets a lower limit.

    Raises:
        FormatError: The unpacked files exceed this limit, and also 1 GiB.
    """
    if unpacked > max(FREE_BYTES, times * stored):
        raise FormatError(
            f"{path} has {bytes_text(stored)} and unpacks to {bytes_text(unpacked)} or more",
            expected=f"at most {times} times its size, or {bytes_text(FREE_BYTES)}",
            next_step="If that is right, unpack it to a local disk, and pack that folder",
        )


@contextlib.contextmanager
def damage_reported(path: Path, what: str = "") -> Iterator[None]:
    """Report every exception that a library raises inside this context as damage of `path`.

    pyarrow and HDF5 have a dozen exceptions for a damaged file.

    Args:
        path: The file.
        what: The part of the file that is read. It begins the sentence about the damage, and ends with a
            colon.
    """
    try:
        yield
    except SmallfilesError:
        raise
    except Exception as error:
        refuse_shortage(error, path)
        first_line = str(error).partition("\n")[0]
        raise damaged(path, f"{what} {first_line or type(error).__name__}".lstrip()) from error


def _unopened(path: Path, error: OSError | ValueError) -> FormatError:
    refuse_shortage(error, path)
    if isinstance(error, ValueError):  # mmap: the file is shorter than fstat said
        return damaged(path, "it was truncated while it was opened")
    return FormatError(
        f"{path} cannot be opened ({error.strerror})",
        expected="a packed file that you may read",
        next_step="Check the path and its permissions",
    )
