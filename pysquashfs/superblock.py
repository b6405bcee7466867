"""The first 96 bytes of an image, checked before they are used.

The trap: a superblock contains the sizes and positions of everything else, so a damaged one leads to absurd
allocations. Each field is first checked against the size of the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from pysquashfs import layout
from pysquashfs.errors import DamagedImageError, SquashFSError
from pysquashfs.image_file import ImageFile


@dataclass(frozen=True)
class Superblock:
    """The fields of the superblock; positions in bytes from the start, None for absent tables."""

    raw: bytes  # as stored: the identity of the image, with its size and mtime
    inodes: int
    mtime_s: int
    block_bytes: int
    fragments: int
    compressor: str
    flags: int
    ids: int
    root: int
    bytes_used: int
    id_table: int
    xattr_table: int | None
    inode_table: int
    directory_table: int
    fragment_table: int | None
    export_table: int | None

    @property
    def all_raw(self) -> bool:
        """Whether the flags say that nothing is compressed."""
        flags = layout.FLAG_INODES_RAW | layout.FLAG_DATA_RAW | layout.FLAG_FRAGMENTS_RAW
        return self.flags & flags == flags


def read(image: ImageFile) -> Superblock:
    """The superblock of an image.

    Raises:
        SquashFSError: It is no squashfs 4.0 image, is cut off, or its fields contradict each other.
    """
    if image.size < layout.SUPERBLOCK.size:
        raise _not_squashfs(image, f"it has {image.size} bytes")
    raw = image.read(0, layout.SUPERBLOCK.size, "the superblock")
    fields = layout.SUPERBLOCK.unpack(raw)
    magic, inodes, mtime_s, block_bytes, fragments, compressor, block_log, flags, ids = fields[:9]
    if magic != layout.MAGIC:
        raise _not_squashfs(image, f"it starts with {raw[:4]!r}")
    if fields[9:11] != layout.VERSION:
        raise _not_squashfs(image, f"it is of version {fields[9]}.{fields[10]}")
    _check_block_size(image, block_bytes, block_log)
    if compressor not in layout.COMPRESSORS:
        raise _damaged(image, f"its compressor has the number {compressor}", "one from 1 to 6")
    tables = [None if position == layout.ABSENT else position for position in fields[13:]]
    name = layout.COMPRESSORS[compressor]
    found = Superblock(
        raw, inodes, mtime_s, block_bytes, fragments, name, flags, ids, *fields[11:13], *tables
    )
    _check_positions(image, found)
    return found


def _check_block_size(image: ImageFile, block_bytes: int, block_log: int) -> None:
    allowed = layout.MIN_BLOCK_BYTES <= block_bytes <= layout.MAX_BLOCK_BYTES
    if not allowed or block_bytes != 1 << min(block_log, 63):
        raise _damaged(
            image,
            f"its block size is {block_bytes:,} (and 2 to the power of {block_log})",
            "one power of two from 4,096 to 1,048,576",
        )


def _check_positions(image: ImageFile, found: Superblock) -> None:
    if found.bytes_used > image.size:
        fault = f"it is cut off: {image.size:,} bytes of {found.bytes_used:,} are there"
        raise _damaged(image, fault, "the whole file")
    tables = {
        "id": found.id_table,
        "inode": found.inode_table,
        "directory": found.directory_table,
        "xattr": found.xattr_table,
        "fragment": found.fragment_table,
        "export": found.export_table,
    }
    for name, start in tables.items():
        if start is None:
            if name in ("id", "inode", "directory"):
                raise _damaged(image, f"it has no {name} table", "one")
        elif not layout.SUPERBLOCK.size <= start <= found.bytes_used:
            raise _damaged(image, f"its {name} table starts at byte {start:,}", "all tables in the file")
    if found.inode_table >= found.directory_table:
        raise _damaged(image, "its directory table lies before its inode table", "them one after another")
    if found.fragments and found.fragment_table is None:
        raise _damaged(image, f"it counts {found.fragments:,} fragments and has no table of them", "one")


def _not_squashfs(image: ImageFile, fault: str) -> SquashFSError:
    return SquashFSError(
        f"{image.path}: {fault}",
        expected="a squashfs image of version 4.0 (which starts with b'hsqs')",
        next_step="Check that it is the right file, and whole",
    )


def _damaged(image: ImageFile, fault: str, expected: str) -> DamagedImageError:
    return DamagedImageError.of(image.path, fault, expected)
