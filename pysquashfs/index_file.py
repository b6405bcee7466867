"""Keep the index of a large image beside it, so that it opens quickly the next time.

The file (`NAME.index`) is a header with the identity of the image (its superblock, size and time of
change), followed by the columns, which are mapped into memory: all workers of a node share them.

The trap: a cache that belongs to another image. An index that is damaged, foreign or out of date is
ignored and written again; if the folder is not writable, the index stays in memory.
"""

from __future__ import annotations

import contextlib
import mmap
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import parsing, superblock
from pysquashfs.errors import SquashFSError
from pysquashfs.image_file import ImageFile
from pysquashfs.index import Files, Index, Others
from pysquashfs.names import Names
from pysquashfs.superblock import Superblock

Array = npt.NDArray[Any]
MIN_ENTRIES = 10_000  # smaller images are parsed in milliseconds
_MAGIC = b"sqfsidx\x01"  # with the version of this layout
_HEADER = Struct("<8s96s2q2I")  # magic, superblock, image bytes, mtime in ns, CRC-32 of all behind, columns
_ALIGNED = 64
# Columns in the order stored. `names` is two of them: blob and offsets.
_SHARED = (
    ("blob", "|u1"), ("offsets", "<i8"), ("reference", "<u8"), ("number", "<u4"), ("kind", "|u1"),
    ("flags", "|u1"), ("mode", "<u2"), ("mtime", "<u4"), ("uid", "<u2"), ("gid", "<u2"),
)  # fmt: skip
_FILES = (
    *_SHARED, ("size", "<i8"), ("start", "<i8"), ("fragment", "<u4"), ("fragment_offset", "<u4"),
    ("first_word", "<i8"),
)  # fmt: skip
_OTHERS = (*_SHARED, ("target", "<i8"), ("target_bytes", "<u4"), ("targets", "|u1"))
_IMAGE = (("words", "<u4"), ("fragment_start", "<i8"), ("fragment_word", "<u4"), ("ids", "<u4"))
_TYPES = [kind for _, kind in (*_FILES, *_OTHERS, *_IMAGE)]


def index_path(image: Path) -> Path:
    """The file name of the index of an image."""
    return image.with_name(image.name + ".index")


def open_index(image: ImageFile, *, keep: bool) -> Index:
    """The index of an image: the stored one if it is valid, otherwise parsed (and stored if large).

    Args:
        image: The image.
        keep: Whether an index may be read from and written to the folder of the image.

    Raises:
        SquashFSError: The image itself is missing, damaged or hostile.
    """
    block = superblock.read(image)
    if keep:
        index = load(image, block)
        if index is not None:
            return index
    index = parsing.parse(image)
    if keep and len(index.files) + len(index.others) >= MIN_ENTRIES:
        with contextlib.suppress(OSError):  # a read-only folder, a full disk, a quota
            save(index, index_path(image.path))
    return index


def save(index: Index, path: Path) -> None:
    """Write an index under a temporary name and rename it."""
    crc = 0
    for piece in _pieces(index):
        crc = zlib.crc32(piece, crc)
    block = index.superblock.raw
    header = _HEADER.pack(_MAGIC, block, index.image_bytes, index.mtime_ns, crc, len(_TYPES))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # unique: other processes write it too
    try:
        with temporary.open("xb") as file:
            file.write(header)
            file.writelines(_pieces(index))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _pieces(index: Index) -> Iterator[bytes]:
    """Everything after the header: the length of each column, then the columns, aligned."""
    columns = _columns(index)
    lengths = np.array([len(column) for column in columns], "<u8").tobytes()
    yield lengths + bytes(-(_HEADER.size + len(lengths)) % _ALIGNED)
    for column, kind in zip(columns, _TYPES, strict=True):
        data = np.asarray(column, kind).tobytes()
        yield data + bytes(-len(data) % _ALIGNED)


def _columns(index: Index) -> list[Array]:
    found: list[Array] = []
    for entries, names in ((index.files, _FILES), (index.others, _OTHERS)):
        found += [entries.names.blob, entries.names.offsets]
        found += [getattr(entries, name) for name, _ in names[2:]]
    return found + [getattr(index, name) for name, _ in _IMAGE]


def load(image: ImageFile, block: Superblock) -> Index | None:
    """The stored index of an image, or None if there is no valid one."""
    try:
        with index_path(image.path).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _parsed(mapped, image, block)
    except (OSError, ValueError, SquashFSError):  # ValueError: empty, or wrong columns
        return None


def _parsed(mapped: mmap.mmap, image: ImageFile, block: Superblock) -> Index | None:
    if len(mapped) < _HEADER.size:
        return None
    *identity, crc, count = _HEADER.unpack_from(mapped)
    if identity != [_MAGIC, block.raw, image.size, image.mtime_ns] or count != len(_TYPES):
        return None
    if zlib.crc32(memoryview(mapped)[_HEADER.size :]) != crc:
        return None
    at = _HEADER.size + 8 * count
    columns = []
    for length, kind in zip(np.frombuffer(mapped, "<u8", count, _HEADER.size).tolist(), _TYPES, strict=True):
        at += -at % _ALIGNED
        columns.append(np.frombuffer(mapped, kind, length, at))
        at += columns[-1].nbytes
    files = Files(**_with_names(dict(zip([name for name, _ in _FILES], columns, strict=False))))
    rest = columns[len(_FILES) :]
    others = Others(**_with_names(dict(zip([name for name, _ in _OTHERS], rest, strict=False))))
    index = Index(block, image.size, image.mtime_ns, files, others, *rest[len(_OTHERS) :])
    parsing.check(index, image.path)
    return index


def _with_names(columns: dict[str, Array]) -> dict[str, Any]:
    """Columns of entries with their paths as one object, all of one length."""
    blob, offsets = columns.pop("blob"), columns.pop("offsets")
    rows = len(columns["kind"])
    one_each = {name: column for name, column in columns.items() if name != "targets"}
    if len(offsets) != rows + 1 or any(len(column) != rows for column in one_each.values()):
        raise ValueError("columns of different lengths")
    if offsets[0] != 1 or offsets[-1] != len(blob) or (np.diff(offsets) < 1).any():
        raise ValueError("paths outside of their column")
    return {**columns, "names": Names(blob, offsets)}
