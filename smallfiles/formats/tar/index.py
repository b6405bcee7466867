"""The index beside a shard, and the table that the indexes of all shards are: one read fetches a sample.

`shard-000000.tar.index.arrow` is an Arrow IPC file (one uncompressed record batch: key, offset, size,
target, meta; `blob.mask.offset` and `blob.mask.size` for further files `mask`; `value.age` for values `age`)
that is memory-mapped: a million samples open in milliseconds, and all workers of a node share the pages. It
contains the size of its tar, and a hash of the tar's first and last 4 KiB.

The trap: after a tar was packed again, an old index points to wrong places; it is refused. Notebook 05
opens a shard with and without an index.
"""

from __future__ import annotations

import contextlib
import json
import resource
from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column, from_numpy, one_chunk, scalar, to_numpy
from smallfiles.digests import hash_block
from smallfiles.errors import DamagedFileError, FormatError, refuse_shortage
from smallfiles.fields import META, TARGETS
from smallfiles.formats.bytefile import Access, ByteFile, arrow_file, damaged
from smallfiles.formats.output import OutputFile, SampleColumns, write_table
from smallfiles.formats.table import (
    ByteSource,
    Column,
    Extents,
    Place,
    SampleTable,
    dump_record,
    load_record,
    recorded_blobs,
    recorded_values,
)
from smallfiles.formats.tar.fields import TarSamples
from smallfiles.formats.tar.streams import cannot_seek
from smallfiles.samples import OWN_TYPES, Schema
from smallfiles.storage import answered

SUFFIX = ".index.arrow"
_FACTS = b"smallfiles.tar"
_EDGE_BYTES = 4096
_PLACE = ("offset", "size")
_OWN = (*TARGETS, META)
"""Columns of values that an index stores under the field's own name. Other columns have a prefix."""
_BLOB, _VALUE = "blob.", "value."
_MOST_OPEN_SHARDS = 128


class Places(NamedTuple):
    """The suffix of a field's files in a tar, and the offset and the size of each file in bytes."""

    suffix: str
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Index:
    """The index of one shard: where its samples are, and their keys and values.

    Args:
        keys: The key of each sample.
        blobs: The places of the files of each field. The default field is the first, and its name is empty.
        values: Columns by name: `label` or `captions`, `meta`, and additional values.
        provenance: How the shard was made. It is empty for tars of other programs.
        file_bytes: Size of the tar file in bytes when the index was made.
        edges: Hash of the tar file's first and last 4 KiB.
    """

    keys: pa.StringArray
    blobs: dict[str, Places]
    values: Mapping[str, pa.Array]
    provenance: dict[str, Any] = field(default_factory=dict)
    file_bytes: int = 0
    edges: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """The suffix or the type of each field, by the name of the field.

        A field of files has a suffix, and a field of values has a type. The default field is not included.
        JSON objects are not included, because some shards of a set may lack them.
        """
        values = {name: str(each.type) for name, each in self.values.items() if name != META}
        return values | {name: each.suffix for name, each in self.blobs.items() if name}


def place_columns(field: str) -> list[str]:
    """Return the names of the columns with the offset and the size of a field's files."""
    return [f"{_BLOB}{field}.{what}" if field else what for what in _PLACE]


def of_columns(columns: SampleColumns, schema: Schema, **facts: Any) -> Index:
    """Make the index of a shard that was written. `facts` are the other attributes of the index."""
    found, values = columns.finish()
    blobs = {
        blob.name: Places(blob.suffix, *(to_numpy(found[column]) for column in place_columns(blob.name)))
        for blob in schema.all_blobs
    }
    own = {name: values.pop(name) for name in TARGETS if name in values}
    texts = found[META]  # empty where there is none
    own[META] = pc.if_else(pc.equal(pc.binary_length(texts), scalar(0)), scalar(None), texts)
    return Index(found["key"], blobs, own | values, **facts)


def index_path(path: Path) -> Path:
    """Return the path of the index of the tar `path`."""
    return path.with_name(path.name + SUFFIX)


def edges(file: ByteFile) -> str:
    """Return a hash of the first and last 4 KiB of a tar. By this hash, an index recognises its tar."""
    head = bytes(file.read(0, min(_EDGE_BYTES, file.size)))
    return hash_block(head + bytes(file.read(max(0, file.size - _EDGE_BYTES), file.size)))


def of_annotated(annotated: TarSamples, kind: str, access: Access) -> Index:
    """Make the index of a tar that has no index file.

    Args:
        annotated: The samples of the tar.
        kind: Whether the whole set has `label` or `captions`.
        access: How the tar is opened.
    """
    data, further = annotated.data, annotated.values
    further_places = {
        name: Places(each.suffix, each.data.offsets, each.data.sizes)
        for name, each in annotated.blobs.items()
    }
    return Index(
        data.names,
        {"": Places("", data.offsets, data.sizes), **further_places},
        {
            kind: column(annotated.targets(kind), OWN_TYPES[kind]),
            META: column(annotated.metas, OWN_TYPES[META]),
            **({} if further is None else {name: one_chunk(further[name]) for name in further.column_names}),
        },
        provenance=data.record,
        file_bytes=data.file_bytes,
        edges=edges(ByteFile(data.path, access)),
    )


def save(index: Index, path: Path, *, digest: bool) -> list[Path]:
    """Write the index of the tar `path` beside the tar.

    Returns:
        The paths of the files that were written.
    """
    facts = {
        "version": 1,
        "file_bytes": index.file_bytes,
        "edges": index.edges,
        "frames": [],  # of a compressed tar, which only version 0.1.0 wrote
        "provenance": dump_record(index.provenance),
    }
    out = index_path(path)
    places = {
        column: from_numpy(each)
        for name, found in index.blobs.items()
        for column, each in zip(place_columns(name), found[1:], strict=True)
    }
    columns = {"key": index.keys, **{name: places[name] for name in _PLACE}}
    columns |= {name: each for name, each in index.values.items() if name in _OWN} | places
    columns |= {f"{_VALUE}{name}": each for name, each in index.values.items() if name not in _OWN}
    batch = pa.record_batch([*columns.values()], names=[*columns])
    batch = batch.replace_schema_metadata({_FACTS: json.dumps(facts, sort_keys=True)})
    with OutputFile(out, digest=digest) as file:
        write_table(batch, file.append)
        return [*file.finish()]


def load(path: Path, access: Access) -> Index:
    """Read the index of the tar `path`, through a memory map on a local disk.

    Raises:
        DamagedFileError: The index is damaged, or it is missing; then the cause is a `FileNotFoundError`.
        FormatError: The tar is compressed.
    """
    file = index_path(path)
    try:
        with answered(file, arrow_file, file, access) as source:  # buffers outlive the descriptor
            found, metadata = read_table(source, _PLACE)
        if META not in found:
            raise ValueError(f"it has no column {META}")
        facts = json.loads(metadata[_FACTS])
        record = load_record(facts["provenance"])
        blobs, values = _fields(found, record)
        if facts["frames"]:
            raise cannot_seek(path)
        return Index(
            found["key"],
            blobs,
            {name: found[name] for name in _OWN if name in found} | values,
            record,
            int(facts["file_bytes"]),
            str(facts["edges"]),
        )
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, RecursionError) as error:
        refuse_shortage(error, file)
        raise _bad_index(file, str(error)) from error


def _fields(
    found: dict[str, pa.Array], record: dict[str, Any]
) -> tuple[dict[str, Places], dict[str, pa.Array]]:
    """Return the places of all files by field, and the columns of additional values by name.

    The record names these fields and values, and their types.
    """
    blobs, suffixes, stored = {}, {"": "", **recorded_blobs(record)}, list(found)
    for name in sorted(suffixes, key=lambda name: stored.index(place_columns(name)[0])):
        columns = [found[column] for column in place_columns(name)]
        if any(column.type != pa.int64() or column.null_count for column in columns):
            raise ValueError(f"the places of {name} are no whole numbers")
        blobs[name] = Places(suffixes[name], *map(to_numpy, columns))
    kinds = recorded_values(record)
    values = {name: found[f"{_VALUE}{name}"] for name in kinds}
    if odd := [name for name, found_values in values.items() if str(found_values.type) != kinds[name]]:
        raise ValueError(f"values {odd[0]} of type {values[odd[0]].type}")
    return blobs, values


def _bad_index(file: Path, problem: str) -> DamagedFileError:
    return damaged(
        file,
        f"it cannot be read as an index ({problem})",
        "the index that was written beside the tar",
        "Copy it again, or delete it: the tar is then scanned once when it is opened",
    )


def check_bound(file: ByteFile, index: Index) -> None:
    """Refuse an index that was made for another state of the tar.

    Args:
        file: The tar.
        index: Its index.

    Raises:
        DamagedFileError: The index does not match the tar.
    """
    check_size(file.path, file.size, index)
    if edges(file) != index.edges:
        raise _stale(file.path, "it begins or ends differently from the file that its index was made for")


def check_size(path: Path, file_bytes: int, index: Index) -> None:
    """Refuse an index that was made for a tar of another size.

    This is the cheap half of `check_bound`, for opening many shards.
    """
    if file_bytes != index.file_bytes:
        raise _stale(path, f"it has {file_bytes:,} bytes, and its index was made for {index.file_bytes:,}")


def field_bytes(path: Path, found: Index, field: str) -> int:
    """Return the total size in bytes of the files of one field of the tar `path`.

    The name of the default field is empty.

    Raises:
        DamagedFileError: A size is negative or larger than the tar. The sum of such sizes could overflow.
    """
    sizes = found.blobs[field].sizes
    if ((sizes < 0) | (sizes > found.file_bytes)).any():
        raise _bad_index(index_path(path), "sizes beyond that of the tar")
    return int(sizes.sum())


def _stale(path: Path, problem: str) -> FormatError:
    next_step = f"Copy both again; if the tar was replaced on purpose, delete {index_path(path).name}"
    return damaged(path, problem, "a tar and its own index", next_step)


def read_table(source: Any, numbers: Container[str]) -> tuple[dict[str, pa.Array], dict[bytes, bytes]]:
    """Read the columns of an Arrow file that `write_table` wrote, and validate them fully.

    The validation is needed because native code follows the offsets of the columns.

    Args:
        source: The file or its bytes, which are not copied.
        numbers: Names of integer columns in addition to the label.

    Returns:
        The columns by name, and the metadata of the file.

    Raises:
        ValueError: `write_table` did not write this file.
        KeyError: The file has no keys, or neither labels nor captions.
        pa.ArrowException: The file is damaged.
    """
    reader = pa.ipc.open_file(source)
    if reader.num_record_batches != 1:
        raise ValueError(f"{reader.num_record_batches} record batches instead of one")
    batch = reader.get_batch(0)
    batch.validate(full=True)
    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    kinds = {"key": pa.string(), **OWN_TYPES}
    for name, values in found.items():
        kind = pa.int64() if name in numbers else kinds.get(name, values.type)
        if values.type != kind or (values.null_count and (name in numbers or name in kinds) and name != META):
            raise ValueError(f"column {name} has type {values.type} and {values.null_count} nulls")
    if "key" not in found or not found.keys() & {*TARGETS}:
        raise KeyError("key, label or captions")
    return found, batch.schema.metadata or {}


def _most_open() -> int:
    """Return how many shards one process may keep open: at most a quarter of its file descriptors."""
    return max(2, min(_MOST_OPEN_SHARDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


class Shards:
    """The shards that one process has opened: the indexes of all, and the data files that were read last."""

    def __init__(self, paths: list[Path], indexes: list[Index], access: Access) -> None:
        self.most_open = _most_open()
        # A view of a mapping keeps a descriptor of its shard, and a batch may need a thousand shards.
        self.spread = access == "auto" and len(paths) > self.most_open
        self.paths, self.indexes, self._access = paths, indexes, "pread" if self.spread else access
        self.starts = [0, *accumulate(len(found.keys) for found in indexes)]
        self.first = next((found for found in indexes if len(found.keys)), indexes[0])
        has_meta = any(found.values[META].null_count < len(found.keys) for found in indexes)
        values = self.first.values.items()
        self.kinds = {name: each.type for name, each in values if name != META or has_meta}
        self._stores: dict[int, ByteSource] = {}

    def place(self, position: int) -> tuple[int, int]:
        """Return the number of the shard that contains a sample, and the row of the sample in the shard."""
        number = bisect_right(self.starts, position) - 1
        return number, position - self.starts[number]

    def store(self, number: int) -> ByteSource:
        """Return the data file of a shard. It is opened at first use."""
        store = self._stores.get(number)
        if store is None:
            found = self.indexes[number]
            store = ByteFile(self.paths[number], self._access)
            check_bound(store, found)
            if len(self._stores) >= self.most_open:
                with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread did
                    self._stores.pop(next(iter(self._stores)))
            self._stores[number] = store
        return store

    def span(self, position: int, field: str = "") -> tuple[int, int, int]:
        """Return the shard number, the first byte, and the end (exclusive) of one sample's file in a field.

        The name of the default field is empty.
        """
        number, row = self.place(position)
        places = self.indexes[number].blobs[field]
        start = places.offsets.item(row)
        return number, start, start + places.sizes.item(row)


class ShardMembers(Extents):
    """The members of one field in all shards.

    Args:
        shards: The shards.
        field: Name of the field in the indexes. It is empty for the default field.
        suffix: Suffix of the members.
    """

    def __init__(self, shards: Shards, field: str, suffix: str = "") -> None:
        super().__init__(suffix)
        self._shards, self._field = shards, field

    def place(self, row: int) -> Place:
        """Return where the member of one sample is.

        Raises:
            DamagedFileError: The shard ends before the end of the member.
        """
        shards = self._shards
        number, start, stop = shards.span(row, self._field)
        store = shards.store(number)
        if not 0 <= start <= stop <= store.size:
            key = shards.indexes[number].keys[row - shards.starts[number]]
            what = f"it lacks bytes {start:,} to {stop:,}, where its index has {key}"
            raise damaged(shards.paths[number], what)
        return store, start, stop

    def size(self, row: int) -> int:
        """Return the size of a member in bytes. It comes from the index, so that the shard is not opened."""
        _, start, stop = self._shards.span(row, self._field)
        return stop - start

    def span(self, row: int) -> tuple[Path, int, int] | None:
        """Return the path of the shard, the first byte, and the end (exclusive) of one sample's member."""
        number, start, stop = self._shards.span(row, self._field)
        return self._shards.paths[number], start, stop

    def total_bytes(self) -> int:
        shards = self._shards
        pairs = zip(shards.paths, shards.indexes, strict=True)
        return sum(field_bytes(path, found, self._field) for path, found in pairs if len(found.keys))


class TarTable(SampleTable):
    """The table of the samples in all shards of a tar set.

    Args:
        path: The tar, or the folder of shards.
        shards: The opened shards.
        classes: Class names from the folders in tars of other programs.
        facts: Additional facts for `info`.
    """

    format = "tar"
    outlives_fork = True

    def __init__(self, path: Path, shards: Shards, classes: tuple[str, ...], **facts: Any) -> None:
        blobs = {name: ShardMembers(shards, name, each.suffix) for name, each in shards.first.blobs.items()}
        size = sum(found.file_bytes for found in shards.indexes)
        super().__init__(path, shards.starts[-1], blobs, shards.indexes[0].provenance, size)
        self.shards, self._classes, self._facts = shards, classes, facts

    @property
    def classes(self) -> tuple[str, ...]:
        return super().classes or self._classes

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        return self.shards.kinds

    def load(self, name: str) -> pa.ChunkedArray:
        indexes = self.shards.indexes
        if name == "key":
            return pa.chunked_array([found.keys for found in indexes])
        return pa.chunked_array(
            [found.values[name] for found in indexes if len(found.keys)], self.kinds[name]
        )

    def column(self, name: str) -> Column:
        return super().column(name) if name == "key" else self.load(name)  # over the memory of the indexes

    def key(self, row: int) -> str:
        number, row = self.shards.place(row)
        return str(self.shards.indexes[number].keys[row].as_py())

    def take(self, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Column]:
        """Return some rows of columns, shard by shard. Arrow would first join the columns of all shards."""
        shards, order = self.shards, np.argsort(rows, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        cuts = np.searchsorted(rows[order], shards.starts)
        parts = [
            (found.values, from_numpy(rows[order[first:last]] - start))
            for found, start, first, last in zip(shards.indexes, shards.starts, cuts, cuts[1:], strict=False)
            if first < last
        ]
        some = {name: [values[name].take(own) for values, own in parts] for name in names}
        nothing = {name: shards.first.values[name].slice(0, 0) for name in names}
        return {name: pa.concat_arrays([nothing[name], *some[name]]).take(from_numpy(back)) for name in names}

    def parts(self, rows: list[int]) -> list[list[int]]:
        """Divide samples into small parts if there are very many shards.

        Reading a part may open one shard per sample, in addition to the shards that are kept open.
        """
        few = max(1, self.shards.most_open // 8) if self.shards.spread else max(1, len(rows))
        return [rows[start : start + few] for start in range(0, len(rows), few)]

    def shard_sizes(self) -> tuple[int, ...]:
        return tuple(len(found.keys) for found in self.shards.indexes)

    def about(self) -> dict[str, Any]:
        return {
            "layout": "webdataset",
            "target": next(name for name in TARGETS if name in self.kinds),
            "shards": len(self.shards.paths),
            **self._facts,
        }
