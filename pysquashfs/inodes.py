"""Fields of inodes as columns, a million at a time.

The trap: an inode contains the size of its file, which determines how many block sizes follow. Inodes that
overlap, or claim more bytes than there are, are a bomb; all of them together must fit in their table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysquashfs import layout
from pysquashfs.index import RAW, block_counts
from pysquashfs.metadata import Table

Array = npt.NDArray[Any]
_BODY = layout.INODE_HEADER.size
_FILE_BYTES = _BODY + layout.FILE_INODE.size
_EXTENDED_FILE_BYTES = _BODY + layout.EXTENDED_FILE_INODE.size
_SYMLINK_BYTES = _BODY + layout.SYMLINK_INODE.size
_CHUNK_WORDS = 1 << 22


class _Fields(NamedTuple):
    size: Array
    start: Array
    fragment: Array
    fragment_offset: Array
    word: Array  # position of the first block size in the table


def common(table: Table, at: Array) -> dict[str, Array]:
    """The fields at the start of each inode."""
    u16 = table.u16
    return {
        "mode": u16[at + 2] & layout.PERMISSIONS,
        "uid": u16[at + 4],
        "gid": u16[at + 6],
        "mtime": table.u32[at + 8],
        "number": table.u32[at + 12],
    }


def files(table: Table, at: Array, block_bytes: int) -> tuple[dict[str, Array], Array]:
    """Columns of the regular files whose inodes are at these positions.

    Returns:
        The columns of `index.Files`, and the stored sizes of all blocks of files that are not raw.

    Raises:
        DamagedImageError: An inode is cut off, has an absurd size, or overlaps another.
    """
    # Hard links share an inode, which is read once.
    once, back = np.unique(at, return_inverse=True)
    fields = _fields(table, once)
    if len(once) and int(fields.size.max()) >= 1 << 62:
        raise table.damaged(f"has a file of {int(fields.size.max()):,} bytes", "files that can be")
    size = fields.size.astype(np.int64)
    blocks = block_counts(size, fields.fragment, block_bytes)
    if len(once) and int(blocks.max()) > table.size:
        raise table.damaged(f"has a file of {int(size.max()):,} bytes", "sizes of all its blocks")
    _check_room(table, once, fields.word + 4 * blocks)
    raw, words = _split_raw(table, fields, size, blocks, block_bytes)
    kept = np.where(raw, 0, blocks)
    columns = {
        "size": size,
        "start": fields.start.astype(np.int64),  # checked with the whole index
        "fragment": fields.fragment,
        "fragment_offset": fields.fragment_offset,
        "flags": np.where(raw, RAW, 0).astype(np.uint8),
        "first_word": np.cumsum(kept) - kept,
    }
    return {name: column[back] for name, column in columns.items()}, words


def symlinks(table: Table, at: Array) -> tuple[Array, Array]:
    """Where the targets of symlinks start in the table, and their bytes."""
    length = table.u32[at + _BODY + 4]
    once, rows = np.unique(at, return_index=True)
    if (length > layout.MAX_SYMLINK_BYTES).any():
        raise table.damaged("has a symlink of more than 65,535 bytes", "a path")
    _check_room(table, once, once + _SYMLINK_BYTES + length[rows])
    return at + _SYMLINK_BYTES, length


def _fields(table: Table, at: Array) -> _Fields:
    u32, u64, body = table.u32, table.u64, at + _BODY
    extended = table.u16[at] == layout.FILE + layout.EXTENDED
    end = np.where(extended, at + _EXTENDED_FILE_BYTES, at + _FILE_BYTES)
    if (end > table.size).any():
        raise table.damaged("ends inside an inode", "whole inodes")
    return _Fields(
        np.where(extended, u64[body + 8], u32[body + 12]),
        np.where(extended, u64[body], u32[body]),
        np.where(extended, u32[body + 28], u32[body + 4]),
        np.where(extended, u32[body + 32], u32[body + 8]),
        end,
    )


def _check_room(table: Table, at: Array, end: Array) -> None:
    """Whether inodes that start at `at` (sorted) end before the next, and the last before the end."""
    if len(at) and ((end[:-1] > at[1:]).any() or end[-1] > table.size):
        raise table.damaged("has inodes that overlap or are cut off", "them one after another")


def _split_raw(
    table: Table, fields: _Fields, size: Array, blocks: Array, block_bytes: int
) -> tuple[Array, Array]:
    """Which files are stored raw in one piece, and the block sizes of all the others."""
    raw = fields.fragment == layout.NO_FRAGMENT
    words = [np.zeros(0, np.uint32)]
    for low, high in _chunks(np.cumsum(blocks)):
        count, stored = blocks[low:high], _gather(table, fields.word[low:high], blocks[low:high])
        owner = np.repeat(np.arange(high - low), count)
        last = np.cumsum(count)[count > 0] - 1
        expected = np.full(len(stored), layout.DATA_RAW | block_bytes, np.int64)
        expected[last] = layout.DATA_RAW | ((size[low:high][count > 0] - 1) % block_bytes + 1)
        raw[low:high] &= np.bincount(owner[stored != expected], minlength=high - low) == 0
        words.append(stored[~raw[low:high][owner]])
    return raw, np.concatenate(words)


def _chunks(ends: Array) -> Iterator[tuple[int, int]]:
    """Ranges of files with about `_CHUNK_WORDS` blocks together; one file may have more."""
    low = 0
    while low < len(ends):
        before = int(ends[low - 1]) if low else 0
        high = max(int(np.searchsorted(ends, before + _CHUNK_WORDS, side="right")), low + 1)
        yield low, high
        low = high


def _gather(table: Table, word: Array, blocks: Array) -> Array:
    """The block sizes of files, one file after the other."""
    total = int(blocks.sum())
    start = np.repeat(word - 4 * (np.cumsum(blocks) - blocks), blocks)
    return np.asarray(table.u32[start + 4 * np.arange(total)])
