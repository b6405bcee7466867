"""Write one image through any function that takes bytes in order.

The trap: the superblock comes first and is known last. Nothing else is rewritten: 96 zero bytes reserve its
place, and `close` returns its content, so that a digest can be taken while writing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pysquashfs import layout
from pysquashfs.compression import Buffer
from pysquashfs.errors import SquashFSError
from pysquashfs.writer.blocks import Blocks, Tails
from pysquashfs.writer.metadata import Sink
from pysquashfs.writer.settings import Settings
from pysquashfs.writer.tables import Tables
from pysquashfs.writer.tree import Tree

SUPERBLOCK_BYTES = layout.SUPERBLOCK.size


class ImageWriter:
    """Stream files into an image: `add` each, `close`, and write the superblock at the start.

    One long sequential write replaces a million file creations, which a parallel file system handles well.
    The tables come after the data, so the memory until `close` grows with the number of files: 32 bytes
    each and the name, 4 per block, 8 more with fragments; and while the largest folder is sorted, its
    names as objects. Data is not kept.

    Example:
        >>> with open("x.sqfs", "wb") as file:  # doctest: +SKIP
        ...     writer = ImageWriter(file.writelines)
        ...     writer.add("a/1.jpg", b"...")
        ...     superblock = writer.close()
        ...     file.seek(0)
        ...     file.write(superblock)

    Args:
        sink: Called with lists of buffers that must be written one after another from byte 0 on, such as
            `writelines` of a buffered file. It may keep buffers that the caller of `add` does not reuse.
        settings: Compression, block size and so on; by default everything is stored raw.
    """

    def __init__(self, sink: Sink, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._sink = sink
        sink([bytes(SUPERBLOCK_BYTES)])
        self._tree = Tree()
        self._sizes = array("Q")
        self._blocks = Blocks(sink, self.settings, SUPERBLOCK_BYTES)
        self._tails = Tails(self._blocks, self.settings.block_bytes, self.settings.fragments)
        self.bytes = 0

    @property
    def files(self) -> int:
        """Number of files that were added."""
        return self._tree.files

    def add(self, name: str, data: Buffer) -> None:
        """Store a file.

        Args:
            name: Relative path with `/`; folders need not be added.
            data: Its bytes; the buffer may be reused afterwards, unless the sink keeps it.

        Raises:
            SquashFSError: The name cannot be in an image.
        """
        self.add_pieces(name, [data])

    def add_pieces(self, name: str, pieces: Iterable[Buffer]) -> None:
        """Store a file in pieces, if it is too large for memory.

        Args:
            name: Relative path with `/`.
            pieces: Its bytes; each piece but the last a multiple of the block size.

        Raises:
            SquashFSError: The name cannot be in an image, or a piece has another length.
        """
        self._tree.add(name)
        self._blocks.begin()
        size, end = self._store(name, pieces)
        self._tails.add(end)
        self._sizes.append(size)
        self.bytes += size

    def _store(self, name: str, pieces: Iterable[Buffer]) -> tuple[int, memoryview]:
        """Write blocks; returns the size of the file, and its end if that belongs into a fragment."""
        size, block = 0, self.settings.block_bytes
        end = memoryview(b"")
        for piece in pieces:
            if size % block or len(end):
                raise SquashFSError(
                    f"a piece of {name!r} before its last has no whole number of blocks",
                    expected=f"a multiple of {block:,} bytes",
                    next_step="Cut the file at other places",
                )
            data = memoryview(piece).cast("B")
            whole = len(data) - len(data) % block if self._tails.enabled else len(data)
            if whole:
                self._blocks.add(data[:whole], first=not size)
            end = data[whole:]
            size += len(data)
        return size, end

    def close(self, unlisted: Iterable[Buffer] = ()) -> bytes:
        """Write the tables.

        Args:
            unlisted: Bytes to write after the data of all files. They belong to no file, so no program that
                reads the tree sees them. They end where the inode table begins, which the superblock says.
                They are taken after the last block of data was passed to the sink.

        Returns:
            The superblock, which must be written at byte 0 of the file.

        Raises:
            SquashFSError: Two names are equal, or one is both a file and a folder.
        """
        self._tails.finish()
        self._blocks.finish()
        for piece in unlisted:
            self._blocks.write([piece])
        return Tables(self._sink, self.settings, self._tree, self._sizes, self._blocks, self._tails).write()

    def abandon(self) -> None:
        """Stop the threads that compress, without `close`."""
        self._blocks.close()
