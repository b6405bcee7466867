"""Further fields of samples in an HDF5 file: a group each, in which arrays have plain names.

    fields/mask/data uint8[total], offsets uint64[n+1]         bytes of files, one after the other
    fields/age/data int64, float64, float32 or uint8[n]        numbers; uint8 for truth values
    fields/name/data uint8[], offsets uint64[n+1]              texts in UTF-8
    fields/boxes/offsets uint64[n+1], offsets_2, data          lists of lists: borders of each level
    … valid, valid_2 (uint8)                                   0 where there is no value; left out if none is
    … checksum uint64[1]                                       xxh3 of the other arrays, files excepted

So `file["train/fields/age/data"][7]` is the age of sample 7, and no field can have the name of an array of
another one or of ours.

The trap: one flipped bit makes another age of an age, or another mask of a mask, without any error. So the
checksum is compared before a value is given away. Notebook 13 teaches fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from smallfiles.arrays import as_mask, scalar, text_bytes, to_numpy
from smallfiles.fields import list_borders, type_named

HOME = "fields"
"""The group of them, in that of the split."""

_CHECKSUM = "checksum"
_LARGEST = 2**31 - 1
_KINDS = {pa.int64(): "<i8", pa.float64(): "<f8", pa.float32(): "<f4", pa.bool_(): "|u1"}
_Arrays: TypeAlias = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Field:
    """One field as it was found in a file.

    Args:
        kind: The suffix of its files, or the type of its values as Arrow writes it.
        arrays: By name, without the bytes of files.
        start: Offset in the file at which the bytes of its files begin.
        size: How many these are.
    """

    kind: str
    arrays: _Arrays
    start: int = 0
    size: int = 0

    @property
    def is_blob(self) -> bool:
        """Whether it has files, and not values."""
        return self.kind.startswith(".")

    def check(self) -> None:
        """Compare the arrays with their checksum.

        Raises:
            ValueError: They are not what was written.
        """
        stated = self.arrays.get(_CHECKSUM)
        if stated is None or stated.tolist() != [_checksum(self.kind, self.arrays)]:
            raise ValueError("its arrays are not those that were written")

    def offsets(self, rows: int) -> np.ndarray:
        """Where the files of so many samples begin and end; each is still to be compared with `size`.

        Raises:
            ValueError: They cannot be right.
        """
        self.check()
        return _array(self.arrays, "offsets", "<u8", rows + 1)

    def column(self, rows: int) -> pa.Array:
        """The values of so many samples, over the memory of the arrays where that is possible.

        Raises:
            ValueError: They cannot be right; also as `pa.ArrowInvalid`.
            ManifestError: The type is none that values have.
        """
        self.check()
        found = _column(type_named(self.kind), self.arrays, rows)
        found.validate(full=True)
        return found


def with_checksum(kind: str, arrays: _Arrays) -> dict[str, np.ndarray]:
    """The arrays of a field and their checksum."""
    return {**arrays, _CHECKSUM: np.array([_checksum(kind, arrays)], "<u8")}


def _checksum(kind: str, arrays: _Arrays) -> int:
    found = xxhash.xxh3_64(kind.encode())
    for name in sorted(arrays.keys() - {_CHECKSUM}):
        found.update(f"\0{name}\0".encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.intdigest()


def arrays_of(column: pa.Array) -> dict[str, np.ndarray]:
    """Values as arrays of numbers; what is null is zero or empty, so that equal values give equal bytes."""
    found: dict[str, np.ndarray] = {}
    for level in count(1):
        mark = _mark(level)
        if column.null_count:
            found["valid" + mark] = as_mask(column.is_valid()).view(np.uint8)
        if not pa.types.is_list(column.type):
            break
        found["offsets" + mark] = list_borders(column).astype(np.uint64)
        column = column.flatten()
    empty = scalar("") if pa.types.is_string(column.type) else scalar(0).cast(column.type)
    column = pc.fill_null(column, empty) if column.null_count else column
    if pa.types.is_string(column.type):
        borders, data = text_bytes(column)
        found |= {"offsets" + mark: borders.astype(np.uint64), "data": data}
    elif pa.types.is_boolean(column.type):
        found["data"] = as_mask(column).view(np.uint8)
    else:
        found["data"] = to_numpy(column)
    return found


def _mark(level: int) -> str:
    return "" if level == 1 else f"_{level}"


def _column(kind: pa.DataType, arrays: _Arrays, rows: int, level: int = 1) -> pa.Array:
    """Values of one level of lists; the first level has one for each sample."""
    mark, validity = _mark(level), None
    if "valid" + mark in arrays:
        validity = _bits(_array(arrays, "valid" + mark, "|u1", rows))
    if pa.types.is_list(kind) or pa.types.is_string(kind):
        offsets = _array(arrays, "offsets" + mark, "<u8", rows + 1)
        if offsets.max() > _LARGEST:
            raise ValueError(f"its offsets{mark} are beyond {_LARGEST:,}")
        buffers = [validity, pa.py_buffer(offsets.astype("<i4"))]
        if pa.types.is_list(kind):
            inner = _column(kind.value_type, arrays, int(offsets[-1]), level + 1)
            return pa.Array.from_buffers(kind, rows, buffers, children=[inner])
        buffers.append(pa.py_buffer(_array(arrays, "data", "|u1", int(offsets[-1]))))
        return pa.Array.from_buffers(kind, rows, buffers)
    data = _array(arrays, "data", _KINDS[kind], rows)
    buffer = _bits(data) if pa.types.is_boolean(kind) else pa.py_buffer(np.require(data, requirements="A"))
    return pa.Array.from_buffers(kind, rows, [validity, buffer])


def _array(arrays: _Arrays, name: str, kind: str, rows: int) -> np.ndarray:
    """An array that must be there, of this type and length."""
    found = arrays.get(name)
    if found is None or found.dtype != np.dtype(kind) or len(found) != rows:
        had = "not there" if found is None else f"{len(found):,} of {found.dtype}"
        raise ValueError(f"its {name} are {had} instead of {rows:,} of {np.dtype(kind)}")
    return found


def _bits(flags: np.ndarray) -> pa.Buffer:
    if (flags > 1).any():
        raise ValueError("its truth values are neither 0 nor 1")
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
