"""The table of samples inside a packed file, as an Arrow file of one record batch between its other bytes.

    key: string     label: int64 or captions: list<string>     meta: string, if any sample has one
    bytes: int64    number of the sample's bytes
    start: int64    where they begin in the packed file; left out if they are not in one piece
    mask/bytes, mask/start: the same for the further files of a field, here mask
    further values: a column each, by the name of the field, which has no slash

A squashfs file and an Arrow file have it. 32 bytes after it (`TablePlace`) say where it is, so that a file
of a million samples opens with few reads, and a column is read when it is needed.

The trap: other programs do not know the table. If they write the file again, they leave it out, and the
samples are looked up one by one. Notebook 06 looks inside.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles.arrays import to_numpy
from smallfiles.fields import META, TARGETS, name_problem, stored_type, value_column
from smallfiles.formats.bytefile import ByteFile, damage_reported, damaged
from smallfiles.formats.output import SampleColumns, write_table
from smallfiles.formats.table import Extents, SampleTable, Stored, dump_record, load_record, recorded_blobs
from smallfiles.samples import OWN_TYPES, Buffer

PROVENANCE = b"smallfiles"
_PLACE = struct.Struct("<8s3Q")
_MAGIC = b"sfplace\x01"
_ARROW = b"ARROW1\0\0"
_HEAD_BYTES = 64 << 10
_END_BYTES = 10  # the length of the footer, and the magic


@dataclass(frozen=True)
class TablePlace:
    """The 32 bytes in a packed file that say where its table of samples is.

    Args:
        start: Offset of the first byte of the table in the packed file.
        stop: End of the table (exclusive).
        own: Offset of these 32 bytes.
    """

    start: int
    stop: int
    own: int

    def dumps(self) -> bytes:
        """Return the 32 bytes to be stored."""
        return _PLACE.pack(_MAGIC, self.start, self.stop, self.own)

    @classmethod
    def find(cls, file: ByteFile, end: int) -> TablePlace | None:
        """Read the 32 bytes that end at `end`. Return None if the file has something else there."""
        own = end - _PLACE.size
        if not 0 <= own <= file.size - _PLACE.size:
            return None
        magic, *numbers = _PLACE.unpack(file.read(own, end))
        place = cls(*numbers)
        return place if magic == _MAGIC and place.own == own and place.start <= place.stop <= own else None


def place_column(field: str, what: str) -> str:
    """Return the column name of the `bytes` or `start` of a field. The name of the default field is empty."""
    return f"{field}/{what}".lstrip("/")


def pieces(
    columns: SampleColumns, record: dict[str, Any], facts: Mapping[bytes, str] | None = None
) -> list[Buffer]:
    """Serialise the table of samples, and return the pieces of its Arrow file in order.

    Args:
        columns: The columns of all samples.
        record: Provenance.
        facts: Additional metadata of the table.
    """
    found, values = columns.finish()
    own = {name: values.pop(name) for name in OWN_TYPES if name in values}
    required = {**found, **own}.keys() - {META}
    found = {"key": found.pop("key"), **own, **found, **values}
    arrow_schema = pa.schema(
        [pa.field(name, column.type, nullable=name not in required) for name, column in found.items()],
        {PROVENANCE: dump_record(record), **(facts or {})},
    )
    batch = pa.record_batch([*found.values()], schema=arrow_schema)
    views: list[Buffer] = []
    write_table(batch, views.extend)
    return views


class Columns:
    """The columns of a table of samples, loaded one by one.

    Args:
        path: The packed file, for messages.
        data: The bytes of the Arrow file, which are not copied.
        fill: Reads a range of the Arrow file into `data`. It is None if all bytes are already there.

    Raises:
        DamagedFileError: The Arrow file is not a table that this package wrote.
    """

    def __init__(self, path: Path, data: Any, fill: Callable[[int, int], None] | None = None) -> None:
        self._path, self._fill, buffer = path, fill, pa.py_buffer(data)
        self._base = buffer.address
        with self._reported(), pa.ipc.open_file(buffer) as opened:
            if opened.num_record_batches != 1:
                raise ValueError(f"{opened.num_record_batches} record batches instead of one")
            self.schema, self._batch = opened.schema, opened.get_batch(0)
            names = self.schema.names
            keys = "key" in names and self.schema.field("key").type == pa.string()
            if not (keys and {*TARGETS} & {*names} and len({*names}) == len(names)):
                raise ValueError("it has no keys, or neither labels nor captions")
        self.count: int = self._batch.num_rows
        self.metadata: dict[bytes, bytes] = self.schema.metadata or {}
        self.record = load_record(self.metadata.get(PROVENANCE))
        stored = {each.name: OWN_TYPES.get(each.name) or stored_type(each.type) for each in self.schema}
        own = [name for name in OWN_TYPES if name in stored]
        others = [name for name, kind in stored.items() if name_problem(name) is None and kind is not None]
        self.kinds = {name: stored[name] for name in (*own, *others)}

    def _reported(self) -> Any:
        return damage_reported(self._path, "its table of samples:")

    def __getitem__(self, name: str) -> pa.Array:
        """Load a column, and validate it fully, because native code follows its offsets."""
        with self._reported():
            found = self._batch.column(name)
            for each in found.buffers():
                self._read(each, 0, each.size if each is not None else 0)
            found.validate(full=True)
            if name in self.kinds and name not in OWN_TYPES:
                return value_column(name, found)
            kind = pa.string() if name == "key" else OWN_TYPES.get(name, pa.int64())
            if found.type != kind or (found.null_count and name != META):
                raise ValueError(f"column {name} has type {found.type} and {found.null_count} nulls")
            return found

    def _read(self, buffer: pa.Buffer | None, start: int, stop: int) -> None:
        """Make sure that a part of a buffer is in memory."""
        if self._fill is not None and buffer is not None and start < stop:
            first = buffer.address - self._base
            self._fill(first + start, first + stop)

    def key(self, row: int) -> str:
        """Load the key of one sample. Loading all keys of a million samples would take 60 MB."""
        with self._reported():
            _, offsets, data = self._batch.column("key").buffers()
            self._read(offsets, row * 4, row * 4 + 8)
            start, stop = struct.unpack_from("<ii", offsets, row * 4)
            if not 0 <= start <= stop <= data.size:
                raise ValueError(f"the offsets of key {row} are {start} and {stop}")
            self._read(data, start, stop)
            return bytes(memoryview(data)[start:stop]).decode()

    @property
    def suffixes(self) -> dict[str, str]:
        """The suffix of the files of each field, by the name of the field.

        The name of the default field is empty.
        """
        stated = recorded_blobs(self.record)
        parts = [name.rpartition("/") for name in self.schema.names]
        fields = ["", *(field for field, _, what in parts if what in ("bytes", "start"))]
        return {field: stated.get(field, "") for field in dict.fromkeys(fields)}

    def sizes(self, field: str) -> np.ndarray | None:
        """Return the recorded size in bytes of each blob of a field.

        Return None if the table has no such column.
        """
        name = place_column(field, "bytes")
        return to_numpy(self[name]) if name in self.schema.names else None

    def extents(self, file: ByteFile, end: int) -> dict[str, Extents]:
        """Return the extents of all fields. All their blobs must end before byte `end` of `file`.

        Raises:
            DamagedFileError: A column is missing. The error is also raised later, when extents are first
                used, if a sample lies outside the data.
        """
        wanted = {place_column(field, what) for field in self.suffixes for what in ("bytes", "start")}
        if not wanted <= {*self.schema.names}:
            raise damaged(self._path, "its table of samples lacks a column")
        return {
            field: Stored(file, partial(self._places, field, end), suffix)
            for field, suffix in self.suffixes.items()
        }

    def _places(self, field: str, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first byte and the size of each blob of a field.

        Raise an error if a blob ends after `end`.
        """
        starts, sizes = (to_numpy(self[place_column(field, what)]) for what in ("start", "bytes"))
        wrong = (starts < 0) | (starts > end) | (sizes < 0) | (sizes > end - starts)
        if wrong.any():
            raise damaged(self._path, f"{int(wrong.sum())} samples are outside its data")
        return starts, sizes


def load(file: ByteFile, place: TablePlace) -> Columns:
    """Load a table of samples: over the memory of a mapped file, otherwise with few reads.

    Raises:
        DamagedFileError: The table is not one that this package wrote.
    """
    if file.mapped:
        return Columns(file.path, file.view[place.start : place.stop])
    size = place.stop - place.start
    memory = reserved(size)
    view = memoryview(memory)

    def fill(first: int, last: int) -> None:
        if not 0 <= first <= last <= size:
            raise ValueError(f"bytes {first:,} to {last:,} of {size:,}")
        if file.read_into(place.start + first, view[first:last]) != last - first:
            raise damaged(file.path, f"bytes {place.start + first:,} and those after it are not all there")

    with damage_reported(file.path, "its table of samples:"):
        begun = min(size, _HEAD_BYTES)
        fill(0, begun)
        if size > begun:
            fill(max(begun, size - _HEAD_BYTES), size)  # with the footer, whose length is at its end
        (footer,) = struct.unpack_from("<i", memory, size - _END_BYTES)
        end = len(_ARROW)
        for _ in ("schema", "record batch"):
            if end + 8 > begun:
                fill(begun, begun := end + 8)
            end += 8 + struct.unpack_from("<i", memory, end + 4)[0]
        for first, last in ((begun, end), (size - _END_BYTES - footer, size - _HEAD_BYTES)):
            if 0 <= first < last:
                fill(first, last)
    return Columns(file.path, memory, fill)


def reserved(size: int) -> mmap.mmap:
    """Reserve memory of this size in bytes. Only the pages that are touched occupy memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(size, 1), flags=flags | getattr(mmap, "MAP_NORESERVE", 0))
    with suppress(OSError, AttributeError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


class EmbeddedTable(SampleTable):
    """A packed set whose keys and values are in a table inside the file.

    Args:
        path: The packed file.
        columns: The columns of the table.
        blobs: Extents by field.
        file_bytes: Size of the file.
    """

    outlives_fork = True

    def __init__(self, path: Path, columns: Columns, blobs: Mapping[str, Extents], file_bytes: int) -> None:
        super().__init__(path, columns.count, blobs, columns.record, file_bytes)
        self._columns = columns

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        return self._columns.kinds

    def key(self, row: int) -> str:
        return super().key(row) if "key" in self.loaded else self._columns.key(row)

    def load(self, name: str) -> pa.Array:
        return self._columns[name]
