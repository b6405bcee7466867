"""The index beside a shard: where each sample is, so that one read fetches it.

`shard-000000.tar.index.arrow` is an Arrow IPC file (one uncompressed record batch: key, offset, size,
target, meta; `blob.mask.offset` and `blob.mask.size` for further files `mask`; `value.age` for values `age`)
that is memory-mapped: a million samples open in milliseconds, and all workers of a node share the pages. It
contains the size of its tar, and a hash of the tar's first and last 4 KiB.

The trap: after a tar was packed again, an old index points to wrong places; it is refused. Notebook 05
opens a shard with and without an index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import Access, ByteFile, arrow_file, damaged
from smallfiles.formats.columns import SampleColumns, read_table, write_table
from smallfiles.formats.output import OutputFile
from smallfiles.formats.tar.fields import Annotated
from smallfiles.formats.tar.grouping import value_kinds
from smallfiles.formats.tar.streams import cannot_seek
from smallfiles.samples import OWN_TYPES, Schema
from smallfiles.storage import answered

SUFFIX = ".index.arrow"
_FACTS = b"smallfiles.tar"
_EDGE_BYTES = 4096
_PLACE = ("offset", "size")
_OWN = (*TARGETS, META)
"""Columns of values that an index names as the field; others have a prefix."""
_BLOB, _VALUE = "blob.", "value."


class Places(NamedTuple):
    """Where the files of a field are: their suffix, and offset and size of each."""

    suffix: str
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Index:
    """Where the samples of one shard are.

    Args:
        keys: One key per sample.
        blobs: The places of the files of each field; the default field is the first, and has no name.
        values: Columns by name: `label` or `captions`, `meta`, and further values.
        provenance: How the shard was made; empty for tars from elsewhere.
        file_bytes: Size of the tar file when the index was made.
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
        """Name and kind of each further file and value, JSON objects excepted: some shards may lack them."""
        values = {name: str(each.type) for name, each in self.values.items() if name != META}
        return values | {name: each.suffix for name, each in self.blobs.items() if name}


def place_columns(field: str) -> list[str]:
    """Names of the columns with offset and size of the files of a field."""
    return [f"{_BLOB}{field}.{what}" if field else what for what in _PLACE]


def of_columns(columns: SampleColumns, schema: Schema, **facts: Any) -> Index:
    """The index of a shard that was written; `facts` are its other fields."""
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
    """The file name of the index of the tar `path`."""
    return path.with_name(path.name + SUFFIX)


def edges(file: ByteFile) -> str:
    """A hash of the first and last 4 KiB of a tar, by which its index recognises it."""
    head = bytes(file.read(0, min(_EDGE_BYTES, file.size)))
    return hash_block(head + bytes(file.read(max(0, file.size - _EDGE_BYTES), file.size)))


def of_annotated(annotated: Annotated, kind: str, access: Access) -> Index:
    """The index of a tar without an index file.

    Args:
        annotated: Its samples.
        kind: Whether the whole set has `label` or `captions`.
        access: How the file is opened.
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
    """Write the index of the tar `path`.

    Returns:
        The files written.
    """
    facts = {
        "version": 1,
        "file_bytes": index.file_bytes,
        "edges": index.edges,
        "frames": [],  # of a compressed tar, which only version 0.1.0 wrote
        "provenance": provenance.dumps(index.provenance),
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
        DamagedFileError: The index is not what was written.
        FormatError: The tar is compressed.
    """
    file = index_path(path)
    try:
        with answered(file, arrow_file, file, access) as source:  # buffers outlive the descriptor
            found, metadata = read_table(source, _PLACE)
        if META not in found:
            raise ValueError(f"it has no column {META}")
        facts = json.loads(metadata[_FACTS])
        record = provenance.loads(facts["provenance"])
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
    """The places of all files, and the columns of further values; as the record names them."""
    blobs, suffixes, stored = {}, {"": "", **provenance.blob_suffixes(record)}, list(found)
    for name in sorted(suffixes, key=lambda name: stored.index(place_columns(name)[0])):
        columns = [found[column] for column in place_columns(name)]
        if any(column.type != pa.int64() or column.null_count for column in columns):
            raise ValueError(f"the places of {name} are no whole numbers")
        blobs[name] = Places(suffixes[name], *map(to_numpy, columns))
    kinds = value_kinds(record)
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
    """Refuse an index that belongs to another state of the file.

    Args:
        file: The tar.
        index: Its index.

    Raises:
        DamagedFileError: Tar and index do not fit.
    """
    check_size(file.path, file.size, index)
    if edges(file) != index.edges:
        raise _stale(file.path, "it begins or ends differently from the file that its index was made for")


def check_size(path: Path, file_bytes: int, index: Index) -> None:
    """The cheap half of `check_bound`, used when many shards are opened."""
    if file_bytes != index.file_bytes:
        raise _stale(path, f"it has {file_bytes:,} bytes, and its index was made for {index.file_bytes:,}")


def field_bytes(path: Path, found: Index, field: str) -> int:
    """Return the sum of the bytes of one field of the tar `path`; of the default field if it has no name.

    Raises:
        DamagedFileError: A size is impossible in this tar; a sum of such sizes could overflow.
    """
    sizes = found.blobs[field].sizes
    if ((sizes < 0) | (sizes > found.file_bytes)).any():
        raise _bad_index(index_path(path), "sizes beyond that of the tar")
    return int(sizes.sum())


def _stale(path: Path, problem: str) -> FormatError:
    next_step = f"Copy both again; if the tar was replaced on purpose, delete {index_path(path).name}"
    return damaged(path, problem, "a tar and its own index", next_step)
