"""Everything after the data: inodes, listings, fragments, ids, and the superblock with their positions.

Folders are written from the last to the first, so that a folder is written before the one that lists it;
the root comes last.

The trap: inodes and listings refer to each other's positions *after* compression. So inodes are written
immediately, and the compressed listings are kept until the last inode is written: about 15 MB for a million
files.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from pysquashfs import layout
from pysquashfs.compression import Buffer
from pysquashfs.writer.blocks import Blocks, Tails
from pysquashfs.writer.metadata import (
    Listing,
    MetadataWriter,
    Sink,
    file_inode,
    folder_inode,
    write_table,
)
from pysquashfs.writer.settings import Settings
from pysquashfs.writer.tree import Tree


class Tables:
    """Write the tables of one image.

    Args:
        sink: Takes bytes, in order.
        settings: How the image is written.
        tree: The names.
        sizes: Bytes of each file.
        blocks: Where the data is.
        tails: Which ends of files are in fragments.
    """

    def __init__(
        self,
        sink: Sink,
        settings: Settings,
        tree: Tree,
        sizes: array[int],
        blocks: Blocks,
        tails: Tails,
    ) -> None:
        self._sink, self._settings = sink, settings
        self._tree, self._sizes, self._blocks, self._tails = tree, sizes, blocks, tails
        self._position = blocks.position
        self._inodes = MetadataWriter(self._write, settings.image_compressor)
        self._held: list[bytes] = []
        self._listings = MetadataWriter(self._hold, settings.image_compressor)
        self._places = [(0, 0)] * tree.folders  # of the inodes of folders
        self._numbers = [0] * tree.folders

    def write(self) -> bytes:
        """Write all tables; returns the superblock."""
        start = self._position
        root = self._write_folders()
        self._inodes.finish()
        self._listings.finish()
        listings = self._position
        for piece in self._held:
            self._write([piece])
        self._held.clear()
        fragments = self._position  # even without fragments: 7-Zip takes it for the end of the listings
        if self._blocks.fragments:
            fragments = self._table(b"".join(self._blocks.fragments))
        ids = self._table(layout.ID_ENTRY.pack(0))
        used = self._position
        self._write([bytes(-used % layout.DEVICE_BLOCK_BYTES)])
        return self._superblock(root, used, ids, start, listings, fragments)

    def _superblock(
        self, root: tuple[int, int], used: int, ids: int, start: int, listings: int, fragments: int
    ) -> bytes:
        settings = self._settings
        return layout.SUPERBLOCK.pack(
            layout.MAGIC, self._tree.files + self._tree.folders, 0, settings.block_bytes,
            len(self._blocks.fragments), layout.COMPRESSOR_IDS[settings.image_compressor],
            settings.block_bytes.bit_length() - 1, flags(settings), 1, *layout.VERSION,
            root[0] << 16 | root[1], used, ids, layout.ABSENT, start, listings, fragments, layout.ABSENT,
        )  # fmt: skip

    def _write(self, pieces: Sequence[Buffer]) -> None:
        self._sink(pieces)
        self._position += sum(map(len, pieces))

    def _hold(self, pieces: Sequence[Buffer]) -> None:
        self._held.extend(map(bytes, pieces))

    def _table(self, entries: bytes) -> int:
        return write_table(self._write, self._position, entries, self._settings.image_compressor)

    def _write_folders(self) -> tuple[int, int]:
        """Write all inodes and listings; returns where the root's inode is."""
        tree = self._tree
        # A folder's inode is numbered after those of its files, and folders are numbered from last to first.
        self._numbers = np.cumsum(tree.counts()[::-1] + 1)[::-1].tolist()
        self._words = np.asarray(self._blocks.words, "<u4").view(np.uint8)  # the same memory
        self._first_words = self._word_bounds()
        for folder, above, files, inside in tree.from_last_to_first():
            parent = self._numbers[above] if folder else tree.files + tree.folders + 1
            self._write_folder(folder, parent, files, inside)
        return self._places[0]

    def _word_bounds(self) -> memoryview:
        """Where the block words of each file begin, 4 bytes per word."""
        sizes, size = np.asarray(self._sizes), self._settings.block_bytes
        bounds = np.zeros(len(sizes) + 1, np.int64)  # filled in place: copies would take 40 bytes per file
        blocks = bounds[1:]
        np.floor_divide(sizes, size, out=blocks, casting="unsafe")
        blocks += (sizes % size != 0) & ~self._tails.in_fragments(len(sizes))
        np.cumsum(blocks, out=blocks)
        bounds *= 4
        return memoryview(bounds)  # type: ignore[arg-type]

    def _write_folder(self, folder: int, parent: int, files: list[int], inside: list[int]) -> None:
        tree, listing = self._tree, Listing(self._listings)
        number = self._numbers[folder] - len(files)
        for row, name in tree.sorted_listing(folder, files, inside):
            if row < len(files):
                at = self._inodes.tell()
                kind, inode = self._file_inode(number, files[row])
                self._inodes.append(inode)
                listing.add(name, at, number, kind)
                number += 1
            else:
                child = inside[row - len(files)]
                listing.add(name, self._places[child], self._numbers[child], layout.DIRECTORY)
        listing.finish()
        self._places[folder] = self._inodes.tell()
        self._inodes.append(
            folder_inode(number, parent, len(inside), listing.size, listing.at, listing.indices)
        )

    def _file_inode(self, number: int, file: int) -> tuple[int, bytes]:
        words = self._words[self._first_words[file] : self._first_words[file + 1]]
        start = self._blocks.starts[file] if len(words) else 0
        return file_inode(number, start, self._sizes[file], words.tobytes(), *self._tails.place(file))


def flags(settings: Settings) -> int:
    """The flags of the superblock."""
    found = layout.FLAG_NO_XATTRS
    if settings.raw:
        found |= layout.FLAG_DATA_RAW | layout.FLAG_FRAGMENTS_RAW
    return found | (layout.FLAG_ALWAYS_FRAGMENTS if settings.fragments else layout.FLAG_NO_FRAGMENTS)
