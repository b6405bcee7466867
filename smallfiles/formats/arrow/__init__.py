"""Arrow IPC: one file that pyarrow, DuckDB and Hugging Face `datasets` read as a table.

    key: string · label: int64 or captions: list<string> · meta: string (JSON) · data: binary

Between the record batches and the footer is a table of all samples (`smallfiles.formats.embedded`), which
says where the bytes of each are. Other programs do not see it; a file without it is looked up batch by batch.

Rows are stored in record batches. Each batch costs 250 bytes of header; a reader that does not map the
file fetches a whole batch to get one row. So use 1 to 4 rows per batch for unknown readers, and any
number for ours or one that maps the file.
`layout="juelich"` writes what the Jülich course's loader reads: `image_data: binary, label: uint16`,
one row per batch (followed by our `key` and `meta`, which it ignores). Hugging Face reads both with
`load_dataset("arrow", data_files="x.arrow")`, ours with class names; `.cast_column("data", Image())` gives
pictures, since only a struct of bytes and path can say that it holds some. Its `Dataset.from_file` needs an
IPC stream.

In a file without the table, the columns of a batch are looked up when they are first needed, and their places
are kept as three numbers per batch, so a reader of a million samples stays small.

The traps: an Arrow `binary` column holds at most 2 GiB per batch. So the writer also cuts batches by
bytes, and uses `large_binary` if a single sample is larger. And keeping the batches of an open file costs
each worker hundreds of megabytes; a list of them is copied on write after a fork. Notebook 03 teaches it.
"""

from __future__ import annotations

import json
import mmap
import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import GrowingStrings, as_integers, column, from_numpy, integers, one_chunk, scalar
from smallfiles.errors import FormatError, summary_of
from smallfiles.fields import TARGETS, stored_type, value_column
from smallfiles.formats import SAVED, embedded
from smallfiles.formats.arrow.foreign import Cuts, blocks, find_columns, row_counts, stream_blocks
from smallfiles.formats.arrow.writing import FACTS, FEATURES, PROVENANCE, write
from smallfiles.formats.arrow.writing import ArrowOptions as Options
from smallfiles.formats.bytefile import Access, ByteFile, RawFile, damage_reported, damaged
from smallfiles.formats.embedded import EmbeddedTable
from smallfiles.formats.reader import TableReader
from smallfiles.formats.table import (
    Column,
    Extents,
    Place,
    SampleTable,
    load_record,
    numbered_keys,
    recorded_blobs,
)
from smallfiles.samples import OWN_TYPES, UNLABELLED

__all__ = ["Options", "locate", "open", "write"]


def open(path: Path, *, access: Access = "auto") -> TableReader:
    """Open an Arrow file of this package or of the Jülich course, or any other that has a binary column.

    Args:
        path: The file, which is an IPC file or an IPC stream.
        access: `mmap`, `pread`, or `auto` to choose by file system.

    Returns:
        The reader. It opens the file at first use.
    """
    return TableReader(path, partial(locate, access=access))


_FILE_MAGIC = b"ARROW1"
_END = struct.Struct("<i6s")  # the length of the footer, and the magic
_CUTS = b"smallfiles.cuts"
"""Metadata key of files that were packed before they had a table.

It holds the rule by which they were cut.
"""

_STREAM_START = b"\xff\xff\xff\xff"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_BATCHES_AT_ONCE = 128
_SMALL_COLUMNS_BYTES = 1 << 10  # key, label, captions of a row
_SMALL_MOST_BYTES = 64 << 10
_NEAR_BYTES = 64 << 10
_ENDS_BYTES = (4 << 10, 64 << 10)  # the magic at the front; a footer of 2,700 batches at the end


def locate(path: Path, *, access: Access = "auto") -> SampleTable:
    """Open an Arrow file, or a folder of Hugging Face `datasets`, and find the samples in it.

    Args:
        path: An IPC file, an IPC stream, or the folder that `save_to_disk` wrote.
        access: How samples are fetched.

    Raises:
        FormatError: The file is damaged, or is not an Arrow file.
    """
    if path.is_dir():
        with damage_reported(path):
            files = [each["filename"] for each in json.loads((path / SAVED).read_bytes())["_data_files"]]
            return Joined(path, [LookedUp(Batches(ByteFile(path / name, access))) for name in files])
    file = ByteFile(path, access)
    if (place := _place_of_table(file)) is None:
        return LookedUp(Batches(file))
    columns = embedded.load(file, place)
    return Located(path, columns, columns.extents(file, place.start), file.size)


def _place_of_table(file: ByteFile) -> embedded.TablePlace | None:
    """Return where the table of samples is, which lies before the footer of our files.

    Return None if the file has no such table.
    """
    file.prefetch(max(0, file.size - _ENDS_BYTES[1]), file.size)
    if file.size < _END.size:
        return None
    length, magic = _END.unpack(file.read(file.size - _END.size, file.size))
    is_file = magic == _FILE_MAGIC
    return embedded.TablePlace.find(file, file.size - _END.size - length) if is_file else None


class Located(EmbeddedTable):
    """The samples of an Arrow file that this package wrote, found through the file's table of samples."""

    format = "arrow"

    def about(self) -> dict[str, Any]:
        facts = load_record(self._columns.metadata.get(FACTS))
        layout = self.record.get("options", {}).get("layout")
        return {"layout": layout, "batches": facts.get("batches"), "columns": facts.get("columns")}


class BinaryColumn(Extents):
    """Where the bytes in a binary column are.

    A record batch is inspected when one of its samples is first needed.

    Args:
        batches: The record batches of the file.
        column: Number of the column.
        suffix: Suffix of the files.
    """

    def __init__(self, batches: Batches, column: int, suffix: str = "") -> None:
        super().__init__(suffix)
        self._batches, self._column, kind = batches, column, batches.schema.field(column).type
        self._struct = kind.get_field_index("bytes") if pa.types.is_struct(kind) else None
        inner = kind if self._struct is None else kind.field(self._struct).type
        self._kind = np.dtype("<i8" if pa.types.is_large_binary(inner) else "<i4")
        # Pages that nothing was written to take no room. A start of 0 is not known yet.
        self._starts, self._sizes = (as_integers(np.zeros(batches.count, np.int64)) for _ in range(2))

    def place(self, row: int) -> Place:
        start = self._starts[row] or self._locate(row)
        return self._batches.file, start, start + self._sizes[row]

    def announce(self, rows: Sequence[int]) -> None:
        """Announce the headers and small columns of these samples' batches, unless they were already read."""
        self._batches.announce([row for row in rows if not self._starts[row]])

    def _locate(self, row: int) -> int:
        """Look up all samples of the batch that contains sample `row`.

        Return the first byte of that sample.
        """
        batches = self._batches
        number, _ = batches.where(row)
        batch, begins_at = batches.located(number, self._column)
        data = batch.column(self._column)
        if self._struct is not None:
            data = data.field(self._struct)
        _, offsets, values = data.buffers()[-3:]
        data_bytes = values.size if values is not None else 0
        first = batches.offset(values, begins_at) if data_bytes else len(_FILE_MAGIC)
        batches.offset(offsets, begins_at)
        kind = self._kind
        borders = np.frombuffer(offsets, kind, len(data) + 1, data.offset * kind.itemsize).astype(np.int64)
        wrong = (borders[:-1] < 0) | (borders[:-1] > borders[1:]) | (borders[1:] > data_bytes)
        for own in np.flatnonzero(wrong)[:1].tolist():
            what = f"the offsets of sample {batches.starts[number] + own} are {borders[own]} and"
            raise damaged(batches.path, f"{what} {borders[own + 1]}")
        rows = slice(batches.starts[number], batches.starts[number + 1])
        np.asarray(self._sizes)[rows] = np.diff(borders)
        np.asarray(self._starts)[rows] = first + borders[:-1]  # last: other threads take it as known
        return self._starts[row]

    def total_bytes(self) -> int:
        """Return the total size of the encoded samples in bytes. This inspects every batch."""
        for row in np.flatnonzero(np.asarray(self._starts) == 0).tolist():
            self._starts[row] or self._locate(row)
        return int(np.asarray(self._sizes).sum())


class Batches:
    """The record batches of an Arrow file."""

    def __init__(self, file: ByteFile) -> None:
        self.file, self.path = file, file.path
        self._lock = threading.Lock()  # of this process alone, like the table
        self._last: tuple[int, pa.RecordBatch | None] = (-1, None)
        self._base = pa.py_buffer(self.file.view).address if self.file.mapped else 0
        with damage_reported(file.path):
            self._load()

    def _load(self) -> None:
        path, size = self.path, self.file.size
        self._blocks: np.ndarray | None = None
        self._batches: list[pa.RecordBatch] = []
        source = pa.py_buffer(self.file.view) if self.file.mapped else pa.PythonFile(RawFile(self.file), "r")
        for start, stop in ((0, _ENDS_BYTES[0]), (size - _ENDS_BYTES[1], size)):
            self.file.prefetch(max(start, 0), min(stop, size))
        begin = self.file.read(0, min(6, size))
        self.is_stream = bytes(begin) != _FILE_MAGIC
        if not self.is_stream:
            self._reader = pa.ipc.open_file(source)
            self.schema, self.number = self._reader.schema, self._reader.num_record_batches
            self._blocks = blocks(self.file)
        elif bytes(begin[:4]) == _STREAM_START:
            if bytes(self.file.read(max(0, size - 8), size)) != _STREAM_END:
                raise damaged(path, "it does not end where an Arrow stream ends")
            stream = pa.ipc.open_stream(source)
            self.schema = stream.schema
            if self.file.mapped:
                self._batches = [batch for batch in stream if batch.num_rows]
            else:
                self._blocks = stream_blocks(self.file)
            self.number = len(self._batches if self._blocks is None else self._blocks)
        else:
            raise FormatError(
                f"{path} is not an Arrow file",
                expected="an IPC file (it begins with ARROW1) or stream",
                next_step="Check the path; Parquet and Feather v1 are other formats",
            )
        self.metadata = self.schema.metadata or {}
        self.record = load_record(self.metadata.get(PROVENANCE))
        self.columns = find_columns(self.schema, path)
        self._has_dictionaries = any(pa.types.is_dictionary(each.type) for each in self.schema)
        if self.is_stream and self._has_dictionaries and not self.file.mapped:
            raise _unmapped_stream(path)
        self._prepare()

    def _row_counts(self) -> np.ndarray:
        found = self._blocks
        if found is None:
            return np.array([batch.num_rows for batch in self._batches], np.int64)
        if len(found) != self.number:
            raise damaged(self.path, f"its footer names {len(found)} and {self.number} record batches")
        return row_counts(found["body"], self._cuts, self._rows_in)

    def _rows_in(self, some: np.ndarray) -> np.ndarray:
        """Return the number of rows of some batches.

        It is read from their headers, one small read per header.
        """
        assert self._blocks is not None
        for number in some.tolist():
            self._announce(number, rows=0)
        rows = np.array([self._raw(number, ()).num_rows for number in some.tolist()], np.int64)
        if (rows > self._blocks["body"][some]).any():
            raise damaged(self.path, "a record batch has more rows than bytes")
        return rows

    def _prepare(self) -> None:
        self._cuts = Cuts.loads(self.metadata.get(_CUTS))
        counts = self._row_counts()
        self.starts = as_integers(np.concatenate([[0], np.cumsum(counts)]))
        self.count = int(self.starts[-1])
        if self.number:
            self.batch(self.number - 1)  # a wrong row count in the last header would give a wrong length

    def _raw(self, number: int, columns: Sequence[int]) -> pa.RecordBatch:
        if self._batches:
            return self._batches[number]
        if not self.file.mapped:
            return self._copied(number, columns)[0]
        with self._lock:
            return self._reader.get_batch(number)

    def _copied(self, number: int, columns: Sequence[int]) -> tuple[pa.RecordBatch, int]:
        """Read a record batch into separate memory, but only its header and some of its columns.

        For columns of files, only the offsets are read, not the bytes. The bytes would lie in pages of the
        memory that nothing touches, so they occupy no memory.

        Returns:
            The batch, and the address at which the file would begin.
        """
        assert self._blocks is not None
        start, header, _, body = self._blocks[number].item()
        if not (start >= 0 and header > 0 and body >= 0 and start + header + body <= self.file.size):
            raise damaged(self.path, f"record batch {number} is not inside the file")
        memory = embedded.reserved(header + body)
        self._copy_into(memory, start, [(0, header)])
        buffer = pa.py_buffer(memory)
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(buffer), self._without_dictionaries())
        except (OSError, pa.ArrowException) as error:
            if "decompress" in str(error).lower():  # of bytes that were not copied
                raise self._compressed() from error
            raise
        base = buffer.address
        files = {self.columns.data, *self.columns.blobs.values()}
        wanted = [
            (each.address - base, each.address - base + each.size)
            for column in columns
            for each in batch.column(column).buffers()[: -1 if column in files else None]
            if each is not None and base <= each.address
        ]
        self._copy_into(memory, start, wanted)
        return batch, base - start

    def _copy_into(self, memory: mmap.mmap, start: int, ranges: list[tuple[int, int]]) -> None:
        """Read ranges of a record batch that begins at byte `start`.

        Ranges close together are read in one request.
        """
        view, merged = memoryview(memory), list[tuple[int, int]]()
        for first, last in sorted(each for each in ranges if 0 <= each[0] < each[1] <= len(memory)):
            if merged and first - merged[-1][1] <= _NEAR_BYTES:
                first, last = merged[-1][0], max(last, merged.pop()[1])
            merged.append((first, last))
        for first, last in merged:
            if self.file.read_into(start + first, view[first:last]) != last - first:
                raise damaged(self.path, f"bytes {start + first:,} to {start + last:,} are not all there")

    def _without_dictionaries(self) -> pa.Schema:
        """Return the schema of the stored record batches.

        Dictionaries are stored elsewhere, so that such a column of a record batch holds numbers.
        """
        plain = [
            each.with_type(each.type.index_type) if pa.types.is_dictionary(each.type) else each
            for each in self.schema
        ]
        return pa.schema(plain)

    def located(self, number: int, column: int) -> tuple[pa.RecordBatch, int]:
        """Return a batch in which `column` can be used, and the address at which the file would begin."""
        if self.file.mapped:
            return self.batch(number), self._base
        with damage_reported(self.path, f"record batch {number}:"):
            batch, base = self._copied(number, (column,))
            batch.column(column).validate(full=True)
        self._refuse_uneven(number, batch.num_rows)
        return batch, base

    def batch(self, number: int) -> pa.RecordBatch:
        """Return a record batch after checking it. The bytes of its files stay on disk.

        Raises:
            DamagedFileError: The batch cannot be read, or does not have the stated number of rows.
        """
        kept, batch = self._last  # one tuple, replaced as a whole: threads never see half of it
        if kept == number and batch is not None:
            return batch
        with damage_reported(self.path, f"record batch {number}:"):
            self._announce(number, self.starts[number + 1] - self.starts[number])
            if self._has_dictionaries:
                with self._lock:
                    batch = self._reader.get_batch(number) if not self._batches else self._batches[number]
            else:
                batch = self._raw(number, range(len(self.schema)))
            batch.validate(full=True)
        self._refuse_uneven(number, batch.num_rows)
        self._last = (number, batch)
        return batch

    def pieces(self, column: int) -> Iterator[pa.Array]:
        """Yield a column of all batches in pieces. Each piece covers several batches."""
        for first in range(0, self.number, _BATCHES_AT_ONCE):
            yield self._some(range(first, min(first + _BATCHES_AT_ONCE, self.number)), column)
            self.file.forget()

    def _some(self, numbers: range, column: int) -> pa.Array:
        """Return a column of some record batches as one array."""
        for number in numbers if self._blocks is not None else ():
            self._announce(number, self.starts[number + 1] - self.starts[number])
        if self.file.mapped or self._has_dictionaries:
            return pa.concat_arrays([self.batch(number).column(column) for number in numbers])
        return pa.concat_arrays([self.located(number, column)[0].column(column) for number in numbers])

    def _refuse_uneven(self, number: int, rows: int) -> None:
        if rows != self.starts[number + 1] - self.starts[number]:
            raise self._uneven(number, rows)

    def _uneven(self, number: int, rows: int) -> FormatError:
        if self._cuts is not None:
            return damaged(self.path, f"record batch {number} has {rows} rows")
        return FormatError(  # only some headers were read: a million of them are spread over the file
            f"{self.path} has {rows} rows in record batch {number}, and one in the others",
            expected="one row in each of so many record batches",
            next_step="Write it again with 64 rows per batch, or pack the images with this package",
        )

    def where(self, row: int) -> tuple[int, int]:
        """Return the number of the batch that contains a sample, and the row of the sample in the batch."""
        number = bisect_right(self.starts, row) - 1
        return number, row - self.starts[number]

    def announce(self, rows: Sequence[int]) -> None:
        """Announce the headers and small columns of these samples' batches."""
        for number in sorted({self.where(row)[0] for row in rows}):
            self._announce(number, self.starts[number + 1] - self.starts[number])

    def _announce(self, number: int, rows: int) -> None:
        """Announce the header of a batch and its small columns to the kernel. They lie beside the images.

        Linux fetches as much around a page that is touched without an announcement as its read-ahead allows:
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

    def offset(self, buffer: pa.Buffer, begins_at: int) -> int:
        """Return the offset of a batch's buffer in the file.

        `begins_at` is the address at which the file begins.
        """
        offset: int = buffer.address - begins_at
        if not 0 <= offset <= offset + buffer.size <= self.file.size:
            raise self._compressed()
        return offset

    def _compressed(self) -> FormatError:
        return FormatError(
            f"{self.path} holds compressed record batches",
            expected="uncompressed ones, so that one sample can be read without its whole batch",
            next_step="Write it again without compression; JPEG data does not shrink",
        )


class LookedUp(SampleTable):
    """The samples of an Arrow file without a table of samples. Each record batch has to be inspected."""

    format = "arrow"

    def __init__(self, batches: Batches) -> None:
        self._batches, record, columns = batches, batches.record, batches.columns
        suffixes, schema = recorded_blobs(record), batches.schema
        further = {
            name: BinaryColumn(batches, number, suffixes.get(name, ""))
            for name, number in columns.blobs.items()
        }
        blobs = {"": BinaryColumn(batches, columns.data), **further}
        super().__init__(batches.path, batches.count, blobs, record, batches.file.size)
        kinds = {
            name: OWN_TYPES.get(name) or stored_type(schema.field(number).type)
            for name, number in columns.values.items()
        }
        self._kinds = kinds if kinds.keys() & {*TARGETS} else {"label": pa.int64(), **kinds}

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the provenance, or from the features of Hugging Face `datasets`."""
        return super().classes or _hugging_face_classes(self._batches.metadata.get(FEATURES))

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        return self._kinds

    def key(self, row: int) -> str:
        batches = self._batches
        if batches.columns.key is None:
            return str(row)
        number, own = batches.where(row)
        return batches.batch(number).column(batches.columns.key)[own].as_py() or ""

    def load(self, name: str) -> Column:
        return self._keys() if name == "key" else self._values(name)

    def _keys(self) -> pa.StringArray:
        """Return the keys of all samples as one array. The keys are row numbers if the file has no keys."""
        if self._batches.columns.key is None:
            return numbered_keys(self.count)
        keys = GrowingStrings()
        for some in self._batches.pieces(self._batches.columns.key):
            keys.extend(pc.fill_null(some, scalar("")) if some.null_count else some)
        return keys.finish()

    def _values(self, name: str) -> pa.ChunkedArray:
        """Return the values of all samples, copied out of all batches."""
        number = self._batches.columns.values.get(name)
        if number is None:
            return pa.chunked_array([from_numpy(np.full(self.count, UNLABELLED, np.int64))])
        parts = [self._as_value(name, some) for some in self._batches.pieces(number)]
        return pa.chunked_array(parts, self._kinds[name])

    def _as_value(self, name: str, found: pa.Array) -> pa.Array:
        """Convert a column to the type in which its values are held.

        Nulls in files of other programs become -1 (no label), or an empty list of captions.
        """
        kind = self._kinds[name]
        if name == "label" and (found.null_count or found.type != kind):
            with summary_of(self.path):  # those of others may be beyond 64 bits
                whole = found.to_pylist() if found.type == pa.uint64() else found
                return pc.fill_null(integers(whole, name, "row {}".format, nullable=True), scalar(UNLABELLED))
        if name == "captions" and (found.null_count or found.type != kind):
            texts = ([each] if isinstance(each, str) else each or [] for each in found.to_pylist())
            return column([*texts], OWN_TYPES["captions"])
        return found if found.type == kind else value_column(name, found)

    def about(self) -> dict[str, Any]:
        form = "foreign stream" if self._batches.is_stream else "foreign file"
        return {
            "layout": self.record.get("options", {}).get("layout", form),
            "batches": self._batches.number,
            "columns": {field.name: str(field.type) for field in self._batches.schema},
        }


class Joined(SampleTable):
    """The samples of several Arrow files with the same columns, one file after the other."""

    format = "arrow"

    def __init__(self, path: Path, files: Sequence[LookedUp]) -> None:
        self._files, first = files, files[0]
        columns = {name: [each._blobs[name] for each in files] for name in first._blobs}
        blobs = {name: JoinedColumn(each, self.shard_sizes()) for name, each in columns.items()}
        file_bytes = sum(each.file_bytes for each in files)
        super().__init__(path, sum(self.shard_sizes()), blobs, first.record, file_bytes)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._files[0].classes

    @property
    def kinds(self) -> Mapping[str, pa.DataType]:
        return self._files[0].kinds

    def load(self, name: str) -> Column:
        if name == "key" and self._files[0]._batches.columns.key is None:
            return numbered_keys(self.count)
        return pa.chunked_array([one_chunk(each.load(name)) for each in self._files])

    def shard_sizes(self) -> tuple[int, ...]:
        return tuple(each.count for each in self._files)

    def about(self) -> dict[str, Any]:
        return {**self._files[0].about(), "files": len(self._files)}


class JoinedColumn(Extents):
    """Where the bytes are in a column that several files share.

    Args:
        files: The column of each file.
        sizes: Number of samples in each file.
    """

    def __init__(self, files: Sequence[Extents], sizes: Sequence[int]) -> None:
        super().__init__(files[0].suffix)
        self._files, self._starts = files, [0, *accumulate(sizes)]

    def place(self, row: int) -> Place:
        number = bisect_right(self._starts, row) - 1
        return self._files[number].place(row - self._starts[number])

    def announce(self, rows: Sequence[int]) -> None:
        """Announce what `place` will read, file by file."""
        for file, start, stop in zip(self._files, self._starts, self._starts[1:], strict=False):
            file.announce([row - start for row in rows if start <= row < stop])

    def total_bytes(self) -> int:
        """Return the total size of the encoded samples in bytes."""
        return sum(each.total_bytes() or 0 for each in self._files)


def _unmapped_stream(path: Path) -> FormatError:
    return FormatError(
        f"{path} is an Arrow stream with dictionaries on shared storage, where no file is mapped into memory",
        expected="an Arrow file, or a stream of columns without dictionaries",
        next_step="Copy it to a local disk first, and pack it from there",
    )


def _hugging_face_classes(text: bytes | None) -> tuple[str, ...]:
    """Return the class names that Hugging Face `datasets` recorded in a file.

    Return none if there are none.
    """
    features = load_record(text).get("info", {})
    features = features.get("features", {}) if isinstance(features, dict) else {}
    for feature in features.values() if isinstance(features, dict) else ():
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            return tuple(str(name) for name in feature["names"])
    return ()
