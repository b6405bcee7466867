"""Read samples of an Arrow file at random.

The trap: `pa.OSFile` and `get_batch` read a whole batch to return one row, 30 times slower than a mapped
file at 1,000 rows per batch. This reader fetches the row alone either way. Notebook 03.
Short, since the opened file is in `batches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import from_numpy, one_chunk
from smallfiles.formats.arrow.batches import Opened
from smallfiles.formats.placed import FileReader


class ArrowReader(FileReader[Opened]):
    """Random access to an Arrow file; see `smallfiles.formats.arrow.open`."""

    format = "arrow"

    def _open(self) -> Opened:
        return Opened(self.path, self._access)

    def _column(self, name: str) -> pa.ChunkedArray:
        return self._handle().column(name)  # not kept: a few rows are read without it

    def _taken(self, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        opened = self._handle()
        if opened.file.mapped:
            return opened.taken(names, rows)
        for name in names:  # each column once, as in other formats: a read for each value would cost more
            if name not in self._columns:
                self._columns[name] = one_chunk(opened.column(name))
        return {name: self._columns[name].take(from_numpy(rows)) for name in names}

    def _prefetch_places(self, indices: Sequence[int]) -> None:
        self._handle().prefetch_batches(indices)
