"""Make the index of an image from its tables.

The trap: every later read trusts the positions in an index. So all of them are checked against the size of
the image here. 1.28 million files take a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import compression, directories, inodes, layout, superblock
from pysquashfs.directories import Found
from pysquashfs.errors import DamagedImageError, SquashFSError
from pysquashfs.image_file import ImageFile
from pysquashfs.index import RAW, Files, Index, Others, block_counts
from pysquashfs.metadata import Table, read_entries
from pysquashfs.names import Names
from pysquashfs.superblock import Superblock

Array = npt.NDArray[Any]
FRAGMENT = np.dtype([("start", "<u8"), ("word", "<u4"), ("unused", "<u4")])


def parse(image: ImageFile, walk: Callable[[ImageFile], Index] | None = None) -> Index:
    """The index of an image, checked against the file.

    Args:
        image: The image.
        walk: Another back end's walk of the folders.

    Raises:
        SquashFSError: It is not an image, damaged, hostile, or needs a package that is not installed.
    """
    try:
        return (walk or _parse)(image)
    except (MemoryError, ArithmeticError, LookupError, ValueError) as error:
        # A fallback for the checks, so that users see no traceback; the tests run without it.
        if isinstance(error, SquashFSError):
            raise
        fault = f"its tables make no sense ({type(error).__name__}: {error})"
        raise DamagedImageError.of(image.path, fault, "an image as it was written") from error


def _parse(image: ImageFile) -> Index:
    block = superblock.read(image)
    if not block.all_raw:
        compression.require(block.compressor, image.path)
    fragments, ids, listings_end = _lookups(image, block)
    nodes = Table.read(image, block.inode_table, block.directory_table, block.compressor, "inodes")
    listings = Table.read(image, block.directory_table, listings_end, block.compressor, "listings")
    root = nodes.positions(np.array([block.root >> 16]), np.array([block.root & 0xFFFF]), "the superblock")
    if int(nodes.u16[root[0]]) not in (layout.DIRECTORY, layout.DIRECTORY + layout.EXTENDED):
        raise nodes.damaged("has a root that is no folder", "one")
    return make_index(image, block, nodes, directories.walk(nodes, listings, root), fragments, ids)


def make_index(
    image: ImageFile, block: Superblock, nodes: Table, found: Found, fragments: Array, ids: Array
) -> Index:
    """The index of what a walk found, if every position in it lies inside the image.

    Args:
        image: The image.
        block: Its superblock.
        nodes: Its inodes.
        found: All entries, with positions in `nodes`.
        fragments: Its fragments, of the type `FRAGMENT`.
        ids: Its user and group ids.

    Raises:
        DamagedImageError: A position lies outside, or inodes are damaged.
    """
    is_file = _joined(found.kinds, np.uint8) == layout.FILE
    files, words = _files(nodes, found, np.flatnonzero(is_file), block.block_bytes)
    others = _others(nodes, found, np.flatnonzero(~is_file))
    starts, sizes = fragments["start"].astype(np.int64), fragments["word"].copy()
    index = Index(block, image.size, image.mtime_ns, files, others, words, starts, sizes, ids)
    fault = next(_faults(index), None)
    if fault is not None:
        raise DamagedImageError.of(image.path, fault, "everything inside the image")
    return index


def _lookups(image: ImageFile, block: Superblock) -> tuple[Array, Array, int]:
    """Fragments, ids, and where the listings end: at the first block of what follows them."""
    raw, first = b"", block.bytes_used
    if block.fragments and block.fragment_table is not None:
        raw, first = read_entries(
            image, block.fragment_table, block.fragments, FRAGMENT.itemsize, block.compressor, "fragments"
        )
    ids, first_id = read_entries(image, block.id_table, block.ids, 4, block.compressor, "ids")
    ends = [first, first_id, block.bytes_used]
    if block.export_table is not None and block.inodes:
        ends.append(int.from_bytes(image.read(block.export_table, 8, "the list of exports"), "little"))
    following = (block.fragment_table, block.export_table, block.id_table, block.xattr_table)
    ends += [position for position in following if position is not None]
    end = min((position for position in ends if position > block.directory_table), default=block.bytes_used)
    return np.frombuffer(raw, FRAGMENT), np.frombuffer(ids, "<u4"), end


def _files(nodes: Table, found: Found, rows: Array, block_bytes: int) -> tuple[Files, Array]:
    shared = _common(nodes, found, rows)
    columns, words = inodes.files(nodes, shared.pop("at"), block_bytes)
    return Files(**{**shared, **columns}), words


def _others(nodes: Table, found: Found, rows: Array) -> Others:
    shared = _common(nodes, found, rows)
    at, links = shared.pop("at"), shared["kind"] == layout.SYMLINK
    start, length = np.zeros(len(at), np.int64), np.zeros(len(at), np.uint32)
    start[links], length[links] = inodes.symlinks(nodes, at[links])
    targets = [
        nodes.raw[low : low + count] for low, count in zip(start.tolist(), length.tolist(), strict=True)
    ]
    first = np.cumsum(length, dtype=np.int64) - length
    return Others(**shared, target=first, target_bytes=length, targets=np.frombuffer(b"".join(targets), "u1"))


def _common(nodes: Table, found: Found, rows: Array) -> dict[str, Any]:
    """The columns that all entries have, in the order of their paths."""
    paths = found.paths
    order = np.array(sorted(rows.tolist(), key=paths.__getitem__), np.int64)
    wanted = [paths[row] for row in order.tolist()]
    at = _joined(found.inodes, np.int64)[order]
    return {
        "at": at,
        "names": Names.of(wanted),
        "reference": _joined(found.references, np.uint64)[order],
        "kind": _joined(found.kinds, np.uint8)[order],
        "flags": np.zeros(len(wanted), np.uint8),
        **inodes.common(nodes, at),
    }


def _joined(arrays: list[Array], kind: Any) -> Array:
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)


def _faults(index: Index) -> Iterator[str]:
    """Where an index points out of the image or out of itself: checked once, so that reads need not."""
    files, block = index.files, index.superblock
    end, ids = block.bytes_used, len(index.ids)
    raw = files.flags & RAW != 0
    for entries in (files, index.others):
        if len(entries) and max(int(entries.uid.max()), int(entries.gid.max())) >= ids:
            yield f"an entry has an owner beyond its table of {ids:,} ids"
    if (files.size < 0).any() or (files.start < 0).any():
        yield "a file has an absurd size or position"
    if (raw & (files.size > 0) & ((files.start > end) | (files.size > end - files.start))).any():
        yield f"the data of a file lies outside of its {end:,} bytes"
    blocks = np.where(raw, 0, block_counts(files.size, files.fragment, block.block_bytes))
    if ((files.first_word < 0) | (files.first_word + blocks > len(index.words))).any():
        yield "the sizes of blocks of a file are not there"
    tailed = files.fragment != layout.NO_FRAGMENT
    if (tailed & (files.fragment >= len(index.fragment_start))).any():
        yield f"a file lies in a fragment beyond its table of {len(index.fragment_start):,}"
    if (
        tailed & (files.fragment_offset.astype(np.int64) + files.size % block.block_bytes > block.block_bytes)
    ).any():
        yield "a file ends outside of its fragment"
    stored = (index.fragment_word & layout.DATA_SIZE).astype(np.int64)
    if (
        (index.fragment_start < 0) | (index.fragment_start + stored > end) | (stored > block.block_bytes)
    ).any():
        yield "a fragment lies outside of the image"
    if ((index.words & layout.DATA_SIZE) > block.block_bytes).any():
        yield f"a block has more than {block.block_bytes:,} bytes"
    links = index.others
    if (links.target < 0).any() or (links.target + links.target_bytes > len(links.targets)).any():
        yield "the target of a symlink is not there"
