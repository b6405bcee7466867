"""A packed set as a table: keys, values, where each blob is, and its record. A format's `locate` returns it.

    SampleTable.keys()      "cat/1.jpg", …
    SampleTable.column(…)   label, captions, and all other values
    SampleTable.blobs       name of a field -> Extents: file, first byte and end of the blob of each sample

One reader (`smallfiles.formats.reader`) does everything else for all formats. Columns and extents are loaded
when they are first needed, and a table never refers to itself: its files close when nobody uses it.

The trap: bytes that are read where a damaged index says are those of another sample. So a place is checked
against its file before anything is read. Notebook 04 teaches offsets.

The record (provenance) in every packed file says from what, by what and how it was packed. With a record of
time, user, host or part number, equal inputs would give unequal bytes, and then no digest can show that two
packed files are the same. So it contains only what determines the content. Notebook 05 teaches it.
"""

from __future__ import annotations

import json
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import smallfiles
from smallfiles.arrays import as_integers, from_numpy, one_chunk
from smallfiles.digests import added_fields
from smallfiles.fields import META, TARGETS, name_of_first, name_problem, suffix_of
from smallfiles.formats.bytefile import AHEAD_BYTES
from smallfiles.samples import Buffer, Schema

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


_Value = TypeVar("_Value")


class computed_once(Generic[_Value]):
    """An attribute that is computed when it is first used, without a lock.

    Before Python 3.12, `functools.cached_property` holds a lock during the computation. A worker that is
    forked at this moment would wait for the lock forever.
    """

    def __init__(self, make: Callable[[Any], _Value]) -> None:
        self._make, self._name = make, make.__name__

    def __get__(self, instance: Any, owner: type) -> _Value:
        found = instance.__dict__[self._name] = self._make(instance)
        return found


class ByteSource(Protocol):
    """A source of bytes that are read by position: a file, or an object that is read as if it were a file.

    Args:
        is_stored: Whether a range of the source is the same range of the file `path`. Otherwise, the bytes
            are decoded.
    """

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    @property
    def is_stored(self) -> bool: ...

    def read(self, start: int, stop: int) -> Buffer:
        """Return the bytes from `start` to `stop`. Raise an error if some are missing."""

    def prefetch(self, start: int, stop: int) -> None:
        """Announce that these bytes will be read soon."""


Place: TypeAlias = tuple[ByteSource, int, int]
"""Source, first byte, and end (exclusive) of a blob.

An end of -1 is the end of the source, whose size is unknown.
"""


class Extents(ABC):
    """Where the blobs of one field are, for each sample.

    Args:
        suffix: Suffix of the files. The suffix of the default field comes from the keys.
    """

    suffix = ""

    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix

    @abstractmethod
    def place(self, row: int) -> Place:
        """Return the source that holds the blob of one sample, and where the blob is in this source."""

    @abstractmethod
    def total_bytes(self) -> int | None:
        """Return the total size of all blobs in bytes.

        Return None if each file would have to be inspected.
        """

    def size(self, row: int) -> int:
        """Return the size of one blob in bytes."""
        source, start, stop = self.place(row)
        return source.size if stop < 0 else stop - start

    def read(self, row: int) -> Buffer:
        """Return the bytes of one blob."""
        source, start, stop = self.place(row)
        return memoryview(source.read(start, stop))

    def span(self, row: int) -> tuple[Path, int, int] | None:
        """Return the file that contains one blob, the blob's first byte, and its end (exclusive).

        Return None if the blob is not stored in one piece.
        """
        source, start, stop = self.place(row)
        if not source.is_stored:
            return None
        return source.path, start, source.size if stop < 0 else stop

    def announce(self, rows: Sequence[int]) -> None:  # noqa: B027  # most formats know all places
        """Announce what `place` will read for these samples, if that is spread over the file."""

    def sha256(self, row: int) -> str | None:
        """Return the recorded SHA-256 of one blob (hexadecimal). Return None if it was not recorded."""
        return None


class Stored(Extents):
    """Blobs in one source whose first bytes and sizes are known.

    Args:
        source: The source that holds the blobs.
        load: Returns the first byte and the size of each blob, after checking them. It is called once.
        suffix: Suffix of the files.
    """

    def __init__(
        self, source: ByteSource, load: Callable[[], Iterable[np.ndarray]], suffix: str = ""
    ) -> None:
        super().__init__(suffix)
        self._source, self._load = source, load

    @computed_once
    def places(self) -> tuple[memoryview[int], memoryview[int]]:
        """Return two arrays: the first byte of each blob, and the size of each blob in bytes."""
        starts, sizes = map(as_integers, self._load())
        return starts, sizes

    def place(self, row: int) -> Place:
        starts, sizes = self.places
        start = starts[row]
        return self._source, start, start + sizes[row]

    def read(self, row: int) -> Buffer:
        """Return the bytes of one blob.

        This does not call `place`, whose tuple would cost a tenth of the time.
        """
        starts, sizes = self.places
        start = starts[row]
        return memoryview(self._source.read(start, start + sizes[row]))

    def total_bytes(self) -> int:
        return int(np.asarray(self.places[1]).sum())


class SampleTable(ABC):
    """A packed set except for the bytes of its blobs. Each format adds how its columns are loaded.

    Several threads use a table at the same time, so it reads by position and has no changing state.

    Args:
        path: The packed file or folder, for messages.
        count: Number of samples.
        blobs: Extents by field, beginning with the default field. The name of the default field is empty if
            the name follows from its suffix.
        record: Provenance. It is empty in a file of another program.
        file_bytes: Size of the file, or of all files, in bytes.
    """

    format = ""
    outlives_fork = False
    """Whether forked workers keep the table of their parent, because nothing in it belongs to one process."""
    unread: Sequence[Any] = ()
    """Indexes of the files that belong to no field, one for each archive that has such files."""
    in_stored_order = True
    """Whether the blobs are stored in the order of the samples."""

    def __init__(
        self,
        path: Path,
        count: int,
        blobs: Mapping[str, Extents],
        record: Mapping[str, Any],
        file_bytes: int = 0,
    ) -> None:
        self.path, self.count, self.record, self.file_bytes = path, count, dict(record), file_bytes
        self._blobs, self.first = blobs, next(iter(blobs.values()))
        self.loaded: dict[str, pa.Array] = {}
        """Columns that were loaded. The reader hands them on to the table that a forked worker opens."""

    @computed_once
    def blobs(self) -> Mapping[str, Extents]:
        """Return the extents by the name of their field, beginning with the default field."""
        (given, _), *others = self._blobs.items()
        key = self.key(0) if self.count else ""
        self.first.suffix = suffix_of(key)
        name = given or recorded_first(self.record) or name_of_first(key)
        name = "data" if name in {**dict(others), **self.kinds} else name
        return {name: self.first, **dict(others)}

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order. It is empty if the names are not known."""
        return recorded_classes(self.record)

    @property
    @abstractmethod
    def kinds(self) -> Mapping[str, pa.DataType]:
        """The type of each field of values that was packed, by the name of the field."""

    @abstractmethod
    def load(self, name: str) -> Column:
        """Load a column of values, or the keys as `key`. It lies over the memory of the file if possible."""

    def column(self, name: str) -> Column:
        """Return a column, which is loaded once. Workers that are forked later share its memory."""
        if name not in self.loaded:
            self.loaded[name] = one_chunk(self.load(name))
        return self.loaded[name]

    def take(self, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Column]:
        """Return some rows of columns by the name of the column."""
        return {name: self.column(name).take(from_numpy(rows)) for name in names}

    def key(self, row: int) -> str:
        """Return the key of one sample."""
        return str(self.column("key")[row].as_py())

    def parts(self, rows: list[int]) -> list[list[int]]:
        """Divide samples into parts that are read together.

        A format may use this to limit how many files it opens for a part.
        """
        return [rows]

    def shard_sizes(self) -> tuple[int, ...]:
        """Return the number of samples in each shard, in stored order. A single file has none."""
        return ()

    def added_files(self) -> list[Path]:
        """Return the files with values that were added later."""
        return added_fields(self.path)

    def about(self) -> dict[str, Any]:
        """Return the part of `info` that is particular to the format, including `layout`."""
        return {}

    def info(self) -> dict[str, Any]:
        """Return the facts that `Reader.info` returns."""
        totals = [extents.total_bytes() for extents in self._blobs.values()]
        payload = sum(total or 0 for total in totals)
        sizes = {} if None in totals else {"bytes": payload, "file_bytes": self.file_bytes}
        facts = {"format": self.format, "samples": self.count, **sizes}
        return facts | self.about() | {"provenance": self.record}


Locate: TypeAlias = Callable[[Path], SampleTable]
"""Type of `locate(path)`, which opens a packed file for this process, and checks that it is whole."""


def announce(places: Sequence[Place]) -> None:
    """Announce to the kernel that these places will be read soon.

    Places that follow each other, as the files of a sample in a tar do, are announced in one call.
    """
    known: ByteSource | None = None
    first = last = 0
    for source, start, stop in [*places, (None, 0, 0)]:
        near = source is known and 0 <= start - last <= mmap.PAGESIZE and stop - first <= AHEAD_BYTES
        if not near:
            if known is not None:
                known.prefetch(first, last)
            known, first = source, start
        last = stop


def numbered_keys(count: int) -> pa.StringArray:
    """Return the keys of a file that stores no keys: its row numbers as text."""
    # Not pa.array, which imports pandas where that is installed: a second per worker.
    return from_numpy(np.arange(count, dtype=np.int64)).cast(pa.string())


def record_of(format_name: str, schema: Schema, options: Any) -> dict[str, Any]:
    """Make the provenance record that a writer stores.

    A file that was copied to another cluster still contains the name of its set and its classes.

    Args:
        format_name: Name of the format.
        schema: What is packed.
        options: The format's frozen dataclass, or None.

    Returns:
        A JSON object. It has `resize` only if images were scaled before packing, and `came_as` (the
        `member_suffixes` of the schema) only if the source was a tar of another program. It has `fields` only
        if there are fields in addition to the first file and its target, `columns` only if the schema has
        columns as well, and `first` only if the first field was given a name.
    """
    odd: dict[str, Any] = {} if schema.resize is None else {"resize": dict(schema.resize)}
    if schema.member_suffixes:
        odd["came_as"] = list(schema.member_suffixes)
    if schema.fields:
        odd["fields"] = schema.fields
        odd |= {"columns": list(schema.columns)} if schema.columns else {}
    if schema.first:
        odd["first"] = schema.first
    names = schema.values.column_names
    return odd | {
        "package": "smallfiles",
        "version": smallfiles.__version__,
        "format": format_name,
        "options": asdict(options) if is_dataclass(options) else {},  # type: ignore[arg-type]
        "schema": {
            "name": schema.name,
            "split": schema.split,
            "classes": list(schema.classes),
            "target": "captions" if "captions" in names else "label",
            "count": schema.count,
            "has_meta": META in names,
            "manifest_digest": schema.manifest_digest,
        },
    }


def dump_record(provenance: dict[str, Any]) -> str:
    """Return a record as canonical JSON, so that equal records are equal bytes.

    Canonical JSON is compact, ASCII, and has sorted keys.
    """
    return json.dumps(provenance, sort_keys=True, separators=(",", ":"))


def load_record(text: str | bytes | None) -> dict[str, Any]:
    """Read a record from its text. Return `{}` if the text is not a JSON object.

    The samples of a file that lost its record, or that another program wrote, can still be read.

    Returns:
        The record. Its `schema`, `options` and `resize`, where present, are objects.
    """
    try:
        found = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in found.items()
        if name not in ("schema", "options", "resize") or isinstance(value, dict)
    }


def recorded_classes(provenance: dict[str, Any]) -> tuple[str, ...]:
    """Return the class names in label order. Return none if the record has no class names."""
    classes = provenance.get("schema", {}).get("classes")
    return tuple(str(name) for name in classes) if isinstance(classes, list) else ()


def recorded_member_suffixes(provenance: dict[str, Any]) -> tuple[str, ...]:
    """Return the recorded `Schema.member_suffixes`.

    Return an empty tuple if the record does not have them.
    """
    found = provenance.get("came_as")
    return tuple(word for word in ("json", "txt") if word in found) if isinstance(found, list) else ()


def recorded_blobs(provenance: dict[str, Any]) -> dict[str, str]:
    """Return the suffix of each additional field of files, by the name of the field.

    Return an empty dictionary if the record has no such fields.
    """
    found = provenance.get("fields")
    fields = found.items() if isinstance(found, dict) else ()
    return {str(name): kind for name, kind in fields if isinstance(kind, str) and kind.startswith(".")}


def recorded_first(provenance: Mapping[str, Any]) -> str:
    """Return the recorded `Schema.first`. Return an empty text if the record does not have it."""
    found = provenance.get("first")
    return "" if name_problem(found) else str(found)


def recorded_columns(provenance: dict[str, Any]) -> tuple[str, ...]:
    """Return the recorded `SourceOptions.columns`. Return an empty tuple if the record does not have them."""
    found = provenance.get("columns")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def recorded_target(provenance: dict[str, Any]) -> str | None:
    """Return whether samples carry `label` or `captions`. Return None if the record does not say so."""
    found = provenance.get("schema", {}).get("target")
    return found if found in TARGETS else None


def recorded_values(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the name and type of each column of values that a record names."""
    found = record.get("fields")
    fields = found if isinstance(found, dict) else {}
    return {name: str(kind) for name, kind in fields.items() if not str(kind).startswith(".")}
