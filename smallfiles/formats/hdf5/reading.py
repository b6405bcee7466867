"""Read HDF5 by position, whichever layout, without keeping a handle of the library.

The trap is the one that this module avoids: `h5py.File` opened in `__init__` of a Dataset works with
`num_workers=0` and may give wrong bytes or fail with more. Notebook 04 reproduces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles.arrays import as_integers
from smallfiles.errors import ManifestError
from smallfiles.fields import type_named
from smallfiles.formats.blob import ArrayTable, required
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.hdf5.layout import Field, Found, announce_rows, find, row_lengths, row_place
from smallfiles.formats.table import Extents, Place, computed_once


def locate(path: Path, *, split: str | None = None, access: Access = "auto") -> HDF5Table:
    """Open an HDF5 file, and find the samples in it.

    Args:
        path: The file.
        split: The group; by default the only one, or `train`.
        access: How samples are fetched.

    Raises:
        FormatError: It is damaged, or of a layout that we do not know.
    """
    file = ByteFile(path, access)
    found = find(file, split)
    if found.start is None:
        rows = required(path, found.arrays, "images")
        table = HDF5Table(file, found, {"": _Rows(file, rows, found.base)}, len(rows), "vlen")
        if not found.record:
            _check_finished(path, rows)
        return table
    offsets = required(path, found.arrays, "offsets")
    return HDF5Table(file, found, _runs(file, found, offsets), len(offsets) - 1, "blob")


def _runs(file: ByteFile, found: Found, offsets: np.ndarray) -> dict[str, Extents]:
    """Return where the bytes of each field are."""
    runs: dict[str, Extents] = {"": _Run(file, found.start or 0, found.stop, lambda: offsets)}
    rows = len(offsets) - 1
    for name, field in found.fields.items():
        if field.is_blob:
            load = partial(_further_offsets, file.path, name, field, rows)
            runs[name] = _Run(file, field.start, field.size, load, field.kind)
    return runs


def _further_offsets(path: Path, name: str, field: Field, rows: int) -> np.ndarray:
    """Return the offsets of a field, compared with their checksum."""
    with _reported(path, name):
        return field.offsets(rows)


class _Run(Extents):
    """The blob layout: the blobs of a field follow each other, and offsets divide them.

    Args:
        file: The file.
        start: Where the first blob begins.
        size: Bytes of all blobs.
        load: Loads the offsets; used once.
        suffix: Of the files.
    """

    def __init__(
        self, file: ByteFile, start: int, size: int, load: Callable[[], np.ndarray], suffix: str = ""
    ) -> None:
        super().__init__(suffix)
        self._file, self._start, self._size, self._load = file, start, size, load

    @computed_once
    def _offsets(self) -> memoryview[int]:
        found = self._load()  # over the memory of a mapped file, also as integers with a sign
        return as_integers(found.view(np.int64) if found.dtype == np.uint64 else found)

    def place(self, row: int) -> Place:
        offsets = self._offsets
        start, stop = offsets[row], offsets[row + 1]
        if not 0 <= start <= stop <= self._size:
            raise damaged(self._file.path, f"the offsets of sample {row} are {start} and {stop}")
        return self._file, self._start + start, self._start + stop

    def total_bytes(self) -> int:
        return self._offsets[-1]


class _Rows(Extents):
    """The vlen layout: a row for each sample, somewhere in the file.

    Args:
        file: The file.
        rows: Length, heap and number of each row.
        base: What the addresses of heaps count from.
    """

    def __init__(self, file: ByteFile, rows: np.ndarray, base: int) -> None:
        super().__init__()
        self._file, self._rows, self._base = file, rows, base

    def size(self, row: int) -> int:
        """Return the bytes of one sample, without following its row."""
        return int(row_lengths(self._rows[row : row + 1])[0])

    def place(self, row: int) -> Place:
        return self._file, *row_place(self._file, self._rows[row].tobytes(), self._base)

    def announce(self, rows: Sequence[int]) -> None:
        announce_rows(self._file, self._rows[np.asarray(rows, np.int64)], self._base)

    def total_bytes(self) -> int:
        return int(row_lengths(self._rows).astype(np.int64).sum())


class HDF5Table(ArrayTable):
    """An HDF5 file of either layout."""

    format = "hdf5"
    outlives_fork = True

    def __init__(
        self, file: ByteFile, found: Found, blobs: Mapping[str, Extents], rows: int, layout: str
    ) -> None:
        self._found, self.layout = found, layout
        may_lack = layout == "vlen" and bool(found.record)
        super().__init__(
            file.path, found.arrays, found.record, blobs, rows, may_lack=may_lack, file_bytes=file.size
        )

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        further = {}
        for name, field in self._found.fields.items():
            if not field.is_blob:
                with _reported(self.path, name):
                    further[name] = type_named(field.kind)
        return super().kinds | further

    def load(self, name: str) -> pa.Array:
        if name not in self._found.fields:
            return super().load(name)
        with _reported(self.path, name):
            return self._found.fields[name].column(self.count)

    def about(self) -> dict[str, Any]:
        return {**super().about(), "split": self._found.split}


@contextmanager
def _reported(path: Path, name: str) -> Iterator[None]:
    """Report what is wrong with a field as damage of its file."""
    try:
        yield
    except (ValueError, ManifestError) as error:
        what = error.got if isinstance(error, ManifestError) else error
        raise damaged(path, f"its field {name} cannot be read ({what})") from error


def _check_finished(path: Path, rows: np.ndarray) -> None:
    """Refuse a file whose last rows are empty."""
    filled = np.flatnonzero(row_lengths(rows))
    empty = len(rows) - (int(filled[-1]) + 1 if len(filled) else 0)
    if empty:
        raise damaged(
            path, f"its last {empty:,} of {len(rows):,} rows are empty, so writing it was interrupted"
        )
