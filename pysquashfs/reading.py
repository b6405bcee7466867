"""Read many files: announce them, sort them in stored order, distribute them to threads.

The trap: reading the files of a batch one after the other waits for the disk or the server once per file.
So a group of files is announced to the kernel before it is read. Notebook 06 measures a cold epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout
from pysquashfs.image_file import ImageFile
from pysquashfs.index import RAW, Index, block_counts, bytes_of_blocks

if TYPE_CHECKING:
    from pysquashfs.open_image import OpenImage

Array = npt.NDArray[Any]
_GROUP = 64  # files that a thread reads at a time
_NEAR_BYTES = 32 << 10  # ranges with smaller gaps are announced as one


def read_many(image: OpenImage, rows: Sequence[int], threads: int) -> list[bytes]:
    """The files of these rows, in the order of `rows`. See `SquashFS.read_many`.

    Raises:
        SquashFSError: A file is damaged.
    """
    wanted = np.array(list(dict.fromkeys(rows)), np.int64)
    starts, sizes = spans(image.index, wanted)
    by_place = np.argsort(starts, kind="stable")
    wanted, starts, sizes = wanted[by_place], starts[by_place], sizes[by_place]
    size = min(_GROUP, -(-len(wanted) // (2 * threads))) or 1
    groups = [slice(low, low + size) for low in range(0, len(wanted), size)]
    file = ImageFile(image.path)

    def announce(number: int) -> None:
        for part in groups[number : number + 1]:
            for start, count in _merged(starts[part], sizes[part]):
                file.prefetch(start, count)

    def read(number: int) -> list[bytes]:
        announce(number + threads)
        reader = image._reader()
        return [reader.read(row, concurrent=threads > 1) for row in wanted[groups[number]].tolist()]

    for number in range(threads):
        announce(number)
    mapped = image._threads(threads).map if threads > 1 and len(groups) > 1 else map
    found: dict[int, bytes] = {}
    for number, data in enumerate(mapped(read, range(len(groups)))):
        found.update(zip(wanted[groups[number]].tolist(), data, strict=True))
    return [found[row] for row in rows]


def spans(index: Index, rows: Array) -> tuple[Array, Array]:
    """Where the bytes of files start in the image, and how many are stored; without shared fragments.

    The span of a file that is only in a fragment is that fragment.
    """
    files = index.files
    start, size = files.start[rows].copy(), files.size[rows].copy()
    scattered = np.flatnonzero(files.flags[rows] & RAW == 0)
    if len(scattered):
        row = rows[scattered]
        counts = block_counts(files.size[row], files.fragment[row], index.superblock.block_bytes)
        size[scattered] = bytes_of_blocks(index, row, index.words & layout.DATA_SIZE)
        alone = scattered[(counts == 0) & (files.fragment[row] != layout.NO_FRAGMENT)]
        fragment = files.fragment[rows[alone]]
        start[alone] = index.fragment_start[fragment]
        size[alone] = index.fragment_word[fragment] & layout.DATA_SIZE
    return start, size


def _merged(starts: Array, sizes: Array) -> list[tuple[int, int]]:
    """Ranges, with close ones merged."""
    merged: list[tuple[int, int]] = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if merged and 0 <= start - sum(merged[-1]) <= _NEAR_BYTES:
            merged[-1] = merged[-1][0], start + size - merged[-1][0]
        elif size:
            merged.append((start, size))
    return merged
