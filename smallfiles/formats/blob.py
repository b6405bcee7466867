"""Samples as one run of bytes, and everything else about them as plain arrays of numbers.

HDF5 and LMDB files both contain named arrays. They store the same arrays and share this reader, and a
program in any language finds the labels of such a file in two lines:

    labels int64[n]  or  caption_data uint8[], caption_offsets uint64[], caption_rows uint64[n+1]
    key_data uint8[], key_offsets uint64[n+1]; meta_data, meta_offsets where a sample has a JSON object

The trap: n texts have n + 1 offsets, and text `i` is between offset `i` and offset `i + 1`. Notebook 04
draws it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, from_numpy, integers, scalar, text_bytes, to_numpy
from smallfiles.errors import DamagedFileError, summary_of
from smallfiles.fields import META, list_borders
from smallfiles.formats.bytefile import damage_reported, damaged
from smallfiles.formats.table import Extents, SampleTable, numbered_keys
from smallfiles.samples import OWN_TYPES

NAMES = (
    *("offsets", "labels", "targets", "caption_data", "caption_offsets", "caption_rows"),
    *("key_data", "key_offsets", "meta_data", "meta_offsets"),
)
"""The arrays that a reader looks for. In files of the Jülich course, `labels` is called `targets`."""

_TEXTS = {
    "key": {"offsets": "key_offsets", "data": "key_data"},
    META: {"offsets": "meta_offsets", "data": "meta_data"},
    "captions": {"offsets": "caption_rows", "offsets_2": "caption_offsets", "data": "caption_data"},
}
"""For each column of texts, the names of its arrays by the part that they play in `column_of`."""

_LARGEST = 2**31 - 1
_KINDS = {pa.int64(): "<i8", pa.float64(): "<f8", pa.float32(): "<f4", pa.bool_(): "|u1"}
Arrays: TypeAlias = Mapping[str, np.ndarray]


def arrays_of(
    keys: pa.StringArray, values: Mapping[str, pa.Array], labels: str = "labels", kind: str = "<i8"
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and values of each array that stores the keys and the values of samples.

    Texts are stored as one run of bytes and their offsets. Both file formats can store strings themselves,
    but then each string costs a separate look-up. A sample without a JSON object stores the empty text.
    """
    yield from _text_arrays("key", keys)
    if "label" in values:
        yield labels, to_numpy(values["label"]).astype(kind, copy=False)
    if "captions" in values:
        yield from _text_arrays("caption", values["captions"].flatten())
        yield "caption_rows", list_borders(values["captions"]).astype(np.uint64)
    if META in values:
        yield from _text_arrays(META, pc.fill_null(values[META], scalar("")))


def _text_arrays(name: str, found: pa.StringArray) -> Iterator[tuple[str, np.ndarray]]:
    borders, data = text_bytes(found)
    yield f"{name}_data", data
    yield f"{name}_offsets", borders.astype(np.uint64)


class ArrayTable(SampleTable):
    """A table of samples whose columns are plain arrays, as in an HDF5 or LMDB file.

    Args:
        path: The file.
        arrays: The arrays in the file whose names are in `NAMES`. They hold numbers and have one dimension.
        record: Provenance. It is empty in a file that another program wrote.
        blobs: Extents by field.
        rows: Number of samples whose bytes are in the file.
        may_lack: Whether the last rows may have no targets, because samples were skipped while packing.
        file_bytes: Size of the file.
    """

    layout = "blob"

    def __init__(
        self,
        path: Path,
        arrays: Arrays,
        record: Mapping[str, Any],
        blobs: Mapping[str, Extents],
        rows: int,
        *,
        may_lack: bool = False,
        file_bytes: int = 0,
    ) -> None:
        super().__init__(path, 0, blobs, record, file_bytes)
        self.arrays = arrays
        self._labels = arrays.get("labels", arrays.get("targets"))
        self.count = self._count(rows, may_lack)

    def damaged(self, what: str) -> DamagedFileError:
        """Return the error for this file because of the damage that `what` describes."""
        return damaged(self.path, what)

    def array(self, name: str) -> np.ndarray:
        """Return the array of this name, which the file must have."""
        return required(self.path, self.arrays, name)

    def _count(self, rows: int, may_lack: bool) -> int:
        """Return the number of samples. Raise an error if the columns do not all have this number of rows."""
        if self._labels is None and "caption_rows" not in self.arrays:
            raise self.damaged("it has neither labels nor captions")
        targets = len(self._labels) if self._labels is not None else len(self.array("caption_rows")) - 1
        named = [name for name in ("key", "meta") if f"{name}_offsets" in self.arrays]
        columns = [len(self.arrays[f"{name}_offsets"]) - 1 for name in named]
        fits = targets == rows or (may_lack and targets < rows)
        if targets < 0 or any(count != targets for count in columns) or not fits:
            raise self.damaged(f"its columns have {targets}, {rows} and {columns} rows")
        return targets

    def _text(self, name: str, index: int) -> str:
        data, offsets = self.array(f"{name}_data"), self.array(f"{name}_offsets")
        try:
            start, stop = int(offsets[index]), int(offsets[index + 1])
            if not 0 <= start <= stop <= len(data):
                raise ValueError
            return data[start:stop].tobytes().decode()
        except (ValueError, IndexError):
            raise self.damaged(f"row {index} of its column {name} is no text") from None

    def key(self, row: int) -> str:
        return self._text("key", row) if "key_offsets" in self.arrays else str(row)

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        target = "captions" if self._labels is None else "label"
        return {target: OWN_TYPES[target]} | ({META: pa.string()} if "meta_offsets" in self.arrays else {})

    def load(self, name: str) -> pa.Array:
        if name == "label" and self._labels is not None:
            if self._labels.dtype == np.uint64:  # of another program: NumPy would make -1 of the largest
                with summary_of(self.path):
                    return integers(self._labels.tolist(), "label", "row {}".format)
            return from_numpy(np.require(self._labels, np.int64, ["C", "A"]))
        if name == "key" and "key_offsets" not in self.arrays:
            return numbered_keys(self.count)
        stored = {part: self.array(each) for part, each in _TEXTS[name].items()}
        with damage_reported(self.path, f"its column {name}:"):
            found = column_of(OWN_TYPES.get(name, pa.string()), stored, self.count)
        return found if name != META else pc.if_else(pc.equal(found, scalar("")), scalar(None), found)

    def about(self) -> dict[str, Any]:
        return {"layout": self.layout}


def required(path: Path, arrays: Arrays, name: str) -> np.ndarray:
    """Return the array of this name.

    Raises:
        DamagedFileError: The array is missing.
    """
    try:
        return arrays[name]
    except KeyError:
        raise damaged(path, f"it has no data set {name}") from None


def arrays_of_values(column: pa.Array) -> dict[str, np.ndarray]:
    """Return the values of a column as arrays of numbers, by the name of the array.

    Nulls are stored as zero or as the empty text, so that equal values give equal bytes.
    """
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


def column_of(type_: pa.DataType, arrays: Arrays, rows: int) -> pa.Array:
    """Build a column from its arrays, over their memory where that is possible, and validate it fully.

    Raises:
        ValueError: The arrays cannot be right. `pa.ArrowInvalid`, which is raised as well, is a ValueError.
    """
    found = _column(type_, arrays, rows)
    found.validate(full=True)
    return found


def _column(type_: pa.DataType, arrays: Arrays, rows: int, level: int = 1) -> pa.Array:
    """Build the values of one level of nested lists. At the first level, there is one value per sample."""
    mark, validity = _mark(level), None
    if "valid" + mark in arrays:
        validity = _bits(array_of(arrays, "valid" + mark, "|u1", rows))
    if pa.types.is_list(type_) or pa.types.is_string(type_):
        offsets = array_of(arrays, "offsets" + mark, "<u8", rows + 1)
        if offsets.max() > _LARGEST:
            raise ValueError(f"its offsets{mark} are beyond {_LARGEST:,}")
        buffers = [validity, pa.py_buffer(offsets.astype("<i4"))]
        if pa.types.is_list(type_):
            inner = _column(type_.value_type, arrays, int(offsets[-1]), level + 1)
            return pa.Array.from_buffers(type_, rows, buffers, children=[inner])
        buffers.append(pa.py_buffer(array_of(arrays, "data", "|u1", int(offsets[-1]))))
        return pa.Array.from_buffers(type_, rows, buffers)
    data = array_of(arrays, "data", _KINDS[type_], rows)
    buffer = _bits(data) if pa.types.is_boolean(type_) else pa.py_buffer(np.require(data, requirements="A"))
    return pa.Array.from_buffers(type_, rows, [validity, buffer])


def array_of(arrays: Arrays, name: str, kind: str, rows: int) -> np.ndarray:
    """Return the array of this name. Raise ValueError if it is missing, or has another type or length."""
    found = arrays.get(name)
    if found is None or found.dtype != np.dtype(kind) or len(found) != rows:
        had = "not there" if found is None else f"{len(found):,} of {found.dtype}"
        raise ValueError(f"its {name} are {had} instead of {rows:,} of {np.dtype(kind)}")
    return found


def _bits(flags: np.ndarray) -> pa.Buffer:
    if (flags > 1).any():
        raise ValueError("its truth values are neither 0 nor 1")
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
