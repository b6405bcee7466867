"""One reader for all formats: it opens late, once per process, and reads where a table says.

A batch is announced to the kernel in stored order before its first sample is read, so that on a parallel
file system it waits for all of them together, not for one after the other.

Fields that were added later are in Arrow files of one record batch beside the packed set, which
`smallfiles annotate` writes:

    train.arrow   train.arrow.scores.fields.arrow   train.arrow.scores.fields.arrow.digest.json

The traps: forked workers that use a handle of their parent share its file offset, and HDF5 handles break
outright (pytorch/pytorch#11887). So a reader records in which process it opened; notebook 04 reproduces the
failure. And the rows of added fields have no keys, so beside another set, or the same one packed in another
order, they would be values of other samples, and training runs on without any error. So their file records
the number of samples, the set digest and a digest of the keys in their order, and is refused where these
differ. Opening it compares 64 keys, `verify` all of them.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import column, from_numpy, one_chunk, spread
from smallfiles.digests import ContentDigest, digest_file, key_digest, sidecar
from smallfiles.errors import FormatError, ManifestError, ReaderClosedError, UsageError, raised_as, summary_of
from smallfiles.fields import TARGETS, value_table
from smallfiles.formats.bytefile import ByteFile, damage_reported, damaged
from smallfiles.formats.table import Extents, Locate, Place, SampleTable, announce, dump_record, load_record
from smallfiles.samples import Buffer, Reader, Rows, Sample
from smallfiles.storage import answered, refuse_unmounted, remember

_METADATA = b"smallfiles.annotates"
_COMPARED = 64
_RULE = "rule"
_NAMES = {"rows": "number of samples", "set": "set digest", "some_keys": "digest of 64 keys"}
_NAMES |= {"keys": "digest of all keys in their order"}


class TableReader(Reader):
    """Random access to the samples of a packed file, whatever its format.

    A method that reads blobs takes the name of their field. Without a name, it reads the default field.

    Args:
        path: The packed file or folder.
        locate: The function of the format that opens the file. It can be pickled.
    """

    def __init__(self, path: Path, locate: Locate) -> None:
        self.path, self._locate = Path(path), locate
        remember(self.path)
        self._opened: tuple[int, SampleTable] | None = None
        self._loaded: dict[str, pa.Array] = {}
        self._added: dict[str, pa.Array] | None = None
        self._closed = False

    def _table(self) -> SampleTable:
        """Return the table that this process opened. Open it if necessary."""
        opened = self._opened
        if opened is not None and (opened[1].outlives_fork or opened[0] == os.getpid()):
            return opened[1]
        if self._closed:
            raise ReaderClosedError(
                f"the reader of {self.path} was closed",
                expected="an open reader",
                next_step="Open it again with smallfiles.formats.open",
            )
        # No lock: if another thread held it during a fork, the child would wait for ever. Two threads
        # may both open; the last table is kept, and the other closes when its read is done.
        table = answered(self.path, self._open)
        table.loaded = self._loaded  # a forked worker shares the columns of its parent
        if not self._closed:  # another thread may have closed the reader meanwhile
            self._opened = (os.getpid(), table)
        return table

    def _open(self) -> SampleTable:
        refuse_unmounted(self.path)
        return self._locate(self.path)

    def close(self) -> None:
        """Release the file. Views that were returned stay valid, and later reads are refused."""
        self._closed = True
        self._opened = None

    def __enter__(self) -> TableReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_loaded": {}, "_added": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __len__(self) -> int:
        return self._table().count

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order. It is empty if the names are not known."""
        return self._table().classes

    @property
    def fields(self) -> Mapping[str, str]:
        """The kind of each field by its name: the suffix of its files, or the Arrow type of its values."""
        table = self._table()
        values = {**table.kinds, **{name: each.type for name, each in self.added().items()}}
        files = {name: extents.suffix for name, extents in table.blobs.items()}
        return files | {name: str(kind) for name, kind in values.items()}

    def keys(self) -> pa.StringArray:
        """Return the keys of all samples."""
        return self._table().column("key")

    def key(self, index: int) -> str:
        """Return the key of one sample."""
        return self._table().key(self._checked(index))

    def unread(self) -> Sequence[Any]:
        """Return an index of the files that belong to no field, for each archive that has such files."""
        return self._table().unread

    def added(self) -> dict[str, pa.Array]:
        """Return the values that were added later, over the memory of their files."""
        if self._added is None:
            table = self._table()
            files = table.added_files()
            packed = [*table.blobs, *table.kinds] if files else []
            self._added = added_columns(self, packed, files)
        return self._added

    def table(self, names: Iterable[str] | None = None, rows: Rows | None = None) -> pa.Table:
        """Return the values of fields, for all samples or for some. See `Reader.table`.

        Raises:
            UsageError: A field of values or a sample does not exist.
        """
        at = None if rows is None else self._checked_rows(rows)
        table, later = self._table(), self.added()
        known = [*table.kinds, *later]
        wanted = known if names is None else [*names]
        for name in wanted:
            if name not in known:
                raise self._unknown_field(name, "values", known)
        packed = [name for name in wanted if name in table.kinds]
        found: dict[str, Any]
        if at is None:
            found = {**{name: table.column(name) for name in packed}, **later}
        else:
            found = table.take(packed, at)
            found |= {name: later[name].take(from_numpy(at)) for name in wanted if name in later}
        if not wanted:
            return no_values(len(self) if at is None else len(at))
        return pa.table([found[name] for name in wanted], names=wanted)

    def target(self, index: int) -> Any:
        """Return the label or captions of one sample."""
        name = next(name for name in TARGETS if name in self._table().kinds)
        return self.table([name], [index])[name][0].as_py()

    @property
    def set_digest(self) -> str | None:
        """The digest of the set that was packed. It is None if the format does not record the digest."""
        digest = self._table().record.get("schema", {}).get("manifest_digest")
        return str(digest) if digest else None

    def blob(self, name: str) -> FieldBlobs:
        """Return access to the blobs of a field.

        Raises:
            UsageError: There is no field of this name.
        """
        self._extents(name)
        return FieldBlobs(self, name)

    def _extents(self, field: str) -> Extents:
        table = self._table()
        if not field:
            return table.first
        if field not in table.blobs:
            raise self._unknown_field(field, "files", table.blobs)
        return table.blobs[field]

    def _unknown_field(self, name: str, what: str, known: Iterable[str]) -> UsageError:
        return UsageError(
            f"{self.path} has no field {name!r} of {what}",
            expected=f"one of {', '.join(known)}",
            next_step="Look at its fields with: smallfiles inspect",
        )

    def size(self, index: int, field: str = "") -> int:
        """Return the size of one blob in bytes."""
        return self._extents(field).size(self._checked(index))

    def read(self, index: int, field: str = "") -> Buffer:
        """Return the bytes of one blob. See `Reader.read`."""
        table = self._table()
        extents = self._extents(field) if field else table.first
        known = type(index) is int and 0 <= index < table.count
        return extents.read(index if known else self._checked(index))

    def span(self, index: int, field: str = "") -> tuple[Path, int, int] | None:
        """Return the file that contains a blob, its first byte in the file, and its end (exclusive).

        Return None if the blob is not stored in one piece. `verify` uses this to name the samples in a
        damaged block.
        """
        return self._extents(field).span(self._checked(index))

    def sha256(self, index: int, field: str = "") -> str | None:
        """Return the recorded SHA-256 of a blob (hexadecimal). Return None if it was not recorded."""
        return self._extents(field).sha256(self._checked(index))

    def read_many(self, indices: Sequence[int], field: str = "") -> list[Buffer]:
        """Return several blobs in the requested order. See `read_fields`."""
        return self.read_fields(indices, [field])[0]

    def read_fields(self, indices: Sequence[int], fields: Sequence[str]) -> list[list[Buffer]]:
        """Return the blobs of several samples and fields.

        All blobs are announced to the kernel in stored order before the first blob is read.

        Args:
            indices: Numbers of the samples.
            fields: Names of the fields. The name of the default field is empty.

        Returns:
            For each field, its blobs in the order of `indices`.
        """
        table, extents = self._table(), [self._extents(field) for field in fields]
        wanted = self._checked_rows(indices).tolist()
        order, found = sorted(set(wanted)), list[Buffer]()
        for rows in table.parts(order):
            for each in extents:
                each.announce(rows)
            places = [each.place(row) for row in rows for each in extents]
            found += _read_places(places, table.in_stored_order)
        by_field = (
            dict(zip(order, found[number :: len(extents)], strict=True)) for number in range(len(extents))
        )
        return [[blobs[row] for row in wanted] for blobs in by_field]

    def shard_sizes(self) -> tuple[int, ...]:
        """Return the number of samples in each shard, in stored order.

        Loaders distribute ranges of shards.
        """
        return self._table().shard_sizes()

    def info(self) -> dict[str, Any]:
        """Return facts that can be written as JSON: format, samples, bytes, layout, provenance."""
        return self._table().info()

    def __iter__(self) -> Iterator[Sample]:
        blobs = self._table().blobs
        for index in range(len(self)):
            yield Sample(self.key(index), tuple(self.read(index, name) for name in blobs), index)

    def _checked(self, index: int) -> int:
        """Return `index` counted from the front. Negative indices count from the end, as in a list.

        An index outside the set raises an error.
        """
        count, index = len(self), operator.index(index)
        if 0 <= index < count:
            return index
        if not -count <= index < 0:
            raise SampleIndexError(
                f"sample {index} was asked of {self.path}, which holds {count}",
                expected=f"an index from 0 to {count - 1}" if count else "no read from an empty set",
                next_step="Check the length with len(reader)",
            )
        return index + count

    def _checked_rows(self, rows: Rows) -> npt.NDArray[np.int64]:
        found, count = np.array(rows), len(self)
        if found.dtype != np.int64:  # numbers that only look whole are refused
            found = np.array([operator.index(row) for row in rows], np.int64)
        for place in np.flatnonzero((found < 0) | (found >= count)).tolist():
            found[place] = self._checked(int(found[place]))
        return found


class FieldBlobs:
    """The blobs of one field of a reader.

    Args:
        reader: The reader of the samples.
        name: Name of the field.
    """

    def __init__(self, reader: Reader, name: str) -> None:
        self.reader, self.name = reader, name

    def __len__(self) -> int:
        return len(self.reader)

    def size(self, index: int) -> int:
        """Return the size of one blob in bytes."""
        return self.reader.size(index, self.name)

    def read(self, index: int) -> Buffer:
        """Return the bytes of one blob."""
        return self.reader.read(index, self.name)

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Return several blobs in the requested order."""
        return self.reader.read_many(indices, self.name)

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """Return where a blob is. See `TableReader.span`."""
        return self.reader.span(index, self.name)


def _read_places(places: list[Place], in_stored_order: bool) -> list[Buffer]:
    """Announce and read blobs in the order in which they are stored. Return them in the order of `places`."""
    if not in_stored_order:
        order = sorted(range(len(places)), key=lambda number: places[number][1])
        found = _read_places([places[number] for number in order], True)
        return [found[number] for number in np.argsort(order).tolist()]
    announce(places)
    return [memoryview(source.read(start, stop)) for source, start, stop in places]


def _reduced(view: memoryview) -> tuple[Any, ...]:
    """Return how to pickle a view for another process: as a copy of its bytes.

    Without this, a `DataLoader` worker whose data set returns the result of `read` cannot send it, and the
    training waits forever.
    """
    if view.format != "B" or view.ndim != 1:  # not one of ours
        raise TypeError(f"cannot pickle a memoryview of format {view.format!r} in {view.ndim} dimensions")
    return memoryview, (view.tobytes(),)


# Registered here, since a process that has a reader has imported this module.
ForkingPickler.register(memoryview, _reduced)


def no_values(count: int) -> pa.Table:
    """Return a table with this number of rows and without columns."""
    return pa.table({"row": from_numpy(np.arange(count, dtype=np.int64))}).select([])


class SampleIndexError(UsageError, IndexError):
    """The error for an index outside the reader.

    It is also an IndexError, so that iteration protocols end.
    """


def write_added(reader: Reader, values: pa.Table, path: Path, rule: Mapping[str, Any]) -> ContentDigest:
    """Write columns as a file of fields for the samples of a reader.

    The content digest of the file is written beside it. The file records which samples it belongs to, and in
    which order.

    Args:
        reader: Reads the packed set.
        values: The columns, with one row per sample, in the order of the reader.
        path: The file to write.
        rule: The rule by which the values were computed, for the record. It is empty if they came from a
            table.

    Returns:
        The content digest of the file.
    """
    binding = _binding(reader) | {"keys": key_digest(reader.keys()), _RULE: rule}
    schema = values.schema.with_metadata({_METADATA: dump_record(binding)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        columns = [one_chunk(each) for each in values.columns]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    digest = digest_file(path)
    digest.save(sidecar(path))
    return digest


def added_columns(reader: Reader, packed: Iterable[str], files: Iterable[Path]) -> dict[str, pa.Array]:
    """Return the values that were added to a packed set, as one column per field, by the name of the field.

    Args:
        reader: Reads the packed set.
        packed: Names of the fields that were packed.
        files: The files with the added values.

    Raises:
        FormatError: A file is damaged, belongs to other samples, or has a field whose name is taken.
    """
    columns: dict[str, pa.Array] = {}
    taken = dict.fromkeys(packed, reader.path)
    for file in files:
        added = read_added(file, reader)
        for name in added.column_names:
            if name in taken:
                raise FormatError(
                    f"{file} has the field {name!r}, and so has {taken[name]}",
                    expected="another name for each field",
                    next_step=f"Move {file.name} away, and annotate again with --field OTHER={name}",
                )
            columns[name], taken[name] = one_chunk(added.column(name)), file
    return columns


def read_added(file: Path, reader: Reader, *, full: bool = False) -> pa.Table:
    """Return the columns of a file of fields, over the memory of the file if it is mapped.

    Args:
        file: A file that `write` wrote.
        reader: Reads the packed set that the file lies beside.
        full: Whether to compare all keys. Otherwise, 64 keys are compared.

    Raises:
        FormatError: The file is damaged, or belongs to other samples.
    """
    with damage_reported(file):
        found = ByteFile(file)
        with pa.ipc.open_file(pa.py_buffer(found.read(0, found.size))) as opened:
            table, batches = opened.read_all(), opened.num_record_batches
        with raised_as(ManifestError, FormatError), summary_of(file):
            values = value_table({each: table.column(each) for each in table.column_names})
    recorded = load_record((table.schema.metadata or {}).get(_METADATA))
    if batches != 1 or not values.num_columns or recorded.get("rows") != len(values):
        what = f"{batches} record batches, {values.num_columns} columns and {len(values)} rows"
        raise damaged(file, f"it has {what}", f"one batch of {recorded.get('rows')} rows")
    keys = {"keys": key_digest(reader.keys())} if full else {}
    _refuse_others(file, reader, recorded, _binding(reader) | keys)
    return values


def rule_of_added(file: Path) -> dict[str, Any]:
    """Return the rule by which the values of a file were computed. It is empty if they came from a table."""
    with damage_reported(file), pa.OSFile(str(file)) as opened:
        metadata = pa.ipc.open_file(opened).schema.metadata or {}
        return dict(load_record(metadata.get(_METADATA)).get(_RULE) or {})


def _binding(reader: Reader) -> dict[str, Any]:
    """Return what a file of fields records about its samples, as far as that can be computed quickly.

    These are the number of samples, the set digest, and a digest of 64 keys.
    """
    some = column([reader.key(row) for row in spread(len(reader), _COMPARED)], pa.string())
    return {"rows": len(reader), "set": reader.set_digest, "some_keys": key_digest(some)}


def _refuse_others(file: Path, reader: Reader, recorded: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse a file that was not made for the samples of a reader in their order."""
    for name, value in found.items():
        if recorded.get(name) != value:
            raise FormatError(
                f"{file} was not made for {reader.path}: its {_NAMES[name]} is {recorded.get(name)}, and "
                f"there it is {value}",
                expected="the fields of these samples, in the order in which they are packed",
                next_step=f"Move {file.name} away, and make it again with: smallfiles annotate",
            )
