"""An open Arrow file: from the number of a sample to its bytes.

Where the columns of a batch are is looked up when they are first needed, and kept as three numbers per
batch, so a reader of a million samples stays small. The trap: keeping the batches themselves costs each
worker hundreds of megabytes, and a list of them is copied on write after a fork. Notebook 03.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import GrowingStrings, as_integers, column, from_numpy, integers, scalar
from smallfiles.errors import FormatError
from smallfiles.faults import summary_of
from smallfiles.fields import TARGETS, stored_type, value_column
from smallfiles.formats import provenance
from smallfiles.formats.arrow import columns
from smallfiles.formats.arrow.footer import Cuts, blocks, row_counts
from smallfiles.formats.arrow.values import ValueColumn, can_gather
from smallfiles.formats.arrow.writing import CUTS, FEATURES, PROVENANCE
from smallfiles.formats.bytefile import Access, ByteFile, damage_reported, damaged
from smallfiles.formats.placed import OpenedFile, numbered_keys
from smallfiles.samples import OWN_TYPES, UNLABELLED

_FILE_MAGIC = b"ARROW1"
_STREAM_START = b"\xff\xff\xff\xff"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_BATCHES_AT_ONCE = 128
_SMALL_COLUMNS_BYTES = 1 << 10  # key, label, captions of a row
_SMALL_MOST_BYTES = 64 << 10
_ENDS_BYTES = (4 << 10, 64 << 10)  # the magic at the front; a footer of 2,700 batches at the end


class BinaryColumn:
    """Where the bytes of a column are: three numbers per batch, looked up when they are first needed.

    Args:
        column: Number of the column.
        kind: Its type.
        batches: How many there are.
    """

    def __init__(self, column: int, kind: pa.DataType, batches: int) -> None:
        self._column = column
        self._data, self._data_bytes, self.offsets = (as_integers(np.zeros(batches)) for _ in range(3))
        self._struct = kind.get_field_index("bytes") if pa.types.is_struct(kind) else None
        inner = kind if self._struct is None else kind.field(self._struct).type
        self._pair = struct.Struct("<qq" if pa.types.is_large_binary(inner) else "<ii")
        self._width = self._pair.size // 2

    def place(self, opened: Opened, index: int) -> tuple[ByteFile, int, int]:
        """File, first byte, and one after the last byte, of a sample."""
        number, row = opened.where(index)
        offsets = self.offsets[number] or self._locate(opened, number)
        start, stop = self._pair.unpack_from(opened.view, offsets + row * self._width)
        if not 0 <= start <= stop <= self._data_bytes[number]:
            raise damaged(opened.path, f"the offsets of sample {index} are {start} and {stop}")
        first: int = self._data[number]
        return opened.file, first + start, first + stop

    def _locate(self, opened: Opened, number: int) -> int:
        data = opened.batch(number).column(self._column)
        if self._struct is not None:
            data = data.field(self._struct)
        _, offsets, values = data.buffers()[-3:]
        self._data[number] = opened.offset(values) if values is not None and values.size else 0
        self._data_bytes[number] = values.size if values is not None else 0
        # Last: other threads take it as the sign that the rest is known.
        found: int = opened.offset(offsets) + data.offset * self._width
        self.offsets[number] = found
        return found

    def total_bytes(self, opened: Opened) -> int:
        """Sum of the encoded bytes; visits every batch."""
        for number in range(len(self.offsets)):
            if not self.offsets[number]:
                self._locate(opened, number)
        return int(np.asarray(self._data_bytes).sum())


class Opened(OpenedFile):
    """One process's view of an Arrow file."""

    def __init__(self, path: Path, access: Access) -> None:
        super().__init__(ByteFile(path, access))
        self._lock = threading.Lock()  # of this process alone, like the handle
        self._last: tuple[int, pa.RecordBatch | None] = (-1, None)
        self.view = self.file.view
        buffer = pa.py_buffer(self.view)
        self._base = buffer.address
        with damage_reported(path):
            self._load(buffer)

    def _load(self, buffer: pa.Buffer) -> None:
        view, path, size = self.view, self.path, self.file.size
        self._blocks: np.ndarray | None = None
        for start, stop in ((0, _ENDS_BYTES[0]), (size - _ENDS_BYTES[1], size)):
            self.file.prefetch(max(start, 0), min(stop, size))
        if bytes(view[:6]) == _FILE_MAGIC:
            self._reader, self._batches = pa.ipc.open_file(buffer), []
            self.schema, self._number = self._reader.schema, self._reader.num_record_batches
            self._blocks = blocks(view, path)
        elif bytes(view[:4]) == _STREAM_START:
            if bytes(view[-8:]) != _STREAM_END:
                raise damaged(path, "it does not end where an Arrow stream ends")
            stream = pa.ipc.open_stream(buffer)
            self.schema, self._batches = stream.schema, [batch for batch in stream if batch.num_rows]
            self._number = len(self._batches)
        else:
            raise FormatError(
                f"{path} is not an Arrow file",
                expected="an IPC file (it begins with ARROW1) or stream",
                next_step="Check the path; Parquet and Feather v1 are other formats",
            )
        self._metadata = self.schema.metadata or {}
        self.record = provenance.loads(self._metadata.get(PROVENANCE))
        self.columns = columns.find(self.schema, path)
        self._prepare()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the provenance, or from the features of Hugging Face `datasets`."""
        return super().classes or _hugging_face_classes(self._metadata.get(FEATURES))

    def _row_counts(self) -> np.ndarray:
        found = self._blocks
        if found is None:
            return np.array([batch.num_rows for batch in self._batches], np.int64)
        if len(found) != self._number:
            raise damaged(self.path, f"its footer names {len(found)} and {self._number} record batches")
        return row_counts(found["body"], self._cuts, self._rows_in)

    def _rows_in(self, some: np.ndarray) -> np.ndarray:
        """Rows of some batches, from their headers; each header is a small read."""
        assert self._blocks is not None
        for number in some.tolist():
            self._announce(number, rows=0)
        rows = np.array([self._reader.get_batch(number).num_rows for number in some.tolist()], np.int64)
        if (rows > self._blocks["body"][some]).any():
            raise damaged(self.path, "a record batch has more rows than bytes")
        return rows

    def _prepare(self) -> None:
        self._cuts = Cuts.loads(self._metadata.get(CUTS))
        counts = self._row_counts()
        self._borders = np.concatenate([[0], np.cumsum(counts)])
        self._starts = as_integers(self._borders)
        self.count = int(self._starts[-1])
        self._first, *further = (
            BinaryColumn(column, self.schema.field(column).type, self._number)
            for column in (self.columns.data, *self.columns.blobs.values())
        )
        self._further = dict(zip(self.columns.blobs, further, strict=True))
        self._kinds = {
            name: OWN_TYPES.get(name) or stored_type(self.schema.field(number).type)
            for name, number in self.columns.values.items()
        }
        if not self._kinds.keys() & {*TARGETS}:
            self._kinds = {"label": pa.int64(), **self._kinds}
        self._gathered = {
            name: ValueColumn(number, self.schema.field(number).type, self._number)
            for name, number in self.columns.values.items()
            if can_gather(self.schema.field(number).type)
        }
        if self._number:
            self.batch(self._number - 1)  # a wrong row count in the last header would give a wrong length

    def _raw(self, number: int) -> pa.RecordBatch:
        if self._batches:
            return self._batches[number]
        self._announce(number, self._starts[number + 1] - self._starts[number])
        with self._lock:
            return self._reader.get_batch(number)

    def batch(self, number: int) -> pa.RecordBatch:
        """A record batch, checked; its bytes stay on disk.

        Raises:
            DamagedFileError: It is not as the file says.
        """
        kept, batch = self._last  # one tuple, replaced as a whole: threads never see half of it
        if kept == number and batch is not None:
            return batch
        with damage_reported(self.path, f"record batch {number}:"):
            batch = self._raw(number)
            batch.validate(full=True)
        if batch.num_rows != self._starts[number + 1] - self._starts[number]:
            raise self._uneven(number, batch.num_rows)
        self._last = (number, batch)
        return batch

    def _uneven(self, number: int, rows: int) -> FormatError:
        if self._cuts is not None:
            return damaged(self.path, f"record batch {number} has {rows} rows")
        return FormatError(  # only some headers were read: a million of them are spread over the file
            f"{self.path} has {rows} rows in record batch {number}, and one in the others",
            expected="one row in each of so many record batches",
            next_step="Write it again with 64 rows per batch, or pack the images with this package",
        )

    def where(self, index: int) -> tuple[int, int]:
        """Batch and row of a sample."""
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def prefetch_batches(self, indices: Sequence[int]) -> None:
        """Announce the headers and small columns of these samples' batches, unless they were read before."""
        if self._blocks is None:
            return
        for number in sorted({self.where(index)[0] for index in indices}):
            if not self._first.offsets[number]:
                self._announce(number, self._starts[number + 1] - self._starts[number])

    def _announce(self, number: int, rows: int) -> None:
        """Announce the header of a batch, and what its rows have beside the images.

        A page that is touched unannounced makes Linux fetch as much around it as its read-ahead allows:
        0.1 MB, or 8 MB on some systems, for a header of some hundred bytes.
        """
        if self._blocks is None:
            return
        start, header, _, body = self._blocks[number].item()
        first, last = start + header, start + header + body
        small = min(body, rows * _SMALL_COLUMNS_BYTES, _SMALL_MOST_BYTES)
        self.file.prefetch(start, first + small)
        if self.columns.data < len(self.schema) - 1:
            self.file.prefetch(last - small, last)

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        """File, first byte, and one after the last byte of one sample."""
        return self._first.place(self, index)

    def blob_place(self, name: str, index: int) -> tuple[ByteFile, int, int]:
        """The same of a further field."""
        return self._further[name].place(self, index)

    def offset(self, buffer: pa.Buffer) -> int:
        """Where a buffer of a batch is in the file."""
        offset: int = buffer.address - self._base
        if not 0 <= offset <= offset + buffer.size <= self.file.size:
            raise FormatError(
                f"{self.path} holds compressed record batches",
                expected="uncompressed ones, so that one sample can be read without its whole batch",
                next_step="Write it again without compression; JPEG data does not shrink",
            )
        return offset

    def key(self, index: int) -> str:
        if self.columns.key is None:
            return str(index)
        number, row = self.where(index)
        return self.batch(number).column(self.columns.key)[row].as_py() or ""

    def kinds(self) -> dict[str, pa.DataType]:
        return self._kinds

    def column(self, name: str) -> pa.ChunkedArray:
        """The values of all samples, copied out of all batches."""
        if name not in self.columns.values:
            return pa.chunked_array([from_numpy(np.full(self.count, UNLABELLED, np.int64))])
        number, parts = self.columns.values[name], []
        for first in range(0, self._number, _BATCHES_AT_ONCE):
            last = min(first + _BATCHES_AT_ONCE, self._number)
            some = pa.concat_arrays([self.batch(n).column(number) for n in range(first, last)])
            parts.append(self._as_value(name, some))
            self.file.forget()
        return pa.chunked_array(parts, self._kinds[name])

    def taken(self, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """The values of some samples, read from where they are."""
        numbers = np.searchsorted(self._borders, rows, "right") - 1
        own = rows - self._borders[numbers]
        return {
            name: self._as_value(name, self._gathered[name].take(self, numbers, own))
            if name in self._gathered
            else self.column(name).take(from_numpy(rows))
            for name in names
        }

    def _as_value(self, name: str, found: pa.Array) -> pa.Array:
        """A column in the type in which values are held; what is null in those of others gets a meaning."""
        kind = self._kinds[name]
        if name == "label" and (found.null_count or found.type != kind):
            with summary_of(self.path):  # those of others may be beyond 64 bits
                whole = found.to_pylist() if found.type == pa.uint64() else found
                return pc.fill_null(integers(whole, name, "row {}".format, nullable=True), scalar(UNLABELLED))
        if name == "captions" and (found.null_count or found.type != kind):
            texts = ([each] if isinstance(each, str) else each or [] for each in found.to_pylist())
            return column([*texts], OWN_TYPES["captions"])
        return found if found.type == kind else value_column(name, found)

    def payload_bytes(self) -> int:
        """Sum of the encoded bytes; visits every batch."""
        return sum(each.total_bytes(self) for each in (self._first, *self._further.values()))

    def further(self) -> dict[str, str]:
        """Name and suffix of each further field of files."""
        suffixes = provenance.blob_suffixes(self.record)
        return {name: suffixes.get(name, "") for name in self.columns.blobs}

    def all_keys(self) -> pa.StringArray:
        """The key column in one piece; row numbers where a file has none."""
        if self.columns.key is None:
            return numbered_keys(self.count)
        keys = GrowingStrings()
        for first in range(0, self._number, _BATCHES_AT_ONCE):
            last = min(first + _BATCHES_AT_ONCE, self._number)
            some = pa.concat_arrays([self.batch(n).column(self.columns.key) for n in range(first, last)])
            keys.extend(pc.fill_null(some, scalar("")) if some.null_count else some)
            self.file.forget()
        return keys.finish()

    def about(self) -> dict[str, Any]:
        form = "foreign stream" if self._blocks is None else "foreign file"
        return {
            "layout": self.record.get("options", {}).get("layout", form),
            "batches": self._number,
            "columns": {field.name: str(field.type) for field in self.schema},
        }


def _hugging_face_classes(text: bytes | None) -> tuple[str, ...]:
    """Class names of a file of Hugging Face `datasets`."""
    features = provenance.loads(text).get("info", {})
    features = features.get("features", {}) if isinstance(features, dict) else {}
    for feature in features.values() if isinstance(features, dict) else ():
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            return tuple(str(name) for name in feature["names"])
    return ()
