"""An open Arrow file: from the number of a sample to its bytes.

Where a batch's columns lie is found out when it is first needed and kept as three numbers a batch, so
a reader of a million samples stays small. The trap: keeping the batches themselves costs each worker
hundreds of megabytes, and a list of them is copied on write after fork. Notebook 03.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import GrowingStrings, as_integers, scalar
from smallfiles.errors import FormatError, SmallfilesError
from smallfiles.formats.arrow import columns
from smallfiles.formats.arrow.footer import Cuts, blocks, row_counts
from smallfiles.formats.arrow.writing import CUTS
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.reader import numbered_keys
from smallfiles.samples import UNLABELLED

_FILE_MAGIC = b"ARROW1"
_STREAM_START = b"\xff\xff\xff\xff"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_KEYS_AT_ONCE = 128
_SMALL_COLUMNS_BYTES = 64 << 10  # keys, labels, captions of some 64 rows


class Opened:
    """One process's view of a file."""

    def __init__(self, path: Path, access: Access) -> None:
        self.file = ByteFile(path, access)
        self._lock = threading.Lock()  # lives and dies with the process's handle
        self._last: tuple[int, pa.RecordBatch | None] = (-1, None)
        self._view = self.file.view
        buffer = pa.py_buffer(self._view)
        self._base = buffer.address
        try:
            self._load(buffer)
        except SmallfilesError:
            raise
        except Exception as error:  # pyarrow has a dozen for damaged files
            raise damaged(path, str(error).partition("\n")[0]) from error
        self.keys: pa.StringArray | None = None

    def _load(self, buffer: pa.Buffer) -> None:
        view, path = self._view, self.file.path
        self._blocks: np.ndarray | None = None
        if bytes(view[:6]) == _FILE_MAGIC:
            self._reader, self._batches = pa.ipc.open_file(buffer), []
            self.schema, self.count = self._reader.schema, self._reader.num_record_batches
            self._blocks = blocks(view, path)
        elif bytes(view[:4]) == _STREAM_START:
            if bytes(view[-8:]) != _STREAM_END:
                raise damaged(path, "it does not end where an Arrow stream ends")
            stream = pa.ipc.open_stream(buffer)
            self.schema, self._batches = stream.schema, [batch for batch in stream if batch.num_rows]
            self.count = len(self._batches)
        else:
            raise FormatError(
                f"{path} is not an Arrow file",
                expected="an IPC file (it begins with ARROW1) or stream",
                next_step="Check the path; Parquet and Feather v1 are other formats",
            )
        self.layout = "stream" if self._blocks is None else "file"
        self.columns = columns.find(self.schema, path)
        self._prepare()

    def _row_counts(self) -> np.ndarray:
        found = self._blocks
        if found is None:
            return np.array([batch.num_rows for batch in self._batches], np.int64)
        if len(found) != self.count:
            raise damaged(self.file.path, f"its footer names {len(found)} and {self.count} record batches")
        return row_counts(found["body"], self._cuts, self._ask)

    def _ask(self, some: np.ndarray) -> np.ndarray:
        """Rows of some batches, from their headers; each header is a small read."""
        assert self._blocks is not None
        rows = np.array([self._reader.get_batch(number).num_rows for number in some.tolist()], np.int64)
        if (rows > self._blocks["body"][some]).any():
            raise damaged(self.file.path, "a record batch has more rows than bytes")
        return rows

    def _prepare(self) -> None:
        self._cuts = Cuts.loads((self.schema.metadata or {}).get(CUTS))
        counts = self._row_counts()
        self._starts = as_integers(np.concatenate([[0], np.cumsum(counts)]))
        self.rows = int(self._starts[-1])
        self._data, self._data_bytes, self._borders, self._labels = (
            as_integers(np.zeros(self.count)) for _ in range(4)
        )
        kind = self.schema.field(self.columns.data).type
        self._struct = kind.get_field_index("bytes") if pa.types.is_struct(kind) else None
        inner = kind if self._struct is None else kind.field(self._struct).type
        self._pair = struct.Struct("<qq" if pa.types.is_large_binary(inner) else "<ii")
        label = self.columns.label
        letter = "q" if label is None else columns.LETTERS[self.schema.field(label).type]
        self._label = struct.Struct("<" + letter)
        if self.count:
            self.batch(self.count - 1)  # a wild row count in the last header would make a wild length

    def _raw(self, number: int) -> pa.RecordBatch:
        if self._batches:
            return self._batches[number]
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
        try:
            batch = self._raw(number)
            batch.validate(full=True)
        except Exception as error:
            raise damaged(
                self.file.path, f"record batch {number}: {str(error).partition(chr(10))[0]}"
            ) from error
        if batch.num_rows != self._starts[number + 1] - self._starts[number]:
            raise self._uneven(number, batch.num_rows)
        self._last = (number, batch)
        return batch

    def _uneven(self, number: int, rows: int) -> FormatError:
        if self._cuts is not None:
            return damaged(self.file.path, f"record batch {number} has {rows} rows")
        return FormatError(  # only some headers were looked at: a million of them lie all over the file
            f"{self.file.path} has {rows} rows in record batch {number}, and one in the others",
            expected="one row in each of so many record batches",
            next_step="Write it again with 64 rows a batch, or pack the images with this package",
        )

    def where(self, index: int) -> tuple[int, int]:
        """Batch and row of a sample."""
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def prefetch_batches(self, indices: Sequence[int]) -> None:
        """Announce the headers and small columns of the batches of these samples that were not met yet."""
        if self._blocks is None:
            return
        for number in sorted({self.where(index)[0] for index in indices}):
            if not self._borders[number]:
                start, header, _, body = self._blocks[number].item()
                self.file.prefetch(start, start + header + min(body, _SMALL_COLUMNS_BYTES))

    def place(self, index: int) -> tuple[int, int]:
        """Start and stop of a sample's bytes in the file."""
        number, row = self.where(index)
        if not self._borders[number]:
            self._locate(number)
        start, stop = self._pair.unpack_from(self._view, self._borders[number] + row * self._pair.size // 2)
        if not 0 <= start <= stop <= self._data_bytes[number]:
            raise damaged(self.file.path, f"the borders of sample {index} are {start} and {stop}")
        first = int(self._data[number])
        return first + start, first + stop

    def _locate(self, number: int) -> None:
        """Note where the columns of a batch lie in the file."""
        batch = self.batch(number)
        data = batch.column(self.columns.data)
        if self._struct is not None:
            data = data.field(self._struct)
        _, borders, values = data.buffers()[-3:]
        self._data[number] = self._offset(values) if values is not None and values.size else 0
        self._data_bytes[number] = values.size if values is not None else 0
        if self.columns.label is not None:
            labels = batch.column(self.columns.label)
            self._labels[number] = -1 if labels.null_count else self._offset(labels.buffers()[1])
        # Last, since another thread takes it as the sign that all is known.
        self._borders[number] = self._offset(borders) + data.offset * self._pair.size // 2

    def _offset(self, buffer: pa.Buffer) -> int:
        offset: int = buffer.address - self._base
        if not 0 <= offset <= offset + buffer.size <= self.file.size:
            raise FormatError(
                f"{self.file.path} holds compressed record batches",
                expected="uncompressed ones, so that one sample can be read without its whole batch",
                next_step="Write it again without compression; JPEG data does not shrink",
            )
        return offset

    def label(self, index: int) -> int:
        """The label of a sample; -1 where there is none."""
        if self.columns.label is None:
            return UNLABELLED
        number, row = self.where(index)
        if not self._borders[number]:
            self._locate(number)
        if self._labels[number] < 0:
            value = self.value(self.columns.label, index)
            return UNLABELLED if value is None else int(value)
        return int(self._label.unpack_from(self._view, self._labels[number] + row * self._label.size)[0])

    def value(self, column: int, index: int) -> Any:
        """One small value as a Python object."""
        number, row = self.where(index)
        return self.batch(number).column(column)[row].as_py()

    def values(self, column: int, start: int, stop: int) -> Iterator[list[Any]]:
        """Small values of a run of samples, a list for each batch that they lie in."""
        while start < stop:
            number, row = self.where(start)
            count = min(stop, self._starts[number + 1]) - start
            yield self.batch(number).column(column).slice(row, count).to_pylist()
            start += count

    def payload_bytes(self) -> int:
        """Sum of the encoded bytes; visits every batch."""
        for number in range(self.count):
            if not self._borders[number]:
                self._locate(number)
        return int(np.asarray(self._data_bytes).sum())

    def all_keys(self) -> pa.StringArray:
        """The key column in one piece; row numbers where a file has none."""
        if self.columns.key is None:
            return numbered_keys(self.rows)
        keys = GrowingStrings()
        for first in range(0, self.count, _KEYS_AT_ONCE):
            last = min(first + _KEYS_AT_ONCE, self.count)
            some = pa.concat_arrays([self.batch(n).column(self.columns.key) for n in range(first, last)])
            keys.extend(pc.fill_null(some, scalar("")) if some.null_count else some)
            self.file.forget()
        return keys.finish()
