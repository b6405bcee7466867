"""The bytes of single files: by position, with the decompressors of Python.

A file that is stored raw and in one piece, as this project packs them, is one slice of the mapped image
on a local disk, and one `pread` on a parallel file system.

The trap: fragments. If the tails of files share blocks, a random read decompresses a whole block for one
tail; a small cache only helps when reading in stored order. Notebook 06 measures it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pysquashfs import compression, layout
from pysquashfs.compression import BlockError
from pysquashfs.errors import DamagedImageError, SquashFSError
from pysquashfs.image_file import shared
from pysquashfs.index import RAW, Index
from pysquashfs.names import view

_FRAGMENT_CACHE_BYTES = 8 << 20
_RUN_BYTES = 32 << 20  # blocks that are fetched by one pread


class FileReader:
    """Reads files of one image; one for each process and thread.

    Args:
        path: The image.
        index: What is in it.

    Raises:
        SquashFSError: It cannot be opened, or is not the one that was indexed.
    """

    def __init__(self, path: Path, index: Index) -> None:
        self._image = shared(path)
        if (self._image.size, self._image.mtime_ns) != (index.image_bytes, index.mtime_ns):
            raise SquashFSError(
                f"{path} was changed after it was opened",
                expected="the same file as before",
                next_step="Open it again",
            )
        files = index.files
        self._index = index
        self._descriptor = self._image.descriptor
        self._mapping = self._image.mapped()
        self._mapped = None if self._mapping is None else memoryview(self._mapping)
        self._flags, self._size, self._start = view(files.flags), view(files.size), view(files.start)
        self._in_fragment, self._first_word = view(files.fragment), view(files.first_word)
        self._offset, self._words = view(files.fragment_offset), view(index.words)
        self._block_bytes = index.superblock.block_bytes
        self._compressor = index.superblock.compressor
        self._limit = compression.most_bytes(index.image_bytes)
        self._fragments: OrderedDict[int, bytes] = OrderedDict()
        self._kept = max(1, _FRAGMENT_CACHE_BYTES // self._block_bytes)

    def read(self, row: int, *, concurrent: bool = False) -> bytes:
        """All bytes of a file.

        A page fault in the mapping blocks the interpreter, so `pread` is faster if other threads read at
        the same time.
        """
        if not self._flags[row] & RAW:
            return self._assembled(row)
        size, start = self._size[row], self._start[row]
        if self._mapping is not None and not concurrent and self._image.is_whole():
            return self._mapping[start : start + size]
        try:
            data = os.pread(self._descriptor, size, start) if size else b""
        except (OSError, MemoryError):
            data = b""
        return data if len(data) == size else self._image.read(start, size)

    def view(self, row: int) -> bytes | memoryview:
        """All bytes of a file: a slice of the mapped image if it is raw, else as `read`."""
        if self._mapped is None or not self._flags[row] & RAW or not self._image.is_whole():
            return self.read(row)
        start = self._start[row]
        return self._mapped[start : start + self._size[row]]

    def pieces(self, row: int) -> Iterator[bytes]:
        """The bytes of a file, at most one block at a time: for files larger than memory."""
        if self._flags[row] & RAW:
            start, end = self._start[row], self._start[row] + self._size[row]
            for position in range(start, end, self._block_bytes):
                yield self._stored_bytes(position, min(self._block_bytes, end - position))
            return
        size, first = self._size[row], self._first_word[row]
        count, rest = divmod(size, self._block_bytes)
        count += rest > 0 and self._in_fragment[row] == layout.NO_FRAGMENT
        words = self._words[first : first + count].tolist()
        yield from self._unpacked_blocks(self._start[row], words, size)
        if size > count * self._block_bytes:
            yield self._tail(self._in_fragment[row], self._offset[row], rest)

    def _stored_bytes(self, start: int, size: int, what: str = "data") -> bytes:
        return self._image.read(start, size, what)

    def _assembled(self, row: int) -> bytes:
        if self._size[row] > self._limit:
            raise DamagedImageError(
                f"{self._image.path}: {self._index.files.names[row]} claims {self._size[row]:,} bytes in an "
                f"image of {self._image.size:,}",
                expected=f"at most {self._limit:,} at once",
                next_step="Read it piece by piece with chunks(), if you trust the image",
            )
        return b"".join(self.pieces(row))

    def _unpacked_blocks(self, position: int, words: Sequence[int], left: int) -> Iterator[bytes]:
        """The blocks of a file; `left` are the bytes that they give, and their fragment's end."""
        for word, stored in zip(words, self._stored_blocks(position, words), strict=True):
            expected = min(self._block_bytes, left)
            if not word:
                yield bytes(expected)
            else:
                data = bytes(stored) if word & layout.DATA_RAW else self._decompressed(stored, position)
                yield self._checked(data, expected, position)
            position += len(stored)
            left -= expected

    def _stored_blocks(self, position: int, words: Sequence[int]) -> Iterator[memoryview]:
        """Blocks as they are stored: slices of the mapped image, or of runs that one `pread` fetches."""
        sizes = [word & layout.DATA_SIZE for word in words]
        mapped = self._whole_mapping(position + sum(sizes))
        for run in _runs(sizes):
            if mapped is None:
                stored, at = memoryview(self._image.read(position, sum(sizes[k] for k in run))), 0
            else:
                stored, at = mapped, position
            for size in sizes[run.start : run.stop]:
                yield stored[at : at + size]
                at, position = at + size, position + size

    def _whole_mapping(self, end: int) -> memoryview | None:
        """The mapped image, if it has `end` bytes and may be touched."""
        return self._mapped if self._mapped and end <= self._image.size and self._image.is_whole() else None

    def _checked(self, data: bytes, expected: int, position: int) -> bytes:
        if len(data) != expected:
            raise self._damaged(f"the block at byte {position:,} gives {len(data):,} bytes", f"{expected:,}")
        return data

    def _decompressed(self, stored: memoryview, position: int) -> bytes:
        try:
            return compression.decompress(self._compressor, stored, self._block_bytes)
        except BlockError as error:
            fault = f"the block at byte {position:,} does not decompress ({error})"
            raise self._damaged(fault, "it as it was written") from error

    def _tail(self, fragment: int, offset: int, size: int) -> bytes:
        start, word = int(self._index.fragment_start[fragment]), int(self._index.fragment_word[fragment])
        if word & layout.DATA_RAW and offset + size <= word & layout.DATA_SIZE:
            return self._stored_bytes(start + offset, size)
        tail = self._fragment(fragment, start, word)[offset : offset + size]
        if len(tail) != size:
            raise self._damaged(f"the fragment {fragment:,} ends before byte {offset + size:,}", "it whole")
        return tail

    def _fragment(self, fragment: int, start: int, word: int) -> bytes:
        kept = self._fragments
        data = kept.pop(fragment, None)
        if data is None:
            data = self._unpacked(start, word, self._block_bytes)
            if len(kept) >= self._kept:
                kept.popitem(last=False)
        kept[fragment] = data  # now the last to be evicted
        return data

    def _unpacked(self, start: int, word: int, limit: int) -> bytes:
        """A fragment, unpacked to at most `limit` bytes."""
        stored = next(self._stored_blocks(start, [word]))
        return bytes(stored) if word & layout.DATA_RAW else self._decompressed(stored, start)

    def _damaged(self, fault: str, expected: str) -> DamagedImageError:
        return DamagedImageError.of(self._image.path, fault, expected)


def _runs(sizes: list[int]) -> Iterator[range]:
    """Ranges of blocks of at most `_RUN_BYTES` together; the blocks of a file are contiguous."""
    low = total = 0
    for high, size in enumerate(sizes):
        if total + size > _RUN_BYTES:
            yield range(low, high)
            low, total = high, 0
        total += size
    if low < len(sizes):
        yield range(low, len(sizes))
