"""What a tree of files cannot say: the table of samples inside the image, as an Arrow file.

    key: string     label: int64 or captions: list<string>     meta: string, if any sample has one
    start: int64    where the sample's bytes begin in the image; left out where they are not in one piece

With it a raw image of a million samples opens in milliseconds: its inodes need not be read at all.

The trap: someone may unpack the image, change files and pack the tree again with other tools; then the
table lies elsewhere and its positions are wrong. 32 bytes at the end of the data (`Extent`) say where it
lies and where they lie themselves; if that is not so, files are found by name. Notebook 06 looks inside.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.columns import SampleColumns, read_table
from smallfiles.formats.output import ArrowSink
from smallfiles.samples import Buffer, Schema

FOLDER = ".smallfiles"
TABLE = f"{FOLDER}/samples.arrow"
README = f"{FOLDER}/README.txt"
PLACE = f"{FOLDER}/place"
PROVENANCE = b"smallfiles"
ALIGNMENT = 64
_PLACE = struct.Struct("<8s3Q")
_MAGIC = b"sfplace\x01"
_TEXT = """\
This image was packed by "smallfiles". Every sample is a file at its own path.
samples.arrow beside this file holds keys, labels (or captions) and where they came from:

    import pyarrow as pa
    table = pa.ipc.open_file("samples.arrow").read_all()
    print(table, table.schema.metadata[b"smallfiles"])
"""


@dataclass(frozen=True)
class Extent:
    """Where the table lies in the image, and these 32 bytes themselves."""

    start: int
    stop: int
    own: int

    def dumps(self) -> bytes:
        """The bytes of the file `PLACE`."""
        return _PLACE.pack(_MAGIC, self.start, self.stop, self.own)

    @classmethod
    def loads(cls, data: Buffer, own: int) -> Extent | None:
        """Read them; None where something else lies at byte `own`."""
        if len(data) != _PLACE.size:
            return None
        magic, *numbers = _PLACE.unpack(data)
        place = cls(*numbers)
        return place if magic == _MAGIC and place.own == own and place.start <= place.stop <= own else None


PLACE_BYTES = _PLACE.size


def readme(position: int) -> bytes:
    """The text, as long as it takes for what follows it to begin at a multiple of `ALIGNMENT`."""
    text = _TEXT.encode("ascii")
    return text + b"\n" * (-(position + len(text)) % ALIGNMENT)


def table(columns: SampleColumns, schema: Schema, options: Any, piece_bytes: int) -> Iterator[Buffer]:
    """The Arrow file: one record batch, so that each column is one run of memory. Nothing is kept.

    Args:
        columns: Of all samples.
        schema: What is packed.
        options: For the record of provenance.
        piece_bytes: Size of each piece but the last; one for all would be held twice.
    """
    arrow_schema = pa.schema(
        [pa.field(name, kind, nullable=name == "meta") for name, kind in columns.kinds.items()],
        {PROVENANCE: provenance.dumps(provenance.record("squashfs", schema, options))},
    )
    batch = pa.record_batch([columns.finish(name) for name in columns.kinds], schema=arrow_schema)
    views: list[Buffer] = []
    sink = ArrowSink(views.extend)
    with pa.PythonFile(sink, mode="w") as stream, pa.ipc.new_file(stream, arrow_schema) as writer:
        writer.write_batch(batch)
    sink.flush()
    held = bytearray()
    for view in views:
        for start in range(0, len(view), piece_bytes):
            held += view[start : start + piece_bytes]
            if len(held) >= piece_bytes:
                yield held[:piece_bytes]
                del held[:piece_bytes]
    yield held


@dataclass(frozen=True)
class Samples:
    """The table of a finished image, or what stands in for it in an image of others.

    Args:
        keys: Of all samples.
        targets: int64 labels, or lists of captions.
        classes: Names of the classes in label order.
        metas: JSON texts or nulls, or None.
        sizes: Bytes of each sample; None where only the image knows.
        starts: Where their bytes begin; None where only the image knows.
        record: Provenance; empty for images of others.
    """

    keys: pa.StringArray
    targets: pa.Array
    classes: tuple[str, ...]
    metas: pa.StringArray | None = None
    sizes: np.ndarray | None = None
    starts: np.ndarray | None = None
    record: dict[str, Any] = field(default_factory=dict)


def load(data: Buffer, path: Path) -> Samples:
    """Read the table.

    Args:
        data: The Arrow file; it is not copied.
        path: The image, for messages.

    Raises:
        DamagedFileError: It is not one of ours.
    """
    try:
        found, metadata = read_table(pa.py_buffer(data), "bytes", "start")
        record = provenance.loads(metadata.get(PROVENANCE))
        sizes, starts = (to_numpy(found[name]) if name in found else None for name in ("bytes", "start"))
        classes = provenance.class_names(record)
        return Samples(found["key"], found["target"], classes, found.get("meta"), sizes, starts, record)
    except Exception as error:  # pyarrow has a dozen for damaged files
        raise damaged(path, f"its table of samples ({TABLE}): {str(error).partition(chr(10))[0]}") from error


@contextmanager
def as_sentences() -> Iterator[None]:
    """Turn an error of `pysquashfs`, which knows nothing of ours, into one of ours that says the same."""
    try:
        yield
    except SquashFSError as error:
        refuse_shortage(error, "the image")
        kind: type[SmallfilesError] = FormatError
        if isinstance(error, DamagedImageError):
            kind = DamagedFileError
        elif isinstance(error, MissingToolError):
            kind = MissingPackageError
        raise kind(error.got, expected=error.expected, next_step=error.next_step) from error
