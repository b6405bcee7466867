"""Write metadata: inodes, listings of folders and tables, in blocks of 8 KiB, each compressed if that helps.

The traps: a position in metadata is a pair, the start of the stored block and an offset in the *unpacked*
block; so an entry may extend over two blocks, and nothing is padded. The short inode of a file has only
32-bit numbers, so a file that merely *starts* beyond 4 GiB needs the extended one; so does a folder with a
listing of more than 64 KiB. An entry of a listing stores the number of its inode as a 16-bit difference from
its header's, and a header names one block of inodes: a run of entries ends if either does not fit. It also
ends before it fills a metadata block, so that the index of a large folder leads close to any name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pysquashfs import compression, layout
from pysquashfs.compression import Buffer

Sink = Callable[[Sequence[Buffer]], object]
FILE_MODE, FOLDER_MODE = 0o644, 0o755
MAX_INDICES = 0xFFFF
_U16, _U32 = 0xFFFF, 0xFFFF_FFFF
_MTIME_S = _ID = 0  # no time and no user, so that equal items give equal bytes
_REACH = 0x7FFF


class MetadataWriter:
    """Append entries to one table.

    Args:
        sink: Takes the stored blocks, in order.
        compressor: By name.
    """

    def __init__(self, sink: Sink, compressor: str) -> None:
        self._sink = sink
        self._compressor = compressor
        self._open = bytearray()
        self.starts: list[int] = []
        self.stored_bytes = 0

    def tell(self) -> tuple[int, int]:
        """Where the next entry goes: start of its stored block in the table, and offset in the block."""
        return self.stored_bytes, len(self._open)

    def append(self, entry: bytes) -> None:
        """Add one entry of any length."""
        self._open += entry
        while len(self._open) >= layout.METADATA_BYTES:
            self._store(bytes(self._open[: layout.METADATA_BYTES]))
            del self._open[: layout.METADATA_BYTES]

    def finish(self) -> None:
        """Write the last, shorter block."""
        if self._open:
            self._store(bytes(self._open))
            self._open.clear()

    def _store(self, block: bytes) -> None:
        stored = compression.compress(self._compressor, block)
        header = len(stored)
        if header >= len(block):
            stored, header = block, len(block) | layout.METADATA_RAW
        self._sink([layout.METADATA_HEADER.pack(header), stored])
        self.starts.append(self.stored_bytes)
        self.stored_bytes += layout.METADATA_HEADER.size + len(stored)


def write_table(sink: Sink, position: int, entries: bytes, compressor: str) -> int:
    """A table with a list of its blocks: fragments, ids.

    Args:
        sink: Takes bytes.
        position: Where in the image the next byte goes.
        entries: All of them, packed.
        compressor: By name.

    Returns:
        Where the list starts, which is what the superblock names.
    """
    table = MetadataWriter(sink, compressor)
    table.append(entries)
    table.finish()
    sink([b"".join(layout.TABLE_POSITION.pack(position + start) for start in table.starts)])
    return position + table.stored_bytes


class Listing:
    """Write one listing, entry by entry, in order of the names.

    Args:
        table: The table of listings.
    """

    def __init__(self, table: MetadataWriter) -> None:
        self._table = table
        self.at = table.tell()
        self.size = 0
        self.indices: list[tuple[int, int, bytes]] = []
        self._indexed_block = self.at[0]
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._first_name = b""
        self._block = self._base = -1

    def add(self, name: bytes, at: tuple[int, int], number: int, kind: int) -> None:
        """Add an entry.

        Args:
            name: Of the file or folder.
            at: Where its inode is: block, and offset in it.
            number: Of the inode.
            kind: `layout.FILE` or `layout.DIRECTORY`.
        """
        block, offset = at
        step = number - self._base
        if (
            block != self._block
            or len(self._run) == layout.DIRECTORY_HEADER_ENTRIES
            or not -_REACH <= step <= _REACH
            or self._run_bytes + len(name) + layout.DIRECTORY_ENTRY.size > layout.METADATA_BYTES
        ):
            self.finish()
            self._block, self._base, step, self._first_name = block, number, 0, name
        entry = layout.DIRECTORY_ENTRY.pack(offset, step, kind, len(name) - 1) + name
        self._run.append(entry)
        self._run_bytes += len(entry)

    def finish(self) -> None:
        """Write the run that is open."""
        if not self._run:
            return
        block, _ = self._table.tell()
        if block != self._indexed_block:
            self._indexed_block = block
            self.indices.append((self.size, block, self._first_name))
        header = layout.DIRECTORY_HEADER.pack(len(self._run) - 1, self._block, self._base)
        self._table.append(b"".join([header, *self._run]))
        self.size += len(header) + self._run_bytes
        self._run, self._run_bytes = [], 0


def file_inode(
    number: int, start: int, size: int, words: bytes, fragment: int = layout.NO_FRAGMENT, offset: int = 0
) -> tuple[int, bytes]:
    """The inode of a file.

    Args:
        number: Of the inode.
        start: Position of the first block in the image.
        size: Bytes of the file.
        words: The sizes of its blocks as stored, packed.
        fragment: The fragment with its end, if there is one.
        offset: Where in the fragment.

    Returns:
        The type that a listing names, and the bytes.
    """
    if start <= _U32 and size <= _U32:
        head = _header(layout.FILE, FILE_MODE, number)
        return layout.FILE, head + layout.FILE_INODE.pack(start, fragment, offset, size) + words
    head = _header(layout.FILE + layout.EXTENDED, FILE_MODE, number)
    body = layout.EXTENDED_FILE_INODE.pack(start, size, 0, 1, fragment, offset, layout.NO_XATTR)
    return layout.FILE, head + body + words


def folder_inode(
    number: int,
    parent: int,
    folders: int,
    listing_bytes: int,
    at: tuple[int, int],
    indices: Sequence[tuple[int, int, bytes]],
) -> bytes:
    """The inode of a folder.

    Args:
        number: Of the inode.
        parent: Number of the inode of the folder above.
        folders: How many folders are in it.
        listing_bytes: Length of its listing.
        at: Where the listing starts: block, and offset in it.
        indices: For a long listing, headers in it: position, block, name of the first entry.
    """
    block, offset = at
    size = listing_bytes + layout.DIRECTORY_SIZE_EXTRA
    if size <= _U16:
        head = _header(layout.DIRECTORY, FOLDER_MODE, number)
        return head + layout.DIRECTORY_INODE.pack(block, 2 + folders, size, offset, parent)
    indices = indices[:MAX_INDICES]  # later entries are found by a linear search
    head = _header(layout.DIRECTORY + layout.EXTENDED, FOLDER_MODE, number)
    body = layout.EXTENDED_DIRECTORY_INODE.pack(
        2 + folders, size, block, parent, len(indices), offset, layout.NO_XATTR
    )
    rows = [layout.DIRECTORY_INDEX.pack(at, start, len(name) - 1) + name for at, start, name in indices]
    return head + body + b"".join(rows)


def _header(kind: int, mode: int, number: int) -> bytes:
    return layout.INODE_HEADER.pack(kind, mode, _ID, _ID, _MTIME_S, number)
