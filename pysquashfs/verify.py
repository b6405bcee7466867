"""Decompress everything in an image and follow every pointer.

The trap: squashfs stores no checksum of data. A changed byte in a raw block is returned as if it were right,
and so may be one in blocks of lz4 or zstd. Only a digest from packing finds it. Notebook 06 flips one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pysquashfs import compression, layout, metadata
from pysquashfs.errors import SquashFSError
from pysquashfs.file_reader import FileReader
from pysquashfs.image_file import ImageFile
from pysquashfs.index import Index
from pysquashfs.info import raw_bytes
from pysquashfs.reading import spans

_MAX_FAULTS = 100  # a longer report would not help


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    `faults` names every file that cannot be read (at most 100) and every table that is wrong; `notes`
    names what could not be checked.
    """

    files: int
    bytes: int
    unchecked_bytes: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that can be checked is right."""
        return not self.faults


def verify(path: Path, index: Index, fresh: FileReader) -> Report:
    """Read every file of an image once, in stored order, and its tables.

    Args:
        path: The image.
        index: What is in it (opening it has checked folders, inodes and positions).
        fresh: A reader of this thread that nothing else uses.

    Returns:
        What was read, what is wrong, and how many bytes no checksum covers.

    Raises:
        SquashFSError: The image cannot be opened any more.
    """
    image = ImageFile(path)
    faults = _tables(image, index)
    rows = np.unique(index.files.reference, return_index=True)[1]  # hard links once
    rows = rows[np.argsort(spans(index, rows)[0], kind="stable")]
    read = 0
    for row in rows.tolist():
        try:
            read += sum(map(len, fresh.pieces(row)))
        except SquashFSError as error:
            faults.append(f"{index.files.names[row]}: {error}")
            if len(faults) >= _MAX_FAULTS:
                faults.append("more faults are not listed")
                break
    unchecked = read if index.superblock.compressor in ("zstd", "lz4") else raw_bytes(index)
    note = (
        f"squashfs stores no checksum of data: a changed byte among {unchecked:,} could not be noticed here. "
        "Compare with SHA-256 sums made when the image was packed."
    )
    return Report(len(index.files), read, unchecked, tuple(faults), (note,) if unchecked else ())


def _tables(image: ImageFile, index: Index) -> list[str]:
    """Faults in tables that reading does not need: exports, and the counts of the superblock."""
    block, faults = index.superblock, []
    numbers = np.unique(np.concatenate([index.files.number, index.others.number]))
    if len(numbers) + 1 != block.inodes:  # the root is not included
        faults.append(f"{image.path}: {len(numbers) + 1:,} inodes are reachable of {block.inodes:,} counted")
    if block.export_table is not None and block.compressor in compression.NAMES:
        try:
            entry = layout.EXPORT_ENTRY.size
            metadata.read_entries(image, block.export_table, block.inodes, entry, block.compressor, "exports")
        except SquashFSError as error:
            faults.append(str(error))
    return faults
