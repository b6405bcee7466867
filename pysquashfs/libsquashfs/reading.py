"""Read files through the data reader of libsquashfs.

The library sees one block at a time, described by an inode that we write from the checked index: it
never parses a table of the image. So its cache cannot be asked for a wrong block, a size that lies is
noticed, and of its code only unpacking meets bytes that were not checked.

The trap: a reader of the library belongs to one thread of one process. Freeing, in a child, what was
inherited over a fork could free what a thread of the parent had half changed: it is left alone there.
Notebook 06 reads with both back ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

from pysquashfs import layout
from pysquashfs.errors import ClosedError, DamagedImageError, SquashFSError
from pysquashfs.image_file import ImageFile
from pysquashfs.index import RAW, Index
from pysquashfs.libsquashfs.library import CONFIG_WORDS, LZ4_HIGH, UNPACK, Library, failure, load
from pysquashfs.names import view

READ_ONLY = 1
# sqfs_inode_generic_t: the 16 bytes of every inode, bytes there and used of block sizes, the union (here
# an extended file: start, size, sparse, links, fragment, offset, xattr), one block size. Host byte order.
_INODE = Struct("=4H2I 2I 3Q4I I")
_LEVEL, _LEVEL_AT = Struct("=I"), 8  # in sqfs_compressor_config_t
_FRAGMENT_CACHE_BYTES = 8 << 20
_FREE_BYTES = 256 << 20  # what a file may unpack to however small the image, and …
_MAX_GROWTH = 64  # … how many times the image beyond that
_KEPT_BUFFER_BYTES = 1 << 20


class LibraryBackend:
    """Reads files of one image in the thread that made it.

    Args:
        path: The image.
        index: What is in it.

    Raises:
        SquashFSError: The library is missing or too new, or the image is not the one that was indexed.
    """

    def __init__(self, path: Path, index: Index) -> None:
        self._library = library = load()
        self._path, self._index = path, index
        self._block_bytes = index.superblock.block_bytes
        self._limit = _FREE_BYTES + _MAX_GROWTH * index.image_bytes
        files = index.files
        self._flags, self._size, self._start = view(files.flags), view(files.size), view(files.start)
        self._fragments: OrderedDict[int, bytes] = OrderedDict()
        self._kept = max(1, _FRAGMENT_CACHE_BYTES // self._block_bytes)
        self._owner = os.getpid(), threading.get_ident()
        held, self._file, self._reader = _open(library, path, index)
        self._give_back = weakref.finalize(self, give_back, library, held, os.getpid())
        self._give_back.atexit = False
        self._closed = False
        self._inode = library.ffi.new("char[]", _INODE.size)
        self._inode_bytes = memoryview(library.ffi.buffer(self._inode))
        self._out, self._out_bytes = library.ffi.new("uint8_t **"), library.ffi.new("size_t *")
        self._buffer = library.ffi.new("char[]", _KEPT_BUFFER_BYTES)

    def read(self, row: int, *, beside_others: bool = False) -> bytes:
        """All bytes of a file."""
        if self._owner != (os.getpid(), threading.get_ident()):
            raise self._of_another()
        if self._closed:
            raise ClosedError(f"{self._path} was closed", expected="an open image", next_step="Open it again")
        size = self._size[row]
        if self._flags[row] & RAW:
            return self._raw(self._start[row], size, row) if size else b""
        if size > self._limit:
            raise self._damaged(f"claims {size:,} bytes in an image of {self._index.image_bytes:,}", row)
        parts = list(self._parts(row, size))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self, row: int) -> bytes:
        """As `read`: the library copies."""
        return self.read(row)

    def close(self) -> None:
        """Give back what the library holds, unless it belongs to another process."""
        self._closed = True
        self._fragments.clear()
        self._give_back()

    def _parts(self, row: int, left: int) -> Iterator[bytes]:
        files, index, position = self._index.files, self._index, self._start[row]
        first, count = int(files.first_word[row]), index.blocks(row)
        if position > index.image_bytes:  # also of a file that is one hole
            raise self._damaged(f"starts at byte {position:,}, outside of the image", row)
        for word in index.words[first : first + count].tolist():
            expected = min(self._block_bytes, left)
            yield self._block(position, word, expected, row) if word else bytes(expected)
            position += word & layout.DATA_SIZE
            left -= expected
        if left:
            yield self._tail(int(files.fragment[row]), int(files.fragment_offset[row]), left, row)

    def _block(self, position: int, word: int, expected: int, row: int) -> bytes:
        # The library's own writer stores some short blocks of lz4 larger than they are.
        data = self._unpacked(position, word, max(expected, word & layout.DATA_SIZE), row)
        if len(data) != expected:
            raise self._damaged(f"has a block of {len(data):,} bytes where {expected:,} belong", row)
        return data

    def _tail(self, fragment: int, offset: int, size: int, row: int) -> bytes:
        start, word = int(self._index.fragment_start[fragment]), int(self._index.fragment_word[fragment])
        stored = word & layout.DATA_SIZE
        if word & layout.DATA_RAW and offset + size <= stored:
            return self._raw(start + offset, size, row)
        kept = self._fragments
        data = kept.pop(fragment, None)
        if data is None:
            data = self._unpacked(start, word, self._block_bytes, row)
            if len(kept) >= self._kept:
                kept.popitem(last=False)
        kept[fragment] = data  # now the last to go
        if offset + size > len(data):
            raise self._damaged(f"lies beyond the end of fragment {fragment:,}", row)
        return data[offset : offset + size]

    def _raw(self, start: int, size: int, row: int) -> bytes:
        ffi = self._library.ffi
        if start + size > self._index.image_bytes:
            raise self._damaged(f"lies at bytes {start:,} to {start + size:,}, outside of the image", row)
        try:
            buffer = self._buffer if size <= _KEPT_BUFFER_BYTES else ffi.new("char[]", size)
            code = self._file.read_at(self._file, start, buffer, size)
            if code == 0:
                return bytes(ffi.buffer(buffer, size))
        except MemoryError:
            code = -1
        raise self._failed(code, row)

    def _unpacked(self, position: int, word: int, limit: int, row: int) -> bytes:
        """One block by the library's reader: at most `limit` bytes, or an error."""
        if not word & layout.DATA_SIZE:
            return b""  # the library would take it for a hole and give zeros
        if position + (word & layout.DATA_SIZE) > self._index.image_bytes:
            raise self._damaged(f"has a block at byte {position:,}, outside of the image", row)
        kind = layout.FILE + layout.EXTENDED
        _INODE.pack_into(
            self._inode_bytes, 0, kind, 0, 0, 0, 0, 0, 4, 4, position, limit, 0, 1, *_NO_FRAGMENT, word
        )
        out, size = self._out, self._out_bytes
        code = self._library.calls.sqfs_data_reader_get_block(self._reader, self._inode, 0, size, out)
        if code:
            raise self._failed(code, row)
        try:
            return bytes(self._library.ffi.buffer(out[0], size[0]))
        finally:
            self._library.free(out[0])

    def _failed(self, code: int, row: int) -> SquashFSError:
        return failure(code, self._path, f"reading {self._index.files.names[row]}")

    def _damaged(self, fault: str, row: int) -> DamagedImageError:
        return DamagedImageError.of(
            self._path, f"{self._index.files.names[row]} {fault}", "it as it was written"
        )

    def _of_another(self) -> SquashFSError:
        return SquashFSError(
            f"a reader of libsquashfs for {self._path} was used outside of the thread that made it",
            expected="one reader for each process and thread",
            next_step="Read through SquashFS, which makes them",
        )


_NO_FRAGMENT = (layout.NO_FRAGMENT, 0, layout.NO_XATTR)


def open_backend(path: Path, index: Index) -> LibraryBackend:
    """A back end for this process and thread."""
    return LibraryBackend(path, index)


def _open(library: Library, path: Path, index: Index) -> tuple[list[Any], Any, Any]:
    """What the library holds (to be given back in reverse), its file and its reader."""
    image, ffi, calls = ImageFile(path), library.ffi, library.calls
    if (image.size, image.mtime_ns) != (index.image_bytes, index.mtime_ns):
        raise SquashFSError(
            f"{path} was changed after it was opened",
            expected="the same file as before",
            next_step="Open it again",
        )
    held: list[Any] = []
    try:
        # By descriptor: the path may name another file by now.
        file = calls.sqfs_open_file(b"/proc/self/fd/%d" % image.descriptor, READ_ONLY)
        held.append(_made(file, ffi, path))
        block = index.superblock
        compressor = new_compressor(library, block.compressor, block.block_bytes, path, unpack=True)
        held.append(compressor)
        reader = calls.sqfs_data_reader_create(file, index.superblock.block_bytes, compressor, 0)
        held.append(_made(reader, ffi, path))
    except BaseException:
        give_back(library, held, os.getpid())
        raise
    return held, file, reader


def new_compressor(
    library: Library, name: str, block_bytes: int, path: Path, *, unpack: bool, level: int = 0
) -> Any:
    """A compressor of the library, for one direction.

    Args:
        library: The library.
        name: As in `layout.COMPRESSORS`.
        block_bytes: Of the image.
        path: The image, for the message.
        unpack: Which direction.
        level: As in `compression.LEVELS`, for the other one.

    Raises:
        SquashFSError: The library was built without it.
    """
    ffi, calls = library.ffi, library.calls
    config, out = ffi.new("uint64_t[]", CONFIG_WORDS), ffi.new("sqfs_compressor_t **")
    flags = UNPACK if unpack else LZ4_HIGH if name == "lz4" and level else 0
    code = calls.sqfs_compressor_config_init(config, layout.COMPRESSOR_IDS[name], block_bytes, flags)
    if not unpack and name != "lz4":
        _LEVEL.pack_into(memoryview(ffi.buffer(config)), _LEVEL_AT, level)
    code = code or calls.sqfs_compressor_create(config, out)
    if code:
        raise failure(code, path, f"preparing the compressor {name}")
    return out[0]


def give_back(library: Library, held: list[Any], pid: int) -> None:
    """Free what the library holds, last things first, if it is of this process."""
    while held:
        thing = held.pop()
        if pid == os.getpid():
            library.ffi.cast("sqfs_object_t *", thing).destroy(library.ffi.cast("sqfs_object_t *", thing))


def _made(thing: Any, ffi: Any, path: Path) -> Any:
    if thing == ffi.NULL:
        fault = os.strerror(ffi.errno) if ffi.errno else "out of memory"
        raise SquashFSError(
            f"{path}: libsquashfs cannot open it ({fault})",
            expected="a file that can be read",
            next_step='Check the file, or try it with backend="pure"',
        )
    return thing
