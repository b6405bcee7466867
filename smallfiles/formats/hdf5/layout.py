"""Where everything is in an HDF5 file: looked up once through the library, then read without it.

Contiguous data sets are plain runs of bytes at an offset, so a mapping of the file shows them as
arrays that all workers of a node share. Variable-length rows are in *global heaps*, described in the
HDF5 File Format Specification, section III.E. Each field that is not the default one is a group, in which
arrays have plain names:

    fields/mask/data uint8[total], offsets uint64[n+1]         bytes of files, one after the other
    fields/age/data int64, float64, float32 or uint8[n]        numbers; uint8 for truth values
    fields/name/data uint8[], offsets uint64[n+1]              texts in UTF-8
    fields/boxes/offsets uint64[n+1], offsets_2, data          lists of lists: borders of each level
    … valid, valid_2 (uint8)                                   0 where there is no value; left out if none is
    … checksum uint64[1]                                       xxh3 of the other arrays, files excepted

So `file["train/fields/age/data"][7]` is the age of sample 7, and no field can have the name of an array of
another one or of ours. A file can refer to others: external storage, virtual data sets, links. The library
opens any file that is named there; so each name is checked before it is followed.

The traps: a file that was laid out, flushed and then interrupted opens without an error, with rows of zero
length. And one flipped bit changes a number without any error, so the checksum is compared before
a value is returned. Notebook 13 teaches fields.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import xxhash

from smallfiles.errors import FormatError, first_few
from smallfiles.fields import type_named
from smallfiles.formats.blob import NAMES, Arrays, array_of, column_of
from smallfiles.formats.bytefile import ByteFile, RawFile, damage_reported, damaged
from smallfiles.formats.table import load_record

HOME = "fields"
"""Name of the group that holds the additional fields. It lies in the group of the split."""

_CHECKSUM = "checksum"

_ROW_FIELDS = np.dtype([("length", "<u4"), ("address", "<u8"), ("object", "<u4")])
_ROW = struct.Struct("<IQI")  # length, address of the heap, number of the object in it
_OBJECT = struct.Struct("<HHIQ")  # number, references, reserved, size
_MAX_ROWS = 1 << 28
_MAX_OBJECTS = 1 << 16  # their numbers have 16 bits
_MAX_RATIO = 1_100  # the largest compression ratio of deflate, rounded up
_HEAP_SIZE = struct.Struct("<Q")
_GROUP = "a group such as train with images (rows of encoded bytes) and targets, or data, offsets and labels"
_FROM_DATASET = (
    "Write a class whose [i] gives (picture, label) from this file, and pack what "
    "smallfiles.sources.from_dataset makes of it"
)
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Field:
    """One additional field of an HDF5 file.

    Args:
        kind: Suffix of its files, or the Arrow name of the type of its values.
        arrays: The arrays of the field by name, without the bytes of files.
        start: Offset in the file at which the bytes of the field's files begin.
        size: Total size of the field's files in bytes.
    """

    kind: str
    arrays: Arrays
    start: int = 0
    size: int = 0

    @property
    def is_blob(self) -> bool:
        """Whether the field has files. Otherwise, it has values."""
        return self.kind.startswith(".")

    def check(self) -> None:
        """Compare the arrays with their checksum.

        Raises:
            ValueError: The arrays are not those that were written.
        """
        stated = self.arrays.get(_CHECKSUM)
        if stated is None or stated.tolist() != [_checksum(self.kind, self.arrays)]:
            raise ValueError("its arrays are not those that were written")

    def offsets(self, rows: int) -> np.ndarray:
        """Return the offsets that divide the field's files for `rows` samples.

        The checksum has been compared, but each offset must still be compared with `size`.

        Raises:
            ValueError: The offsets cannot be right.
        """
        self.check()
        return array_of(self.arrays, "offsets", "<u8", rows + 1)

    def column(self, rows: int) -> pa.Array:
        """Return the values of `rows` samples, over the memory of the arrays where that is possible.

        Raises:
            ValueError: The values cannot be right. `pa.ArrowInvalid`, which is raised as well, is a
                ValueError.
            ManifestError: Values cannot have this type.
        """
        self.check()
        return column_of(type_named(self.kind), self.arrays, rows)


def with_checksum(kind: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the arrays of a field with their checksum added."""
    return {**arrays, _CHECKSUM: np.array([_checksum(kind, arrays)], "<u8")}


def _checksum(kind: str, arrays: Arrays) -> int:
    found = xxhash.xxh3_64(kind.encode())
    for name in sorted(arrays.keys() - {_CHECKSUM}):
        found.update(f"\0{name}\0".encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.intdigest()


@dataclass(frozen=True)
class Found:
    """The places of everything in an HDF5 file, as the HDF5 library found them.

    Args:
        split: Name of the group.
        record: Provenance. It is empty in a file of another program.
        arrays: Data sets as arrays. They are views of the mapped file where they are contiguous.
        start: Offset in the file at which the bytes of `data` begin. It is None in the vlen layout.
        stop: Size of `data` in bytes.
        base: The offset in the file from which heap addresses count.
        fields: Additional fields by name.
    """

    split: str
    record: dict[str, object]
    arrays: dict[str, np.ndarray]
    start: int | None
    stop: int
    base: int
    fields: dict[str, Field]


def find(file: ByteFile, split: str | None) -> Found:
    """Look up where everything is in an HDF5 file, and close the HDF5 library again.

    Raises:
        FormatError: The file is not an HDF5 file, or has a layout that we do not know.
        DamagedFileError: The file is truncated or changed, or was never finished.
    """
    if not any(file.fetch_some(at, 8) == _SIGNATURE for at in _beginnings(file.size)):
        raise FormatError(
            f"{file.path} is not an HDF5 file",
            expected="a file with the HDF5 signature at its start, or after a user block",
            next_step="Check the path; the suffix may be wrong",
        )
    with damage_reported(file.path), h5py.File(RawFile(file), "r") as opened:
        return _look(opened, file, split)


def _beginnings(size: int) -> list[int]:
    """Return the offsets at which an HDF5 file may begin: 0, or the end of a user block.

    A user block has 512 bytes, 1,024 bytes, and so on.
    """
    return [0, *(1 << power for power in range(9, max(size, 1).bit_length()))]


def _look(opened: h5py.File, file: ByteFile, split: str | None) -> Found:
    record = _record(opened.attrs)
    if record and opened.attrs.get("complete") != 1:
        raise damaged(file.path, "writing it was interrupted before it was complete")
    split = split or _split_of(opened, record, file.path)
    group = _member(opened, split, file.path)
    if not isinstance(group, h5py.Group) or not ({"data", "images"} & set(group)):
        raise FormatError(
            f"{file.path} has no samples of split {split!r}; it has: {', '.join(opened) or 'nothing'}",
            expected=_GROUP,
            next_step=f"Choose another split. {_FROM_DATASET}",
        )
    sets = {name: _member(group, name, file.path) for name in ("data", "images", *NAMES)}
    arrays = {name: _numbers(item, file) for name in NAMES if (item := sets[name]) is not None}
    if not (record or {"labels", "targets", "caption_rows"} & arrays.keys()):
        raise FormatError(
            f"{file.path} has {first_few(group, len(group))} in {split}, and no targets",
            expected=_GROUP,
            next_step="Give its labels the name targets with h5py (group.move), or add them",
        )
    data, base = sets["data"], opened.userblock_size
    if data is None:
        rows = {"images": _rows(sets["images"], file)}
        return Found(split, record, arrays | rows, None, 0, base, {})
    fields = _fields(group, record, file)
    return Found(split, record, arrays, _start(data, file), data.size, base, fields)


def _fields(group: h5py.Group, record: dict[str, object], file: ByteFile) -> dict[str, Field]:
    """Find the additional fields. The record must name the same fields as the file has.

    Otherwise, a model would be trained without the fields that a file has lost.
    """
    stated, home = record.get("fields", {}), _member(group, HOME, file.path)
    there = set(home) if isinstance(home, h5py.Group) else set()
    if not isinstance(stated, dict) or there != stated.keys():
        found, named = (
            first_few(sorted(map(str, some)), len(some)) or "none"
            for some in (there, stated if isinstance(stated, dict) else ())
        )
        raise damaged(file.path, f"it has the fields {found}, and its record has {named}")
    return {name: _field(home, name, str(kind), file) for name, kind in stated.items()}


def _field(home: h5py.Group, name: str, kind: str, file: ByteFile) -> Field:
    group = _member(home, name, file.path)
    sets = {each: _member(group, each, file.path) for each in group}
    data = sets.pop("data", None) if kind.startswith(".") else None
    arrays = {each: _numbers(item, file, "iuf") for each, item in sets.items()}
    return Field(kind, arrays) if data is None else Field(kind, arrays, _start(data, file), data.size)


def _member(group: h5py.Group, name: str, path: Path) -> Any:
    """Open a member of a group. Return None if the group has no member of this name.

    Raises:
        FormatError: The member is, or may be, in another file.
    """
    found: Any = group
    for part in name.strip("/").split("/"):
        link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise _elsewhere(path, name, "a link")
        found = found[part]
    if isinstance(found, h5py.Dataset):
        plan = found.id.get_create_plist()
        if plan.get_layout() == h5py.h5d.VIRTUAL:
            raise _elsewhere(path, name, "a virtual data set")
        if plan.get_external_count():
            raise _elsewhere(path, name, "a data set in external storage")
    return found


def _elsewhere(path: Path, name: str, what: str) -> FormatError:
    return FormatError(
        f"{path} has {name} as {what}, which can refer to any file of this machine",
        expected="everything in the file itself",
        next_step="If you trust it, copy its data sets into a new file with h5py: new[name] = old[name][...]",
    )


def _record(attributes: h5py.AttributeManager) -> dict[str, object]:
    """Read the provenance that this package stored. An attribute of this name in another form is ignored."""
    if "provenance" not in attributes or attributes.get_id("provenance").dtype.kind != "S":
        return {}
    return load_record(bytes(attributes["provenance"]))


def _split_of(opened: h5py.File, record: dict[str, object], path: Path) -> str:
    stated = record.get("schema")
    if isinstance(stated, dict) and isinstance(stated.get("split"), str):
        return str(stated["split"])
    links = {name: opened.get(name, getlink=True) for name in opened}
    inside = {name for name, link in links.items() if isinstance(link, h5py.HardLink)}
    groups = [name for name in opened if name not in inside or isinstance(opened[name], h5py.Group)]
    if len(groups) == 1 or "train" in groups:
        return groups[0] if len(groups) == 1 else "train"
    if not groups:
        held = f"{first_few(sorted(inside), len(inside))} outside of any group" if inside else "nothing"
        raise FormatError(f"{path} holds {held}", expected=_GROUP, next_step=_FROM_DATASET)
    raise FormatError(
        f"{path} has {len(groups)} groups: {', '.join(groups)}",
        expected="one group, or one named train",
        next_step="Pack one of them into a file of its own: pack FILE OUT --split NAME",
    )


def _place(data: h5py.Dataset, file: ByteFile) -> int:
    """Return the offset of a contiguous data set in the file."""
    offset = data.id.get_offset()
    if offset is None and data.size:
        raise FormatError(
            f"{file.path} stores {data.name} in chunks or compressed",
            expected="a contiguous data set, since JPEG data does not compress",
            next_step="Rewrite it with: h5repack -l CONTI -f NONE OLD NEW",
        )
    start = offset or 0
    if not 0 <= start <= start + data.id.get_storage_size() <= file.size:
        raise damaged(file.path, f"{data.name} reaches beyond its end")
    return start


def _start(data: Any, file: ByteFile) -> int:
    """Return the offset in the file at which the bytes of all samples begin."""
    if not _is_column(data) or data.dtype.itemsize != 1:
        raise _unknown(data, file.path, "one long run of bytes")
    return _place(data, file)


def _numbers(item: Any, file: ByteFile, kinds: str = "iu") -> np.ndarray:
    if not _is_column(item, kinds):
        raise _unknown(item, file.path, "one integer a row" if kinds == "iu" else "one number a row")
    if item.id.get_offset() is None:
        stored = min(item.id.get_storage_size(), file.size)
        if item.nbytes > max(stored, _ROW.size) * _MAX_RATIO:
            raise damaged(file.path, f"{item.name} names {item.size:,} rows, which are not stored")
        return np.asarray(item[...])
    return file.array(item.dtype, item.size, _place(item, file))


def _rows(item: Any, file: ByteFile) -> np.ndarray:
    """Return the length, the heap and the number in the heap of every variable-length row."""
    if not isinstance(item, h5py.Dataset) or h5py.check_vlen_dtype(item.dtype) != np.uint8 or item.ndim != 1:
        raise _unknown(item, file.path, "variable-length rows of encoded bytes (uint8)")
    stored = item.id.get_storage_size()
    if item.size > _MAX_ROWS or (stored and item.size > file.size * _MAX_RATIO):
        raise damaged(file.path, f"{item.name} names {item.size:,} rows, which are not stored")
    address_bytes, _ = item.file.id.get_create_plist().get_sizes()
    if address_bytes != 8:
        raise FormatError(
            f"{file.path} has heap addresses of another size in {item.name}",
            expected="addresses of 8 bytes",
            next_step="Copy its data sets into a new file with h5py: new[name] = old[name][...]",
        )
    if stored == 0 or item.chunks:  # nothing was written yet, or it is in pieces
        rows = np.zeros(item.size, np.dtype("V16"))
        if stored:
            _gather(item, rows, file)
        return rows
    if stored != item.size * _ROW.size:
        raise damaged(file.path, f"{item.name} has {stored:,} bytes for {item.size:,} rows")
    return file.array(np.dtype("V16"), item.size, _place(item, file))


def _gather(item: h5py.Dataset, rows: np.ndarray, file: ByteFile) -> None:
    """Copy the rows of all chunks into one array."""
    if item.id.get_create_plist().get_nfilters():
        raise FormatError(
            f"{file.path} stores {item.name} compressed or with checksums",
            expected="variable-length rows without a filter, which compresses their addresses alone",
            next_step="Rewrite it with: h5repack -f NONE OLD NEW",
        )

    def put(chunk: Any) -> None:
        (first,) = chunk.chunk_offset
        count = min(item.chunks[0], len(rows) - first)
        rows[first : first + count] = file.array(rows.dtype, count, chunk.byte_offset)

    item.id.chunk_iter(put)


def _is_column(item: Any, kinds: str = "iu") -> bool:
    return isinstance(item, h5py.Dataset) and item.dtype.kind in kinds and item.ndim == 1


def _unknown(item: Any, path: Path, expected: str) -> FormatError:
    kind = f"{item.dtype} of shape {item.shape}" if isinstance(item, h5py.Dataset) else "no data set"
    return FormatError(
        f"{path} has {item.name} as {kind}",
        expected=expected,
        next_step=_FROM_DATASET,
    )


def row_lengths(rows: np.ndarray) -> np.ndarray:
    """Return the lengths of variable-length rows in bytes without reading the rows."""
    parts = rows.view(np.dtype([("length", "<u4"), ("address", "<u8"), ("number", "<u4")]))
    return np.asarray(parts["length"])


def announce_rows(file: ByteFile, rows: np.ndarray, base: int) -> None:
    """Announce the first page of the heap of each variable-length row, where `row_place` looks."""
    heaps = np.frombuffer(rows.tobytes(), _ROW_FIELDS)
    for address in np.unique(heaps["address"][heaps["length"] > 0]).tolist():
        file.prefetch(base + address, min(base + address + mmap.PAGESIZE, file.size))


def row_place(file: ByteFile, row: bytes, base: int) -> tuple[int, int]:
    """Return the first byte and the end (exclusive) of one variable-length row in the file.

    Raises:
        DamagedFileError: The heap of the row does not exist, or does not hold the row.
    """
    length, address, wanted = _ROW.unpack(row)
    if length == 0:
        return 0, 0
    heap = base + address
    try:
        head = file.fetch_some(heap, 16)
        if head[:4] != b"GCOL":
            raise damaged(file.path, f"there is no heap at byte {heap:,}")
        (size,) = _HEAP_SIZE.unpack_from(head, 8)
        place, end = heap + 16, min(heap + size, file.size)
        for _ in range(_MAX_OBJECTS):
            if place + _OBJECT.size > end:
                break
            number, _, _, held = _OBJECT.unpack(file.fetch_some(place, _OBJECT.size))
            place += _OBJECT.size
            if number == wanted and length <= held and place + length <= end:
                return place, place + length
            if number == 0:
                break
            place += -(-held // 8) * 8
    except struct.error:
        pass
    raise damaged(file.path, f"the heap at byte {heap:,} does not hold its row")
