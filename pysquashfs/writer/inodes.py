"""Inodes as bytes: the short form, or the extended one if numbers are too large for it.

The trap: the short inode of a file has only 32-bit numbers, so a file that merely *starts* beyond 4 GiB
needs the extended one; so does a folder with a listing of more than 64 KiB.
"""

from __future__ import annotations

from collections.abc import Sequence

from pysquashfs import layout

FILE_MODE, FOLDER_MODE = 0o644, 0o755
_U16, _U32 = 0xFFFF, 0xFFFF_FFFF
_MTIME_S = _ID = 0  # no time and no user, so that equal items give equal bytes
MAX_INDICES = 0xFFFF


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
