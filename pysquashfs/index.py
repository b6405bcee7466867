"""What is in an image and where, as columns: one array per field, shared by all readers.

The trap: a list of a million Python objects is copied into every worker, since reading one changes its
reference count. Arrays are not copied.

Regular files are the samples, numbered in the order of their paths as bytes. Everything else (folders,
symlinks, devices) is in `others`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout
from pysquashfs.names import Names
from pysquashfs.superblock import Superblock

Array = npt.NDArray[Any]

RAW = 1  # all blocks stored raw, one after another, no fragment, no hole: one pread


@dataclass(frozen=True, eq=False)
class Entries:
    """The columns that files and others share; row i belongs to path i."""

    names: Names
    reference: Array  # uint64: block of the inode << 16 | offset in it
    number: Array  # uint32: inode number
    kind: Array  # uint8: layout.FILE, layout.DIRECTORY, ...
    flags: Array  # uint8: RAW or 0
    mode: Array  # uint16: permissions
    mtime: Array  # uint32: seconds
    uid: Array  # uint16: index in `Index.ids`
    gid: Array  # uint16

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Files(Entries):
    """Regular files and where their bytes are."""

    size: Array  # int64: bytes
    start: Array  # int64: position of the first block in the image
    fragment: Array  # uint32: which fragment holds the tail; layout.NO_FRAGMENT for none
    fragment_offset: Array  # uint32: where in the decompressed fragment
    first_word: Array  # int64: row in `Index.words` of its first block; blocks follow each other


@dataclass(frozen=True, eq=False)
class Others(Entries):
    """Folders, symlinks, devices."""

    target: Array  # int64: where the target of a symlink starts in `targets`
    target_bytes: Array  # uint32: 0 for all that is no symlink
    targets: Array  # uint8


@dataclass(frozen=True, eq=False)
class Index:
    """An image, without its data."""

    superblock: Superblock
    image_bytes: int
    mtime_ns: int
    files: Files
    others: Others
    words: Array  # uint32: sizes of blocks as stored, of files that are not RAW
    fragment_start: Array  # int64: position of each fragment in the image
    fragment_word: Array  # uint32: its size as stored
    ids: Array  # uint32: user and group ids


def block_counts(size: Array, fragment: Array, block_bytes: int) -> Array:
    """Blocks of files: a last piece below the block size counts unless it is in a fragment."""
    whole = size // block_bytes
    return np.asarray(whole + ((fragment == layout.NO_FRAGMENT) & (size % block_bytes != 0)))


def bytes_of_blocks(index: Index, rows: Array, stored: Array) -> Array:
    """Sums over the blocks of each file; `stored` has the bytes of each of `index.words` that count."""
    files = index.files
    total = np.concatenate([[0], np.cumsum(stored, dtype=np.int64)])
    first = files.first_word[rows]
    counts = block_counts(files.size[rows], files.fragment[rows], index.superblock.block_bytes)
    return np.asarray(total[first + counts] - total[first])
