"""The bytes of a compressed shard by position, unpacked frame by frame; a plain one is a `ByteFile`.

The trap: one gzip stream cannot be entered in its middle, so a reader that seeks in it unpacks all
that lies before, for each sample again. Frames of 1 MiB bound that. Notebook 05 compares them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from helpers.errors import DamagedFileError, FormatError
from helpers.formats.bytefile import ByteFile
from helpers.formats.placed import Store
from helpers.formats.tar import compression
from helpers.formats.tar.options import Compression
from helpers.samples import Buffer

Frames: TypeAlias = Sequence[tuple[int, int]]
"""(compressed offset, raw offset) of each frame's start, and of the end."""
MAX_SCANNED_FRAME_BYTES = 256 << 20


class FramedStore:
    """A compressed shard: unpacks the frames that a read touches and keeps the last one.

    Args:
        file: The compressed bytes.
        kind: How they are compressed.
        frames: Where the frames start, and where the last one ends.
    """

    def __init__(self, file: ByteFile, kind: Compression, frames: Frames) -> None:
        self.path, self._file, self._kind = file.path, file, kind
        self._packed = [start for start, _ in frames]
        self._raw = [start for _, start in frames]
        self._last: tuple[int, bytes] = (-1, b"")
        self.size = self._raw[-1]

    def read(self, start: int, stop: int) -> Buffer:
        """Unpacked bytes; a view where one frame holds them all."""
        pieces: list[memoryview] = []
        for number in self._touched(start, stop):
            first = self._raw[number]
            piece = memoryview(self._frame(number))[max(0, start - first) : stop - first]
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def expect(self, start: int, stop: int) -> None:
        """Announce the frames that hold these bytes."""
        for number in self._touched(start, stop):
            self._file.expect(self._packed[number], self._packed[number + 1])

    def _touched(self, start: int, stop: int) -> range:
        """Numbers of the frames that hold a range."""
        return range(bisect_right(self._raw, start) - 1, bisect_left(self._raw, stop) if stop > start else 0)

    def _frame(self, number: int) -> bytes:
        kept, data = self._last  # one tuple, replaced as a whole: threads never see half of it
        if kept == number:
            return data
        packed = self._file.read(self._packed[number], self._packed[number + 1])
        try:
            data = compression.decompress(self._kind, packed, self._raw[number + 1] - self._raw[number])
        except compression.BadFrameError as error:
            raise bad_frame(self.path, self._packed[number], error) from error
        self._last = (number, data)
        return data


def peek(store: Store, offset: int, size: int) -> Buffer:
    """Bytes at `offset`; fewer than `size` where the stream ends."""
    return store.read(min(offset, store.size), min(offset + size, store.size))


def find_frames(file: ByteFile, kind: Compression) -> list[tuple[int, int]]:
    """Frames of a shard that has no index, by unpacking all of it once.

    Raises:
        DamagedFileError: The stream is damaged or cut.
        FormatError: One frame is too large to be unpacked for each read.
    """
    frames = [(0, 0)]
    try:
        for packed, raw in compression.frame_lengths(kind, file.view):
            if raw > MAX_SCANNED_FRAME_BYTES:
                raise FormatError(
                    f"{file.path} is one {kind} stream of more than {raw >> 20} MiB without an index",
                    expected="frames of about 1 MiB, as this package writes them, for random access",
                    next_step="Unpack it with gunzip or unzstd, or pack it again with this package",
                )
            frames.append((frames[-1][0] + packed, frames[-1][1] + raw))
    except compression.BadFrameError as error:
        raise bad_frame(file.path, frames[-1][0], error) from error
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
