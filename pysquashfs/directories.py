"""Walk the folders of an image from its root, level by level, without recursion.

One short loop finds where each entry starts, since its length depends on its name; numpy does the rest.

The trap: a listing may refer to any inode, so a hostile image may have a folder that contains itself, or
names that lead out of the tree. Each folder may be reached once, and each name is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout
from pysquashfs.errors import DamagedImageError
from pysquashfs.metadata import Table

Array = npt.NDArray[Any]
MAX_PATH_BYTES = 4096  # PATH_MAX of Linux: longer paths cannot be opened
FREE_BYTES = 256 << 20  # all paths together may have this, plus …
MAX_GROWTH = 16  # … this multiple of the bytes of the listings
_ENTRY, _HEADER = layout.DIRECTORY_ENTRY.size, layout.DIRECTORY_HEADER.size


@dataclass
class Found:
    """All entries below the root, in the order in which they were found."""

    paths: list[bytes] = field(default_factory=list)
    inodes: list[Array] = field(default_factory=list)  # positions in the inode table
    references: list[Array] = field(default_factory=list)
    kinds: list[Array] = field(default_factory=list)
    path_bytes: int = 0


@dataclass
class _Level:
    """The entries of all folders of one depth."""

    positions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # one per header
    counts: list[int] = field(default_factory=list)  # entries of each header


def walk(inodes: Table, listings: Table, root: Array) -> Found:
    """Everything below `root`, an array of one position in the inode table.

    Raises:
        DamagedImageError: A listing is damaged or hostile.
    """
    found, seen, listed = Found(), set(root.tolist()), 0
    folders, prefixes = root, [b""]
    while len(folders):
        block, offset, size = _fields(inodes, folders)
        listed += int(size.sum())
        if listed > listings.size:
            raise listings.damaged(f"has {listings.size:,} bytes", f"{listed:,}, which its folders count")
        full = np.flatnonzero(size)
        starts = listings.positions(block[full], offset[full], "a folder")
        first, level = len(found.paths), _Level()
        for row, start in zip(full.tolist(), starts.tolist(), strict=True):
            _scan(listings, start, start + int(size[row]), prefixes[row], level, found)
        folders, rows = _resolve(inodes, listings, level, found)
        prefixes = [found.paths[first + row] + b"/" for row in rows.tolist()]
        _check_new(inodes, folders, seen, prefixes)
    return found


def _check_new(inodes: Table, folders: Array, seen: set[int], prefixes: Sequence[bytes]) -> None:
    for position, prefix in zip(folders.tolist(), prefixes, strict=True):
        if position in seen:
            fault = f"the folder {prefix[:-1]!r} is reached twice (a loop of folders)"
            raise DamagedImageError.of(inodes.path, fault, "each folder once")
        seen.add(position)


def _fields(inodes: Table, at: Array) -> tuple[Array, Array, Array]:
    """Block and offset of the listings of folders, and their sizes; `at` are positions of inodes."""
    u16, u32, body = inodes.u16, inodes.u32, at + layout.INODE_HEADER.size
    basic = u16[at] == layout.DIRECTORY
    block = np.where(basic, u32[body], u32[body + 8])
    size = np.where(basic, u16[body + 8], u32[body + 4]).astype(np.int64)
    offset = np.where(basic, u16[body + 10], u16[body + 18])
    return block, offset, np.maximum(size - layout.DIRECTORY_SIZE_EXTRA, 0)


def _scan(listings: Table, at: int, stop: int, prefix: bytes, level: _Level, found: Found) -> None:
    """Find the entries of one folder."""
    raw, positions, first, size = listings.raw, level.positions, len(level.positions), stop - at
    if stop > listings.size:
        raise listings.damaged(f"ends inside the folder {prefix!r}", "its whole listing")
    while at < stop:
        count, block, _ = layout.DIRECTORY_HEADER.unpack_from(raw, at) if at + _HEADER <= stop else (-1, 0, 0)
        at += _HEADER
        if not 0 <= count < layout.DIRECTORY_HEADER_ENTRIES or at + (count + 1) * (_ENTRY + 1) > stop:
            raise _bad_listing(listings, prefix)
        level.blocks.append(block)
        level.counts.append(count + 1)
        for _ in range(count + 1):
            if at + _ENTRY >= stop:
                raise _bad_listing(listings, prefix)
            positions.append(at)
            at += 9 + raw[at + 6]  # the length less one; its upper byte is checked in _resolve
    if at != stop:
        raise _bad_listing(listings, prefix)
    names = [raw[p + 8 : p + 9 + raw[p + 6]] for p in positions[first:]]
    found.path_bytes += size
    add_names(found, prefix, names, listings.size, listings.damaged)


def add_names(
    found: Found,
    prefix: bytes,
    names: list[bytes],
    listing_bytes: int,
    damaged: Callable[[str, str], DamagedImageError],
) -> None:
    """Add the paths of what is in one folder.

    Args:
        found: Gets the paths.
        prefix: The path of the folder, with a slash at its end.
        names: The names in it.
        listing_bytes: Bytes of all listings of the image.
        damaged: Makes the error of a fault and of what was expected.

    Raises:
        DamagedImageError: Names are equal or lead out of the folder, or the paths are too long.
    """
    found.path_bytes += len(prefix) * len(names)
    if len(prefix) > MAX_PATH_BYTES:
        fault = f"has a path that starts with {prefix[:64]!r} and has more than {MAX_PATH_BYTES:,} bytes"
        raise damaged(fault, "paths that Linux can open")
    if found.path_bytes > FREE_BYTES + MAX_GROWTH * listing_bytes:
        raise damaged(f"makes more than {found.path_bytes:,} bytes of paths", "no bomb")
    joined, once = b"\0".join(names), set(names)
    if b"/" in joined or joined.count(b"\0") > len(names) - 1 or b"." in once or b".." in once:
        bad = next(name for name in names if name in (b".", b"..") or b"/" in name or b"\0" in name)
        raise damaged(f"names something {bad!r} in {prefix!r}", "names that stay in their folder")
    if len(once) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise damaged(f"has two entries named {prefix + twice!r}", "one")
    found.paths.extend([prefix + name for name in names])


def _resolve(inodes: Table, listings: Table, level: _Level, found: Found) -> tuple[Array, Array]:
    """Look up the inodes of a level; returns those of folders, and their rows."""
    at = np.array(level.positions, np.int64)
    u16 = listings.u16
    if (u16[at + 6] >= layout.MAX_NAME_BYTES).any():
        raise listings.damaged("has a name of more than 256 bytes", "shorter ones")
    block = np.repeat(np.array(level.blocks, np.uint64), np.array(level.counts, np.int64))
    offset, kind = u16[at], u16[at + 4]
    position = inodes.positions(block, offset, "a listing")
    stored = inodes.u16[position]
    if not ((stored == kind) | (stored == kind + layout.EXTENDED)).all() or (kind > layout.SOCKET).any():
        raise listings.damaged("says of an inode what it is not", "the same type in both")
    found.inodes.append(position)
    found.references.append(block << np.uint64(16) | offset)
    found.kinds.append(kind.astype(np.uint8))
    rows = np.flatnonzero(kind == layout.DIRECTORY)
    return position[rows], rows


def _bad_listing(listings: Table, prefix: bytes) -> DamagedImageError:
    return listings.damaged(f"has a damaged listing of the folder {prefix!r}", "whole entries")
