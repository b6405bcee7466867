"""Read files through the data reader of libsquashfs.

The library unpacks one block at a time, described by an inode that we write from the checked index. So its
cache cannot return the bytes of another block, and a block that is shorter than its file claims is noticed.
What is stored raw is read as by `FileReader`, since there is nothing to unpack.

The trap: a reader of the library belongs to one thread of one process. `SquashFS` makes one for each, and a
forked child neither uses nor frees what it inherited.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

from pysquashfs import layout
from pysquashfs.errors import SquashFSError
from pysquashfs.file_reader import FileReader
from pysquashfs.index import Index
from pysquashfs.libsquashfs.library import Session, failure

# sqfs_inode_generic_t: type, mode, uid, gid, mtime, number, bytes available and used of block sizes, then an
# extended file (start, size, bytes in holes, links, fragment, offset, xattr) and one block size.
_INODE = Struct("=4H2I 2I 3Q4I I")
_NOWHERE = (layout.NO_FRAGMENT, 0, layout.NO_XATTR)


class LibraryReader(FileReader):
    """Reads files of one image in the thread that made it.

    Args:
        path: The image.
        index: What is in it.

    Raises:
        SquashFSError: The library cannot be used, or the image is not the one that was indexed.
    """

    def __init__(self, path: Path, index: Index) -> None:
        super().__init__(path, index)
        self._mapping = self._mapped = None
        session = Session(path)
        self._finalizer = weakref.finalize(self, session.close)
        self._finalizer.atexit = False
        self._library, self._owner = session.library, (os.getpid(), threading.get_ident())
        file = session.open(self._image)
        compressor = session.compressor(self._compressor, self._block_bytes)
        self._reader = session.keep(
            self._library.calls.sqfs_data_reader_create(file, self._block_bytes, compressor, 0),
            "its data",
        )
        ffi = self._library.ffi
        self._inode = ffi.new("char[]", _INODE.size)
        self._inode_bytes = memoryview(ffi.buffer(self._inode))
        self._out, self._out_bytes = ffi.new("uint8_t **"), ffi.new("size_t *")

    def read(self, row: int, *, concurrent: bool = False) -> bytes:
        """All bytes of a file; in another thread or process than the one of this reader, it is refused."""
        if self._owner != (os.getpid(), threading.get_ident()):
            raise SquashFSError(
                f"a reader of libsquashfs for {self._image.path} was used outside of its thread",
                expected="one reader for each process and thread",
                next_step="Read through SquashFS, which makes them",
            )
        return super().read(row, concurrent=concurrent)

    def _unpacked_blocks(self, position: int, words: Sequence[int], left: int) -> Iterator[bytes]:
        for word in words:
            expected = min(self._block_bytes, left)
            if word:
                yield self._checked(self._unpacked(position, word, expected), expected, position)
            else:
                yield bytes(expected)
            position += word & layout.DATA_SIZE
            left -= expected

    def _unpacked(self, position: int, word: int, limit: int) -> bytes:
        stored = word & layout.DATA_SIZE
        if not stored:
            return b""  # the library would take it for a hole
        if word & layout.DATA_RAW or position + stored > self._image.size:
            return self._stored_bytes(position, stored)
        # The library's own writer stores some short blocks of lz4 larger than they are.
        limit, kind = max(limit, stored), layout.FILE + layout.EXTENDED
        _INODE.pack_into(
            self._inode_bytes, 0, kind, 0, 0, 0, 0, 0, 4, 4, position, limit, 0, 1, *_NOWHERE, word
        )
        code = self._library.calls.sqfs_data_reader_get_block(
            self._reader, self._inode, 0, self._out_bytes, self._out
        )
        if code:
            raise failure(code, self._image.path, f"unpacking the block at byte {position:,}")
        try:
            return bytes(self._library.ffi.buffer(self._out[0], self._out_bytes[0]))
        finally:
            self._library.free(self._out[0])
