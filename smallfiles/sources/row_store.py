"""The store of files that are rows of Parquet and Arrow tables; see `inline`.

The trap: Parquet decodes a group of rows at a time, some hundred pictures, and one picture costs as much. So
decoded groups are kept up to a limit: reading in order decodes each once. Arrow files are mapped instead.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column, joined, one_chunk, scalar, suffixes_of
from smallfiles.digests import name_hashes
from smallfiles.folders import FILE_SUFFIXES
from smallfiles.manifest.columns import SUSPICIOUS_PATH
from smallfiles.sources.packed import BLOB_MARK
from smallfiles.sources.record import NamedStore
from smallfiles.sources.table_files import Group, groups_of, read_group, unreadable
from smallfiles.storage import answered

KEPT_BYTES = 128 << 20
"""Decoded groups that a process keeps, beside the one in use."""


def path_keys(paths: pa.Array) -> pa.Array | None:
    """Paths beside the bytes as keys; None unless all are there, usable, with a suffix, and no two equal."""
    if paths.null_count or pc.any(pc.match_substring_regex(paths, SUSPICIOUS_PATH)).as_py():
        return None
    hashes = np.sort(name_hashes(paths))
    is_known = pc.all(pc.is_in(suffixes_of(paths), column(FILE_SUFFIXES, pa.string()))).as_py()
    return paths if is_known and not (hashes[1:] == hashes[:-1]).any() else None


def numbered_keys(count: int, suffixes: pa.Array) -> pa.Array:
    """The number of each row as its key; null without a suffix."""
    return joined(column([f"{row:08d}" for row in range(count)], pa.string()), suffixes)


def further_paths(keys: pa.Array, number: int, suffixes: pa.Array) -> pa.Array:
    """What `RowStore` finds the files of its column `number` by; null without a file."""
    return joined(keys, scalar(f"{BLOB_MARK}{number}"), suffixes)


def number_of(path: str) -> int:
    """The number of the column in such a path."""
    return int(path.rpartition(BLOB_MARK)[2].partition(".")[0])


class RowStore(NamedStore):
    """Reads files that are in the rows of tables.

    Args:
        root: The file, or the folder of them.
        files: In order.
        columns: Those with files in them.
        first: The one of the first files, whose paths are keys.
    """

    kind, made_from = "table", "these files"

    def __init__(self, root: Path, files: Sequence[Path], columns: Sequence[str], first: str) -> None:
        self._files, self._columns, self._first = tuple(files), tuple(columns), first
        super().__init__(root)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._groups: list[Group] = []
        self._kept: OrderedDict[tuple[int, str], pa.ChunkedArray] = OrderedDict()

    def _bytes(self, path: str) -> memoryview:
        key, mark, _ = path.partition(BLOB_MARK)
        name = self._columns[number_of(path)] if mark else self._first
        with self._lock:
            row = self._number(key)
            at = bisect_right(self._ends, row)
            found = self._group(at, name)[row - (self._ends[at - 1] if at else 0)]
        if not found.is_valid:
            raise self._missing(path)
        return memoryview(found.as_buffer()).cast("B")

    def _number(self, key: str) -> int:
        """The row of a key; looks at the files at the first call."""
        if not self._groups:
            self._groups = [group for file in self._files for group in groups_of(file)]
            self._ends = list(accumulate(group.rows for group in self._groups))
            paths = [read_group(group, self._first, "path") for group in self._groups]
            self._keys = path_keys(one_chunk(pa.chunked_array([c for each in paths for c in each.chunks])))
        if self._keys is not None:
            return self._row(key)
        digits = key.partition(".")[0]
        if not digits.isdecimal() or int(digits) >= self._ends[-1]:
            raise self._missing(key)
        return int(digits)

    def _names(self) -> pa.StringArray:
        return self._keys

    def _group(self, at: int, name: str) -> pa.ChunkedArray:
        """The bytes of a group of rows; decoded once while it is kept."""
        if (found := self._kept.pop((at, name), None)) is None:
            try:
                found = answered(self._groups[at].file, read_group, self._groups[at], name, "bytes")
            except (OSError, ValueError, pa.ArrowException) as error:
                raise unreadable(self._groups[at].file, error) from error
            held = found.nbytes
            while self._kept and held + sum(each.nbytes for each in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept[at, name] = found
        return found

    def _state_of_file(self) -> tuple[int, int] | None:
        try:
            states = [answered(file, file.stat) for file in self._files]
        except OSError:
            return None  # reading says why
        return sum(each.st_size for each in states), max(each.st_mtime_ns for each in states)

    def __getstate__(self) -> dict[str, Any]:
        names = ("_lock", "_groups", "_kept", "_ends", "_keys")
        return {name: value for name, value in super().__getstate__().items() if name not in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
