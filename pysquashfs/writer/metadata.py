"""Write metadata: inodes, listings and tables in blocks of 8 KiB, each compressed if that helps.

The trap: a position in metadata is a pair, the start of the stored block and an offset in the *unpacked*
block; so an entry may extend over two blocks, and nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pysquashfs import compression, layout
from pysquashfs.compression import Buffer

Sink = Callable[[Sequence[Buffer]], object]


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
        stored = compression.compress(self._compressor, block, block_bytes=layout.METADATA_BYTES)
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
