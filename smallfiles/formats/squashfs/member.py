"""What a tree of files cannot say: the table of samples inside the image, as an Arrow file.

    key: string     label: int64 or captions: list<string>     meta: string, if any sample has one
    start: int64    where the sample's bytes begin in the image; left out where they are not in one piece

With it a raw image of a million samples opens in milliseconds: its inodes need not be read at all.

The trap: someone may unpack the image, change files and pack the tree again with other tools; then the
table lies elsewhere and its positions are wrong. 32 bytes at the end of the data (`Place`) say where it
lies and where they lie themselves; if that is not so, files are found by name. Notebook 06 looks inside.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles.formats import provenance
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.columns import Columns
from smallfiles.formats.output import ArrowSink
from smallfiles.samples import Buffer, Meta, Schema, Target

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
class Place:
    """Where the table lies in the image, and these 32 bytes themselves."""

    start: int
    stop: int
    own: int

    def dumps(self) -> bytes:
        """The bytes of the file `PLACE`."""
        return _PLACE.pack(_MAGIC, self.start, self.stop, self.own)

    @classmethod
    def loads(cls, data: Buffer, own: int) -> Place | None:
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


def table(columns: Columns, schema: Schema, options: Any, piece_bytes: int) -> Iterator[Buffer]:
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
    views: list[memoryview] = []
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
        labels: A number each; None where there are captions.
        captions: Lists of strings, or None.
        metas: JSON texts or nulls, or None.
        sizes: Bytes of each sample; None where only the image knows.
        starts: Where their bytes begin; None where only the image knows.
        classes: Names of the classes in label order.
        record: Provenance; empty for images of others.
    """

    keys: pa.StringArray
    labels: np.ndarray | None
    captions: pa.ListArray | None = None
    metas: pa.StringArray | None = None
    sizes: np.ndarray | None = None
    starts: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    record: dict[str, Any] | None = None

    def target(self, index: int) -> Target:
        """Label or captions of one sample."""
        if self.labels is not None:
            return int(self.labels.item(index))
        captions: list[str] = self.captions[index].as_py() if self.captions is not None else []
        return captions

    def meta_text(self, index: int) -> str | None:
        """The JSON object of one sample as text."""
        text: str | None = None if self.metas is None else self.metas[index].as_py()
        return text


def load(data: Buffer, path: Path) -> Samples:
    """Read the table.

    Args:
        data: The Arrow file; it is not copied.
        path: The image, for messages.

    Raises:
        DamagedFileError: It is not one of ours.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        if reader.num_record_batches != 1:
            raise ValueError(f"{reader.num_record_batches} batches")
        batch = reader.get_batch(0)
        batch.validate(full=True)
        columns = {field.name: batch.column(number) for number, field in enumerate(batch.schema)}
        record = provenance.loads((batch.schema.metadata or {}).get(PROVENANCE))
        keys, target = columns["key"], columns.get("label", columns.get("captions"))
        if keys.type != pa.string() or keys.null_count or target is None or target.null_count:
            raise ValueError("no keys or no targets")
        label = "label" in columns
        if not label and target.type != pa.list_(pa.string()):
            raise ValueError(f"captions of type {target.type}")
        metas = columns.get("meta")
        if metas is not None and metas.type != pa.string():
            raise ValueError(f"JSON objects of type {metas.type}")
        return Samples(
            keys,
            _numbers(target) if label else None,
            None if label else target,
            metas,
            _numbers(columns["bytes"]),
            _numbers(columns["start"]) if "start" in columns else None,
            provenance.class_names(record),
            record,
        )
    except Exception as error:  # pyarrow has a dozen for damaged files
        raise damaged(path, f"its table of samples ({TABLE}): {str(error).partition(chr(10))[0]}") from error


def _numbers(column: pa.Array) -> np.ndarray:
    # Not to_numpy, which imports pandas where that is installed: a second a worker.
    if column.type != pa.int64() or column.null_count:
        raise ValueError(f"a column of {column.type}")
    if not len(column):
        return np.zeros(0, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


def meta_of(text: str | None, index: int, path: Path) -> Meta | None:
    """A JSON object from its text.

    Raises:
        DamagedFileError: It is none.
    """
    try:
        found: Meta | None = None if text is None else json.loads(text)
    except ValueError as error:
        raise damaged(path, f"the JSON object of sample {index} is {error}") from error
    return found
