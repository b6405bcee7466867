"""Read HDF5 by position, whichever layout, without keeping a handle of the library.

The trap is the one that this module avoids: `h5py.File` opened in `__init__` of a Dataset works with
`num_workers=0` and gives wrong bytes or hangs with more. Notebook 04 reproduces it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles.formats import provenance
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.hdf5.places import Found, find, row_lengths, row_place
from smallfiles.formats.reader import PlacedReader, numbered_keys
from smallfiles.samples import Meta, Target, TargetKind


class _Opened:
    """One process's view of a file: its bytes and where the samples lie in them."""

    def __init__(self, path: Path, split: str | None, access: Access) -> None:
        self.file = ByteFile(path, access)
        self.found: Found = find(self.file, split)
        arrays = self.found.arrays
        self.labels = arrays.get("labels", arrays.get("targets"))
        self.layout = "vlen" if self.found.start is None else "blob"
        self.borders = self._array("offsets") if self.layout == "blob" else None
        self.rows = self._array("images") if self.layout == "vlen" else None
        self.count = self._count()
        self.keys: pa.StringArray | None = None

    def _array(self, name: str) -> np.ndarray:
        try:
            return self.found.arrays[name]
        except KeyError:
            raise damaged(self.file.path, f"it has no data set {name}") from None

    def _count(self) -> int:
        """Number of samples, on which all columns must agree."""
        rows = self.found.arrays.get("caption_rows")
        if self.labels is None and rows is None:
            raise damaged(self.file.path, "it has neither labels nor captions")
        targets = len(self.labels) if self.labels is not None else len(self._array("caption_rows")) - 1
        stored = len(self.borders) - 1 if self.borders is not None else len(self._array("images"))
        planned = self.layout == "vlen" and bool(self.found.record)  # rows of skipped samples stay empty
        columns = [len(self.found.arrays[f"{name}_offsets"]) - 1 for name in self._named()]
        if targets < 0 or any(n != targets for n in columns) or not (stored == targets or planned):
            raise damaged(self.file.path, f"its columns have {targets}, {stored} and {columns} rows")
        if targets > stored:
            raise damaged(self.file.path, f"it has {targets} targets for {stored} rows")
        if self.rows is not None and not self.found.record:
            self._check_finished(self.rows)
        return targets

    def _named(self) -> list[str]:
        return [name for name in ("key", "meta") if f"{name}_offsets" in self.found.arrays]

    def _check_finished(self, rows: np.ndarray) -> None:
        filled = np.flatnonzero(row_lengths(rows))
        empty = len(rows) - (int(filled[-1]) + 1 if len(filled) else 0)
        if empty:
            raise damaged(
                self.file.path,
                f"its last {empty:,} of {len(rows):,} rows are empty, so writing it was interrupted",
            )

    def place(self, index: int) -> tuple[int, int]:
        """Start and stop of a sample in the file."""
        if self.borders is None:
            assert self.rows is not None
            return row_place(self.file, self.rows[index].tobytes(), self.found.base)
        start, stop, first = self.borders.item(index), self.borders.item(index + 1), self.found.start or 0
        if not start <= stop <= self.found.stop:
            raise damaged(self.file.path, f"the borders of sample {index} are {start} and {stop}")
        return first + start, first + stop

    def payload_bytes(self) -> int:
        """Sum of the encoded bytes."""
        if self.borders is None:
            assert self.rows is not None
            return int(row_lengths(self.rows).astype(np.int64).sum())
        return int(self.borders.item(self.count))

    def text(self, name: str, index: int) -> str:
        """One string of a column."""
        data, borders = self._array(f"{name}_data"), self._array(f"{name}_offsets")
        try:
            start, stop = int(borders[index]), int(borders[index + 1])
            if not start <= stop <= len(data):
                raise ValueError
            return data[start:stop].tobytes().decode()
        except (ValueError, IndexError):
            raise damaged(self.file.path, f"row {index} of its column {name} is no text") from None

    def captions(self, index: int) -> list[str]:
        """The captions of one sample."""
        rows = self._array("caption_rows")
        first, last = int(rows[index]), int(rows[index + 1])
        if not 0 <= first <= last <= len(self._array("caption_offsets")) - 1:
            raise damaged(self.file.path, f"sample {index} has captions {first} to {last}")
        return [self.text("caption", row) for row in range(first, last)]

    def all_keys(self) -> pa.StringArray:
        """The keys without a copy of their bytes."""
        if "key_offsets" not in self.found.arrays:
            return numbered_keys(self.count)
        data, borders = self._array("key_data"), self._array("key_offsets")
        if not self.count:
            return numbered_keys(0)
        if borders[-1] > len(data) or len(data) > 2**31 - 1 or (borders[1:] < borders[:-1]).any():
            raise damaged(self.file.path, "its keys reach beyond their bytes")
        offsets = pa.py_buffer(borders.astype("<i4"))
        try:
            keys = pa.StringArray.from_buffers(self.count, offsets, pa.py_buffer(data))
            keys.validate(full=True)
        except pa.ArrowInvalid as error:
            raise damaged(self.file.path, f"its keys are no texts ({error})") from error
        return keys


class HDF5Reader(PlacedReader[_Opened]):
    """Random access to an HDF5 file; see `smallfiles.formats.hdf5.open`."""

    def __init__(self, path: Path, split: str | None = None, access: Access = "auto") -> None:
        super().__init__(path)
        self._split, self._access = split, access

    def _open(self) -> _Opened:
        return _Opened(self.path, self._split, self._access)

    def __len__(self) -> int:
        return self._handle().count

    @property
    def target_kind(self) -> TargetKind:
        return "label" if self._handle().labels is not None else "captions"

    @property
    def classes(self) -> tuple[str, ...]:
        return provenance.class_names(self._handle().found.record)

    def keys(self) -> pa.StringArray:
        opened = self._handle()
        if opened.keys is None:
            opened.keys = opened.all_keys()
        return opened.keys

    def key(self, index: int) -> str:
        index, opened = self._checked(index), self._handle()
        return opened.text("key", index) if "key_offsets" in opened.found.arrays else str(index)

    def target(self, index: int) -> Target:
        index, opened = self._checked(index), self._handle()
        return opened.captions(index) if opened.labels is None else int(opened.labels.item(index))

    def targets(self, start: int, stop: int) -> list[Target]:
        """Labels or captions of a run of samples; mapped pages that were looked at are let go."""
        opened = self._handle()
        found = super().targets(start, stop) if opened.labels is None else opened.labels[start:stop].tolist()
        opened.file.forget()
        return found

    def meta(self, index: int) -> Meta | None:
        index, opened = self._checked(index), self._handle()
        if "meta_offsets" not in opened.found.arrays:
            return None
        return self._object(opened.text("meta", index), index)

    def size(self, index: int) -> int:
        index, opened = self._checked(index), self._handle()
        if opened.rows is not None:
            return int(row_lengths(opened.rows[index : index + 1])[0])
        return super().size(index)

    def _place(self, index: int) -> tuple[ByteFile, int, int]:
        opened = self._handle()
        start, stop = opened.place(index)
        return opened.file, start, stop

    def info(self) -> dict[str, Any]:
        opened = self._handle()
        return {
            "format": "hdf5",
            "layout": opened.layout,
            "split": opened.found.split,
            "samples": opened.count,
            "bytes": opened.payload_bytes(),
            "file_bytes": opened.file.size,
            "provenance": opened.found.record,
        }
