"""The bytes of one shard by position: memory-mapped, read with `pread`, or unpacked by frame.

The trap: a memory map turns a file that shrinks under it into SIGBUS, and on some parallel file
systems it reads 4 KiB at a time; there `pread` asks for what is needed in one request. Neither has an
offset that processes could fight over. Notebook 05 compares them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa

from helpers.errors import DamagedFileError, FormatError
from helpers.formats.tar import compression
from helpers.formats.tar.options import Compression

Access: TypeAlias = Literal["auto", "mmap", "pread"]
Frames: TypeAlias = Sequence[tuple[int, int]]
"""(compressed offset, raw offset) of each frame's start, and of the end."""
MAX_SCANNED_FRAME_BYTES = 256 << 20


class Store(Protocol):
    """The tar stream of one shard."""

    size: int

    def view(self, offset: int, size: int) -> memoryview:
        """Bytes at `offset`; fewer than `size` where the stream ends."""


class MappedStore:
    """A shard in the address space: a view costs no copy and no system call."""

    def __init__(self, path: Path) -> None:
        with reading(path):
            self.size = path.stat().st_size
            if self.size == 0:  # an empty file cannot be mapped
                self._view = memoryview(b"")
                return
            with pa.memory_map(str(path)) as source:  # the map outlives the descriptor
                self._view = memoryview(source.read_buffer(self.size))

    def view(self, offset: int, size: int) -> memoryview:
        return self._view[offset : offset + size]


class PreadStore:
    """A shard read by position: one request a sample."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        with reading(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size = os.fstat(self._descriptor).st_size

    def view(self, offset: int, size: int) -> memoryview:
        size = max(0, min(size, self.size - offset))
        with reading(self._path):
            return memoryview(os.pread(self._descriptor, size, offset))

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class FramedStore:
    """A compressed shard: unpacks the frames that a view touches and keeps the last one.

    Args:
        store: The compressed bytes.
        kind: How they are compressed.
        frames: Where the frames start, and where the last one ends.
    """

    def __init__(self, path: Path, store: Store, kind: Compression, frames: Frames) -> None:
        self._path, self._store, self._kind = path, store, kind
        self._packed = [start for start, _ in frames]
        self._raw = [start for _, start in frames]
        self._last: tuple[int, bytes] = (-1, b"")
        self.size = self._raw[-1]

    def view(self, offset: int, size: int) -> memoryview:
        size = max(0, min(size, self.size - offset))
        number = bisect_right(self._raw, offset) - 1
        pieces: list[memoryview] = []
        while size > 0:
            start = offset - self._raw[number]
            piece = memoryview(self._frame(number))[start : start + size]
            pieces.append(piece)
            offset, size, number = offset + len(piece), size - len(piece), number + 1
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _frame(self, number: int) -> bytes:
        kept, data = self._last  # one tuple, replaced as a whole: threads never see half of it
        if kept == number:
            return data
        packed = self._store.view(self._packed[number], self._packed[number + 1] - self._packed[number])
        try:
            data = compression.decompress(self._kind, packed, self._raw[number + 1] - self._raw[number])
        except compression.BadFrameError as error:
            raise bad_frame(self._path, self._packed[number], error) from error
        self._last = (number, data)
        return data


def file_store(path: Path, access: Access) -> Store:
    """The plain bytes of `path`; `auto` maps into memory, except on parallel file systems."""
    if access == "auto":
        from helpers.machine import is_parallel_filesystem

        access = "pread" if is_parallel_filesystem(path) else "mmap"
    return PreadStore(path) if access == "pread" else MappedStore(path)


def find_frames(path: Path, store: Store, kind: Compression) -> list[tuple[int, int]]:
    """Frames of a shard that has no index, by unpacking all of it once.

    Raises:
        DamagedFileError: The stream is damaged or cut.
        FormatError: One frame is too large to be unpacked for each read.
    """
    frames = [(0, 0)]
    try:
        for packed, raw in compression.frame_lengths(kind, store.view(0, store.size)):
            if raw > MAX_SCANNED_FRAME_BYTES:
                raise FormatError(
                    f"{path} is one {kind} stream of more than {raw >> 20} MiB without an index",
                    expected="frames of about 1 MiB, as this package writes them, for random access",
                    next_step="Unpack it with gunzip or unzstd, or pack it again with this package",
                )
            frames.append((frames[-1][0] + packed, frames[-1][1] + raw))
    except compression.BadFrameError as error:
        raise bad_frame(path, frames[-1][0], error) from error
    return frames


def bad_frame(path: Path, offset: int, error: Exception) -> DamagedFileError:
    """The sentence for a frame that does not unpack."""
    return DamagedFileError(
        f"{path} does not unpack at byte {offset:,} ({error})",
        expected="the compressed bytes that were written",
        next_step="Copy or pack it again; check with: python -m helpers verify",
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into sentences that name `path`."""
    try:
        yield
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read ({error.strerror or error})",
            expected="a shard that exists and that you may read",
            next_step="Check the path and your permissions",
        ) from error
