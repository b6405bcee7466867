"""The listing of one folder: headers with runs of entries, and an index for long listings.

The trap: an entry stores the number of its inode as a 16-bit difference from its header's, and a header
names one block of inodes. A run ends if either does not fit. It also ends before it fills a metadata block,
so that the index of a large folder leads close to any name.
"""

from __future__ import annotations

from pysquashfs import layout
from pysquashfs.writer.metadata import MetadataWriter

_REACH = 0x7FFF


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
