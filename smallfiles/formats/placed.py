"""Readers of formats in which each sample is one range of bytes: a format only says which.

A batch is announced to the kernel in stored order before its first sample is read, so that on a parallel
file system it waits for all of them together, not for one after the other.

The trap: bytes that are read where a damaged index says are those of another sample. So a place is checked
against its file before anything is read. Notebook 04 teaches offsets.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import from_numpy
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.reader import BaseReader, Handle
from smallfiles.samples import Blob, Buffer, Rows

_AHEAD_BYTES = 128 << 10
"""Bytes that are announced in one call: Linux may leave out what exceeds its read-ahead, by default this."""


class ByteSource(Protocol):
    """Bytes by position: a file, or a compressed one as if it were not."""

    path: Path
    size: int

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`; an error if some are missing."""

    def prefetch(self, start: int, stop: int) -> None:
        """Announce that these bytes will be read soon."""


class Places(ABC):
    """Bytes of samples, each in one run; it only says where."""

    @abstractmethod
    def _place(self, index: int) -> tuple[ByteSource, int, int]:
        """ByteSource, first byte and one after the last of a sample; `index` was checked."""

    def _placer(self) -> Callable[[int], tuple[ByteSource, int, int]]:
        """`_place` for many samples (formats may look up once what is the same for all)."""
        return self._place

    @abstractmethod
    def _checked(self, index: int) -> int:
        """`index` counted from the front."""

    @abstractmethod
    def _checked_rows(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Several, counted from the front."""

    def _prefetch_places(self, indices: Sequence[int]) -> None:  # noqa: B027  # a format may need none
        """Announce what `_place` will look at, where that is spread over the file."""

    def size(self, index: int) -> int:
        """See `Reader.size`."""
        _, start, stop = self._place(self._checked(index))
        return stop - start

    def read(self, index: int) -> Buffer:
        """See `Reader.read`."""
        store, start, stop = self._place(self._checked(index))
        return memoryview(store.read(start, stop))

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """See `Reader.span`."""
        store, start, stop = self._place(self._checked(index))
        return store.path, start, stop

    def _parts(self, order: list[int]) -> list[list[int]]:
        """What of these samples is read at once (a format may bound what it opens for it)."""
        return [order]

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the requested order; see `read_fields`."""
        return _read_placed([self], indices)[0]


def read_fields(blobs: Sequence[Blob], indices: Sequence[int]) -> list[list[Buffer]]:
    """Several samples of some fields of a reader, in the requested order.

    All are announced to the kernel in stored order before the first is read, so that a cold batch
    waits for its files together, not for one after the other.

    Args:
        blobs: The fields.
        indices: Numbers of the samples.

    Returns:
        The bytes of each field.
    """
    placed: list[Any] = [each for each in blobs if getattr(type(each), "read_many", None) is Places.read_many]
    if len(placed) < len(blobs):  # some read in another way
        return [blob.read_many(indices) for blob in blobs]
    return _read_placed(placed, indices)


def _read_placed(fields: Sequence[Places], indices: Sequence[int]) -> list[list[Buffer]]:
    wanted = fields[0]._checked_rows(indices).tolist()
    order = sorted(set(wanted))
    found = [data for part in fields[0]._parts(order) for data in _read_part(fields, part)]
    row = {index: number * len(fields) for number, index in enumerate(order)}
    return [[found[row[index] + number] for index in wanted] for number in range(len(fields))]


def _read_part(fields: Sequence[Places], part: list[int]) -> list[Buffer]:
    """The fields of one sample after the other."""
    fields[0]._prefetch_places(part)
    placers = [field._placer() for field in fields]
    places = [place(index) for index in part for place in placers]
    _announce(places)
    return [memoryview(store.read(start, stop)) for store, start, stop in places]


def _announce(places: list[tuple[ByteSource, int, int]]) -> None:
    """Announce places; those that follow each other, as the files of a sample in a tar do, in one call."""
    known: ByteSource | None = None
    first = last = 0
    for store, start, stop in [*places, (None, 0, 0)]:
        near = store is known and 0 <= start - last <= mmap.PAGESIZE and stop - first <= _AHEAD_BYTES
        if not near:
            if known is not None:
                known.prefetch(first, last)
            known, first = store, start
        last = stop


class PlacedReader(Places, BaseReader[Handle]):
    """Reads a format in which each sample is one run of bytes; the format only says where."""

    _checked = BaseReader._checked
    _checked_rows = BaseReader._checked_rows

    def _blob_place(self, name: str, index: int) -> tuple[ByteSource, int, int]:
        """The place of a further file of a sample (formats that have some override)."""
        raise NotImplementedError

    def _blob_placer(self, name: str) -> Callable[[int], tuple[ByteSource, int, int]]:
        """The same for many samples, as `_placer` is for the first file."""
        return partial(self._blob_place, name)

    def _blob(self, name: str) -> Blob:
        return PlacedBlob(self, name)


class PlacedBlob(Places):
    """A field of further files of a reader.

    Args:
        reader: Has the samples.
        name: Of the field.
    """

    def __init__(self, reader: PlacedReader[Any], name: str) -> None:
        self._reader, self._name = reader, name

    def __len__(self) -> int:
        return len(self._reader)

    def _checked(self, index: int) -> int:
        return self._reader._checked(index)

    def _checked_rows(self, rows: Rows) -> npt.NDArray[np.int64]:
        return self._reader._checked_rows(rows)

    def _place(self, index: int) -> tuple[ByteSource, int, int]:
        return self._reader._blob_place(self._name, index)

    def _placer(self) -> Callable[[int], tuple[ByteSource, int, int]]:
        return self._reader._blob_placer(self._name)

    def _parts(self, order: list[int]) -> list[list[int]]:
        return self._reader._parts(order)


class Ahead:
    """A reader, or a field of one, some of whose samples were read ahead.

    Args:
        reader: Has all samples.
        held: What was read, by the number of its sample; released when it is asked for.
    """

    def __init__(self, reader: Any, held: dict[int, Buffer]) -> None:
        self._reader, self._held = reader, held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __len__(self) -> int:
        return len(self._reader)

    def read(self, index: int) -> Buffer:
        """One sample; a damaged one raises its error again."""
        data: Buffer | None = self._held.pop(index, None)
        return self._reader.read(index) if data is None else data

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several, in the requested order."""
        found = {index: self.read(index) for index in dict.fromkeys(indices)}
        return [found[index] for index in indices]


class OpenedFile(ABC):
    """One process's view of a file with all samples; a format adds where they are and what they mean.

    Args:
        file: The file.
        record: Provenance; empty in a file of another program.
    """

    count: int

    def __init__(self, file: ByteFile, record: Mapping[str, Any] | None = None) -> None:
        self.file, self.path, self.record = file, file.path, dict(record or {})
        self._keys: pa.StringArray | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order; empty if unknown."""
        return provenance.class_names(self.record)

    def keys(self) -> pa.StringArray:
        """All keys, read once."""
        if self._keys is None:
            self._keys = self.all_keys()
        return self._keys

    @abstractmethod
    def all_keys(self) -> pa.StringArray:
        """Read the keys; row numbers in a file that has none."""

    @abstractmethod
    def key(self, index: int) -> str:
        """The key of one sample."""

    @abstractmethod
    def kinds(self) -> Mapping[str, pa.DataType]:
        """Name and type of the values of samples."""

    @abstractmethod
    def column(self, name: str) -> pa.Array | pa.ChunkedArray:
        """The values of one field, of all samples."""

    @abstractmethod
    def place(self, index: int) -> tuple[ByteFile, int, int]:
        """File, first byte, and one after the last byte of one sample."""

    def further(self) -> Mapping[str, str]:
        """Name and suffix of each further file of a sample."""
        return provenance.blob_suffixes(self.record)

    def blob_place(self, name: str, index: int) -> tuple[ByteFile, int, int]:
        """The place of a further file."""
        raise NotImplementedError

    @abstractmethod
    def payload_bytes(self) -> int:
        """Sum of the encoded bytes."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """The part of `info` that is particular to the format, `layout` included."""


AnyOpened = TypeVar("AnyOpened", bound=OpenedFile)


class FileReader(PlacedReader[AnyOpened]):
    """Random access to a format whose samples are in one file; it adds how that is opened."""

    format = ""

    def __len__(self) -> int:
        return self._handle().count

    @property
    def classes(self) -> tuple[str, ...]:
        return self._handle().classes

    def keys(self) -> pa.StringArray:
        return self._handle().keys()

    def key(self, index: int) -> str:
        return self._handle().key(self._checked(index))

    def _place(self, index: int) -> tuple[ByteSource, int, int]:
        return self._handle().place(index)

    def _placer(self) -> Callable[[int], tuple[ByteSource, int, int]]:
        return self._handle().place

    def _further(self) -> Mapping[str, str]:
        return self._handle().further()

    def _kinds(self) -> Mapping[str, pa.DataType]:
        return self._handle().kinds()

    def _read_column(self, name: str) -> pa.Array | pa.ChunkedArray:
        return self._handle().column(name)

    def _provenance(self) -> Mapping[str, Any]:
        return self._handle().record

    def _blob_place(self, name: str, index: int) -> tuple[ByteSource, int, int]:
        return self._handle().blob_place(name, index)

    def _blob_placer(self, name: str) -> Callable[[int], tuple[ByteSource, int, int]]:
        return partial(self._handle().blob_place, name)

    def info(self) -> dict[str, Any]:
        opened = self._handle()
        return {
            "format": self.format,
            "samples": opened.count,
            "bytes": opened.payload_bytes(),
            "file_bytes": opened.file.size,
            **opened.about(),
            "provenance": opened.record,
        }


def numbered_keys(count: int) -> pa.StringArray:
    """Keys of a file that has none: its row numbers."""
    # Not pa.array, which imports pandas where that is installed: a second per worker.
    return from_numpy(np.arange(count, dtype=np.int64)).cast(pa.string())
