"""What a tree of files cannot store: the table of samples inside the squashfs file, as an Arrow file.

The table lies after the data of all files and belongs to none of them. Older files have it as `TABLE`.

    key: string     label: int64 or captions: list<string>     meta: string, if any sample has one
    bytes: int64    number of the sample's bytes
    start: int64    where they begin in the squashfs file; left out if they are not in one piece
    mask/bytes, mask/start: the same for the further files of a field, here mask
    further values: a column each, by the name of the field, which has no slash

With it, a raw squashfs file of a million samples opens in milliseconds: no inode needs to be read.

The trap: a tree that is unpacked and packed again by another tool has no table, and its labels are those of
its class folders. 32 bytes at the end of the data (`Extent`) contain the offset of the table and their own;
if these are wrong, there is no table. Notebook 06 looks inside.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pysquashfs.errors import DamagedImageError, MissingToolError, SquashFSError
from smallfiles.arrays import to_numpy
from smallfiles.errors import (
    DamagedFileError,
    FormatError,
    MissingPackageError,
    SmallfilesError,
    refuse_shortage,
)
from smallfiles.fields import META, TARGETS, is_storable, name_problem, value_column
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import damage_reported
from smallfiles.formats.columns import SampleColumns, read_table, write_table
from smallfiles.samples import OWN_TYPES, Buffer, Schema

TABLE = ".smallfiles/samples.arrow"
"""The table in files that were packed before it left the tree."""

PROVENANCE = b"smallfiles"
ALIGNMENT = 64
_PLACE = struct.Struct("<8s3Q")
_MAGIC = b"sfplace\x01"
_TEXT = """\

This image was packed by "smallfiles". Every sample is a file at its own path.
An Arrow file after this text has the keys, labels (or captions) and where they came from:

    import pyarrow as pa, struct
    image = open("x.sqfs", "rb").read()
    (end,) = struct.unpack_from("<Q", image, 64)
    start, stop = struct.unpack_from("<2Q", image, end - 24)
    table = pa.ipc.open_file(image[start:stop]).read_all()
    print(table, table.schema.metadata[b"smallfiles"])
"""


@dataclass(frozen=True)
class Extent:
    """Offsets in the squashfs file: of the table, and of these 32 bytes themselves."""

    start: int
    stop: int
    own: int

    def dumps(self) -> bytes:
        """The 32 bytes."""
        return _PLACE.pack(_MAGIC, self.start, self.stop, self.own)

    @classmethod
    def loads(cls, data: Buffer, own: int) -> Extent | None:
        """Read them; None if something else is at byte `own`."""
        if len(data) != _PLACE.size:
            return None
        magic, *numbers = _PLACE.unpack(data)
        place = cls(*numbers)
        return place if magic == _MAGIC and place.own == own and place.start <= place.stop <= own else None


PLACE_BYTES = _PLACE.size


def readme(position: int) -> bytes:
    """The text, padded so that what follows it begins at a multiple of `ALIGNMENT`."""
    text = _TEXT.encode("ascii")
    return text + b"\n" * (-(position + len(text)) % ALIGNMENT)


def table(columns: SampleColumns, schema: Schema, options: Any) -> list[Buffer]:
    """Return the pieces of the Arrow file.

    Args:
        columns: Of all samples.
        schema: What is packed.
        options: For the provenance record.
    """
    found, values = columns.finish()
    own = {name: values.pop(name) for name in OWN_TYPES if name in values}
    required = {**found, **own}.keys() - {META}
    found = {"key": found.pop("key"), **own, **found, **values}
    arrow_schema = pa.schema(
        [pa.field(name, column.type, nullable=name not in required) for name, column in found.items()],
        {PROVENANCE: provenance.dumps(provenance.record("squashfs", schema, options))},
    )
    batch = pa.record_batch([*found.values()], schema=arrow_schema)
    views: list[Buffer] = []
    write_table(batch, views.extend)
    return views


@dataclass(frozen=True)
class Samples:
    """The table of a squashfs file, or its substitute in a file of another program.

    Args:
        keys: Of all samples.
        values: Columns by name: `label` or `captions`, `meta` if there are JSON objects, and all others.
        classes: Names of the classes in label order.
        sizes: Bytes of each file, by field; the first has no name. Empty if only the inodes contain them.
        starts: Offsets of their bytes likewise.
        record: Provenance; empty for files of other programs.
    """

    keys: pa.StringArray
    values: Mapping[str, pa.Array]
    classes: tuple[str, ...]
    sizes: Mapping[str, np.ndarray] = field(default_factory=dict)
    starts: Mapping[str, np.ndarray] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)


def load(data: Buffer, path: Path) -> Samples:
    """Read the table.

    Args:
        data: The Arrow file; it is not copied.
        path: The squashfs file, for messages.

    Raises:
        DamagedFileError: It is not one of ours.
    """
    with damage_reported(path, "its table of samples:"):
        buffer = pa.py_buffer(data)
        kinds = pa.ipc.open_file(buffer).schema
        places = [name for name in kinds.names if name.rpartition("/")[2] in ("bytes", "start")]
        found, metadata = read_table(buffer, places)
        record = provenance.loads(metadata.get(PROVENANCE))
        sizes, starts = (
            {name.rpartition("/")[0]: to_numpy(found[name]) for name in places if name.endswith(what)}
            for what in ("bytes", "start")
        )
        values = {name: found[name] for name in (*TARGETS, META) if name in found}
        values |= {
            each.name: value_column(each.name, found[each.name])
            for each in kinds
            if name_problem(each.name) is None and is_storable(each.type)
        }
        return Samples(found["key"], values, provenance.class_names(record), sizes, starts, record)


@contextmanager
def as_sentences() -> Iterator[None]:
    """Turn an error of `pysquashfs` into the error of this package with the same sentence."""
    try:
        yield
    except SquashFSError as error:
        refuse_shortage(error, "the squashfs file")
        kind: type[SmallfilesError] = FormatError
        if isinstance(error, DamagedImageError):
            kind = DamagedFileError
        elif isinstance(error, MissingToolError):
            kind = MissingPackageError
        same = kind(error.got, expected=error.expected, next_step=error.next_step)
        if isinstance(cause := error.__cause__, ImportError):  # our sentence names the version too
            same = MissingPackageError.of_import(cause, error.expected.removeprefix("it for ")) or same
        raise same from error
