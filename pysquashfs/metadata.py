"""Metadata: runs of compressed 8 KiB blocks, unpacked once into one piece of memory.

Inodes and listings may extend over several blocks, so each run is unpacked whole and addressed as one
array; numpy then reads a field of a million inodes in one step.

The trap: 8 KiB compress to a dozen bytes, so a small image can expand to gigabytes of metadata. The
unpacked size of a run is limited by its stored size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import compression, layout
from pysquashfs.compression import BlockError
from pysquashfs.errors import DamagedImageError
from pysquashfs.image_file import ImageFile

Array = npt.NDArray[Any]
FREE_BYTES = 64 << 20  # metadata may always expand to this, plus …
MAX_GROWTH = 64  # … this multiple of its stored size; real images stay below 20
PADDING_BYTES = 64  # after a table, so that fields of a truncated inode can be read before it is refused
_WINDOW_BYTES = 1 << 20


def read_block(image: ImageFile, start: int, compressor: str, window: bytes, at: int) -> tuple[bytes, int]:
    """The metadata block at `at` in `window`, and its stored size with the header.

    `start` is its position in the image, for messages.
    """
    header = window[at : at + 2]
    size = int.from_bytes(header, "little") & ~layout.METADATA_RAW
    stored = window[at + 2 : at + 2 + size]
    if not 0 < size <= layout.METADATA_BYTES or len(stored) != size:
        raise _damaged(image, start, f"claims {size:,} bytes", "1 to 8,192 bytes inside its table")
    if int.from_bytes(header, "little") & layout.METADATA_RAW:
        return stored, size + 2
    try:
        return compression.decompress(compressor, stored, layout.METADATA_BYTES), size + 2
    except BlockError as error:
        raise _damaged(image, start, f"does not decompress ({error})", "one as it was written") from error


class Table:
    """A run of metadata blocks, unpacked.

    Args:
        path: The image, for messages.
        what: What is in them, for messages.
        data: Their bytes.
        starts: Where each block starts in the image, counted from the first one.
    """

    def __init__(self, path: Path, what: str, data: bytes | bytearray, starts: Sequence[int] = ()) -> None:
        self.path, self.what, self.size = path, what, len(data)
        self.raw = bytes(data) + bytes(PADDING_BYTES)
        self._starts = np.array(starts, np.int64)

    @classmethod
    def read(cls, image: ImageFile, start: int, stop: int, compressor: str, what: str) -> Table:
        """Read the blocks of an image from byte `start` to `stop`.

        Raises:
            DamagedImageError: A block is damaged, or the run is absurdly large.
        """
        limit = FREE_BYTES + MAX_GROWTH * (stop - start)
        data, starts = bytearray(), []
        for position, block in _blocks(image, start, stop, compressor):
            if len(data) % layout.METADATA_BYTES:
                raise _damaged(image, position, "follows one of less than 8 KiB", "only a last one shorter")
            starts.append(position - start)
            data += block
            if len(data) > limit:
                raise _bomb(image, what, limit)
        return cls(image.path, what, data, starts)

    @cached_property
    def u16(self) -> Array:
        """The 16-bit number that starts at each byte."""
        return self._view("<u2", 2)

    @cached_property
    def u32(self) -> Array:
        """The 32-bit number that starts at each byte."""
        return self._view("<u4", 4)

    @cached_property
    def u64(self) -> Array:
        """The 64-bit number that starts at each byte."""
        return self._view("<u8", 8)

    def _view(self, kind: str, width: int) -> Array:
        return np.ndarray((len(self.raw) - width + 1,), kind, self.raw, strides=(1,))

    def positions(self, block: Array, offset: Array, what: str) -> Array:
        """Positions in `raw` of references: the stored start of a block, and an offset in it.

        Raises:
            DamagedImageError: No block starts there, or the table is too short.
        """
        if not len(block):
            return np.zeros(0, np.int64)
        if not len(self._starts):
            raise self.damaged("is empty", f"what {what} refers to")
        block, offset = block.astype(np.int64), offset.astype(np.int64)
        row = np.minimum(np.searchsorted(self._starts, block), len(self._starts) - 1)
        found = row * layout.METADATA_BYTES + offset
        bad = (self._starts[row] != block) | (offset >= layout.METADATA_BYTES) | (found >= self.size)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise self.damaged(
                f"holds nothing at block {block[first]:,}, offset {offset[first]:,}", f"what {what} refers to"
            )
        return found

    def damaged(self, fault: str, expected: str) -> DamagedImageError:
        """The error that says what is wrong with this table."""
        return DamagedImageError.of(self.path, f"its table of {self.what} {fault}", expected)


def _blocks(image: ImageFile, start: int, stop: int, compressor: str) -> Iterator[tuple[int, bytes]]:
    window, base, position = b"", start, start
    while position < stop:
        if position + 2 + layout.METADATA_BYTES > base + len(window) and base + len(window) < stop:
            base = position
            window = image.read(base, min(_WINDOW_BYTES, stop - base), "metadata")
        block, stored = read_block(image, position, compressor, window, position - base)
        yield position, block
        position += stored


def unpacked_limit(image: ImageFile, start: int, stop: int, what: str) -> int:
    """The most bytes that a table can have when unpacked, by the headers of its blocks alone.

    Raises:
        DamagedImageError: A block is damaged, or the table is absurdly large.
    """
    found, position = 0, start
    while position < stop:
        header = int.from_bytes(image.read(position, 2, what), "little") & ~layout.METADATA_RAW
        if not 0 < header <= layout.METADATA_BYTES:
            raise _damaged(image, position, f"claims {header:,} bytes", "1 to 8,192 bytes inside its table")
        found += layout.METADATA_BYTES
        position += header + 2
    limit = FREE_BYTES + MAX_GROWTH * (stop - start)
    if found > limit:
        raise _bomb(image, what, limit)
    return found


def read_entries(
    image: ImageFile, start: int, count: int, entry_bytes: int, compressor: str, what: str
) -> tuple[bytes, int]:
    """A table with a list of the positions of its blocks: fragments, ids, exports.

    Returns:
        Its entries, and where its first block starts (`start` when it is empty).
    """
    blocks = -(-count * entry_bytes // layout.METADATA_BYTES)
    listed = np.frombuffer(image.read(start, 8 * blocks, f"the list of {what}"), "<u8")
    if not blocks:
        return b"", start
    ends = np.append(listed[1:], np.uint64(start))
    if (listed >= ends).any() or (np.diff(listed) > layout.METADATA_BYTES + 2).any():
        fault = f"the blocks of its table of {what} are not one after another"
        raise DamagedImageError.of(image.path, fault, "them in order, before their list")
    first = int(listed[0])
    limit = FREE_BYTES + MAX_GROWTH * (start - first)
    if count * entry_bytes > limit:
        raise DamagedImageError.of(image.path, f"it counts {count:,} {what}", "as many as are stored")
    found = bytearray()
    for position, end in zip(listed.tolist(), ends.tolist(), strict=True):
        window = image.read(position, min(end - position, layout.METADATA_BYTES + 2), what)
        found += read_block(image, position, compressor, window, 0)[0]
    if len(found) < count * entry_bytes:
        raise DamagedImageError.of(image.path, f"its table of {what} is too short", f"{count:,} entries")
    return bytes(found[: count * entry_bytes]), first


def _damaged(image: ImageFile, start: int, fault: str, expected: str) -> DamagedImageError:
    return DamagedImageError.of(image.path, f"the metadata block at byte {start:,} {fault}", expected)


def _bomb(image: ImageFile, what: str, limit: int) -> DamagedImageError:
    fault = f"its table of {what} grows to more than {limit:,} bytes"
    return DamagedImageError.of(image.path, fault, "no bomb")
