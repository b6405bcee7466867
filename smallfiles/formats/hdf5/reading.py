"""Read HDF5 by position, whichever layout, without keeping a handle of the library.

The trap is the one that this module avoids: `h5py.File` opened in `__init__` of a Dataset works with
`num_workers=0` and may give wrong bytes or fail with more. Notebook 04 reproduces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles.errors import ManifestError
from smallfiles.fields import type_named
from smallfiles.formats.blob import Blob
from smallfiles.formats.bytefile import Access, ByteFile
from smallfiles.formats.hdf5.layout import Found, announce_rows, find, row_lengths, row_place
from smallfiles.formats.placed import FileReader


class _Opened(Blob):
    """The blob layout: all bytes in one run."""

    def __init__(self, file: ByteFile, found: Found) -> None:
        self.found = found
        self._offsets: dict[str, np.ndarray] = {}
        super().__init__(file, found.arrays, found.record)

    def rows(self) -> int:
        return len(self.array("offsets")) - 1

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        return self._between(self.array("offsets"), index, self.found.start or 0, self.found.stop)

    def _between(self, offsets: np.ndarray, index: int, begin: int, size: int) -> tuple[ByteFile, int, int]:
        start, stop = offsets.item(index), offsets.item(index + 1)
        if not 0 <= start <= stop <= size:
            raise self.damaged(f"the offsets of sample {index} are {start} and {stop}")
        return self.file, begin + start, begin + stop

    def blob_place(self, name: str, index: int) -> tuple[ByteFile, int, int]:
        field = self.found.fields[name]
        return self._between(self._blob_offsets(name), index, field.start, field.size)

    def _blob_offsets(self, name: str) -> np.ndarray:
        """Those of the files of a field, compared with their checksum once."""
        if name not in self._offsets:
            with self._reported(name):
                self._offsets[name] = self.found.fields[name].offsets(self.count)
        return self._offsets[name]

    def kinds(self) -> dict[str, pa.DataType]:
        further = {}
        for name, field in self.found.fields.items():
            if not field.is_blob:
                with self._reported(name):
                    further[name] = type_named(field.kind)
        return super().kinds() | further

    def column(self, name: str) -> pa.Array:
        if name not in self.found.fields:
            return super().column(name)
        with self._reported(name):
            return self.found.fields[name].column(self.count)

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, ManifestError) as error:
            what = error.got if isinstance(error, ManifestError) else error
            raise self.damaged(f"its field {name} cannot be read ({what})") from error

    def payload_bytes(self) -> int:
        more = [self._blob_offsets(name) for name, field in self.found.fields.items() if field.is_blob]
        return sum(int(offsets.item(self.count)) for offsets in (self.array("offsets"), *more))

    def about(self) -> dict[str, Any]:
        return {**super().about(), "split": self.found.split}


class _Rows(_Opened):
    """The vlen layout: a row for each sample, somewhere in the file."""

    layout = "vlen"

    def __init__(self, file: ByteFile, found: Found) -> None:
        super().__init__(file, found)
        if not found.record:
            self._check_finished()

    @property
    def _rows(self) -> np.ndarray:
        return self.array("images")

    def rows(self) -> int:
        return len(self._rows)

    def may_have(self, targets: int) -> bool:
        """Where we skipped samples while packing, the last rows are empty."""
        return targets == self.rows() or (bool(self.record) and targets < self.rows())

    def _check_finished(self) -> None:
        filled = np.flatnonzero(row_lengths(self._rows))
        empty = self.rows() - (int(filled[-1]) + 1 if len(filled) else 0)
        if empty:
            raise self.damaged(
                f"its last {empty:,} of {self.rows():,} rows are empty, so writing it was interrupted"
            )

    def size(self, index: int) -> int:
        """Bytes of one sample, without following its row."""
        return int(row_lengths(self._rows[index : index + 1])[0])

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        return self.file, *row_place(self.file, self._rows[index].tobytes(), self.found.base)

    def announce(self, indices: Sequence[int]) -> None:
        """Announce where the places of these samples are stored."""
        announce_rows(self.file, self._rows[np.asarray(indices, np.int64)], self.found.base)

    def payload_bytes(self) -> int:
        return int(row_lengths(self._rows).astype(np.int64).sum())


class HDF5Reader(FileReader[_Opened]):
    """Random access to an HDF5 file; see `smallfiles.formats.hdf5.open`."""

    format = "hdf5"

    def __init__(self, path: Path, split: str | None = None, access: Access = "auto") -> None:
        super().__init__(path, access)
        self._split = split

    def _open(self) -> _Opened:
        file = ByteFile(self.path, self._access)
        found = find(file, self._split)
        return (_Rows if found.start is None else _Opened)(file, found)

    def _prefetch_places(self, indices: Sequence[int]) -> None:
        opened = self._handle()
        if isinstance(opened, _Rows):
            opened.announce(indices)

    def size(self, index: int) -> int:
        opened = self._handle()
        return opened.size(self._checked(index)) if isinstance(opened, _Rows) else super().size(index)
