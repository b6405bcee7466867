"""Read HDF5 by position, whichever layout, without keeping a handle of the library.

The trap is the one that this module avoids: `h5py.File` opened in `__init__` of a Dataset works with
`num_workers=0` and may give wrong bytes or fail with more. Notebook 04 reproduces it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from smallfiles.formats.blob import BlobReader, FileBlob
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.hdf5.layout import Found, find, row_lengths, row_place


class _Opened(FileBlob):
    """The blob layout: all bytes in one run."""

    def __init__(self, file: ByteFile, found: Found) -> None:
        self.found = found
        super().__init__(file, found.arrays, found.record)

    def rows(self) -> int:
        return len(self.array("offsets")) - 1

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        start, stop = self.borders(index, self.found.stop)
        first = self.found.start or 0
        return self.file, first + start, first + stop

    def payload_bytes(self) -> int:
        return int(self.array("offsets").item(self.count))

    def about(self) -> dict[str, Any]:
        return {**super().about(), "split": self.found.split}


class _Rows(_Opened):
    """The vlen layout: a row for each sample, somewhere in the file."""

    layout = "vlen"

    def __init__(self, file: ByteFile, found: Found) -> None:
        super().__init__(file, found)
        if not found.record:
            self._check_finished(self._rows)

    @property
    def _rows(self) -> np.ndarray:
        return self.array("images")

    def rows(self) -> int:
        return len(self._rows)

    def holds(self, targets: int) -> bool:
        """Rows of samples that were skipped stay empty in ours."""
        return targets == self.rows() or (bool(self.record) and targets < self.rows())

    def _check_finished(self, rows: np.ndarray) -> None:
        filled = np.flatnonzero(row_lengths(rows))
        empty = len(rows) - (int(filled[-1]) + 1 if len(filled) else 0)
        if empty:
            raise damaged(
                self.path,
                f"its last {empty:,} of {len(rows):,} rows are empty, so writing it was interrupted",
            )

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        start, stop = row_place(self.file, self._rows[index].tobytes(), self.found.base)
        return self.file, start, stop

    def payload_bytes(self) -> int:
        return int(row_lengths(self._rows).astype(np.int64).sum())


class HDF5Reader(BlobReader[_Opened]):
    """Random access to an HDF5 file; see `smallfiles.formats.hdf5.open`."""

    format = "hdf5"

    def __init__(self, path: Path, split: str | None = None, access: Access = "auto") -> None:
        super().__init__(path, access)
        self._split = split

    def _open(self) -> _Opened:
        file = ByteFile(self.path, self._access)
        found = find(file, self._split)
        return (_Rows if found.start is None else _Opened)(file, found)

    def size(self, index: int) -> int:
        index, opened = self._checked(index), self._handle()
        if isinstance(opened, _Rows):
            return int(row_lengths(opened.array("images")[index : index + 1])[0])
        return super().size(index)
