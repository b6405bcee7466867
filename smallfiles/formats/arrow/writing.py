"""Write Arrow record batches without making a Python object of any sample's bytes.

The trap: `pa.array(list_of_bytes)` copies every sample twice. Here one call writes the samples of a batch
from the memory into which they were read. Notebook 03.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from smallfiles.arrays import column, from_numpy
from smallfiles.errors import FormatError, UsageError
from smallfiles.fields import META
from smallfiles.formats import embedded
from smallfiles.formats.output import INT64, ArrowSink, OutputFile, SampleColumns, key_of, packed
from smallfiles.formats.table import dump_record, record_of
from smallfiles.samples import BlobField, Buffer, Packed, Sample, Schema

BINARY_LIMIT = 2**31 - 1
"""The most bytes that a `binary` column can hold in one batch. `large_binary` has no limit."""

UINT16 = range(2**16)
PROVENANCE = b"smallfiles"
FACTS = b"smallfiles.arrow"
"""Metadata key of the table. It holds facts about the record batches."""

FEATURES = b"huggingface"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ALIGNMENT = 64


@dataclass(frozen=True)
class ArrowOptions:
    """How to cut and lay out an Arrow file.

    Args:
        layout: `smallfiles`, or `juelich` for the Jülich loaders (labels of 16 bits, no captions).
        rows_per_batch: Rows per record batch. It is always 1 in the Jülich layout.
        max_batch_bytes: The maximum size of a batch's samples in bytes. A batch ends before it exceeds this.
            The limit also bounds the memory that the writer needs.
    """

    layout: Literal["smallfiles", "juelich"] = "smallfiles"
    rows_per_batch: int = 64
    max_batch_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.layout not in ("smallfiles", "juelich"):
            raise UsageError(
                f"the Arrow layout is {self.layout!r}",
                expected="smallfiles or juelich",
                next_step="Choose smallfiles unless a Jülich loader must read the file",
            )
        if not (1 <= self.rows_per_batch <= 1 << 20 and 1 <= self.max_batch_bytes <= 1 << 40):
            raise UsageError(
                f"batches of {self.rows_per_batch} rows and {self.max_batch_bytes} bytes were asked for",
                expected="1 to 1,048,576 rows and a positive number of bytes",
                next_step="Start with 64 rows",
            )


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: ArrowOptions | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one Arrow IPC file.

    Samples are kept until their batch is full, and are then written together. So there are few large writes,
    which is what a parallel file system is built for.

    Args:
        samples: The samples, in the order in which they are stored.
        out: A path that does not exist.
        schema: What is packed.
        options: Layout and batch size.
        digest: Whether to write the content digest beside the file.

    Returns:
        What was written.

    Raises:
        FormatError: A sample does not fit the schema or the layout.
        ResourceError: There is no space or no permission.
    """
    options = options or ArrowOptions()
    juelich, max_bytes = options.layout == "juelich", options.max_batch_bytes
    rows = 1 if juelich else options.rows_per_batch
    odd = [*schema.fields, *({"captions"} & {*schema.values.column_names})]
    if juelich and odd:
        raise FormatError(
            f"{out} would hold {', '.join(odd)} in the Jülich layout",
            expected="integer labels, which is all that this layout has",
            next_step="Choose the layout smallfiles",
        )
    with OutputFile(out, digest=digest) as file:
        sink = ArrowSink(file.append)
        arrow_schema = _arrow_schema(schema, options)
        index, end = _Index(out, schema, UINT16 if juelich else INT64), list[Buffer]()
        batch = _Batch(out, schema, arrow_schema, index.columns)
        count = payload = 0
        with pa.PythonFile(sink, mode="w") as stream, pa.ipc.new_file(stream, arrow_schema) as writer:
            for sample in samples:
                size = sample.size
                if batch.used and batch.used + size > max_bytes:
                    _flush(batch, writer, sink, index)
                batch.add(sample)
                count, payload = count + 1, payload + size
                if len(batch.keys) == rows or batch.used > max_bytes:
                    _flush(batch, writer, sink, index)
            if batch.keys:
                _flush(batch, writer, sink, index)
            sink.redirect(end.extend)
        sink.flush()
        record = record_of("arrow", schema, options)
        index.write(file, batch, b"".join(end), record, arrow_schema)
        return packed(out, "arrow", count, payload, file.finish())


def _flush(batch: _Batch, writer: pa.RecordBatchWriter, sink: ArrowSink, index: _Index) -> None:
    found = batch.take(sink)
    writer.write_batch(found)
    index.add(found.column("key"), [sink.starts.pop(each.address, 0) for each in batch.columns])
    sink.flush()  # releases the samples


class _Index:
    """The table of samples while their record batches are being written. See `smallfiles.formats.embedded`.

    Args:
        out: The file.
        schema: What is packed.
        labels: The labels that the layout can hold.
    """

    def __init__(self, out: Path, schema: Schema, labels: range) -> None:
        blobs = schema.all_blobs
        self._names = [
            [embedded.place_column(each.name, what) for what in ("bytes", "start")] for each in blobs
        ]
        places = [name for pair in self._names for name in pair]
        self.columns = SampleColumns(out, schema, labels=labels, more=dict.fromkeys(places, pa.int64()))
        self._counts, self._starts = array("q"), [array("q") for _ in blobs]

    def add(self, keys: pa.StringArray, starts: list[int]) -> None:
        """Add a record batch: its keys, and the offset at which the bytes of each field begin."""
        self.columns.extend({"key": keys}, ())
        self._counts.append(len(keys))
        for known, start in zip(self._starts, starts, strict=True):
            known.append(start)

    def _places(self, batch: _Batch) -> Iterator[tuple[str, pa.Array]]:
        """Yield the columns that say where each blob is."""
        counts = np.array(self._counts, np.int64)
        firsts = np.cumsum(counts) - counts
        for (of_bytes, of_start), blobs, starts in zip(self._names, batch.columns, self._starts, strict=True):
            sizes = np.array(blobs.sizes, np.int64)
            before = np.cumsum(sizes) - sizes
            begins = np.array(starts, np.int64) - (before[firsts] if len(before) else 0)
            yield of_bytes, from_numpy(sizes)
            yield of_start, from_numpy(np.repeat(begins, counts) + before)

    def write(
        self, file: OutputFile, batch: _Batch, end: bytes, record: dict[str, Any], schema: pa.Schema
    ) -> None:
        """Write the table between the end of the stream and the footer, both of which are in `end`."""
        self.columns.extend(dict(self._places(batch)), batch.numbers)
        facts = {"batches": len(self._counts), "columns": {each.name: str(each.type) for each in schema}}
        begin, _, footer = end.partition(END_OF_STREAM)  # without samples, the schema is not written yet
        file.append([begin, END_OF_STREAM])
        file.append([bytes(-file.position % ALIGNMENT)])
        start = file.position
        file.append(embedded.pieces(self.columns, record, {FACTS: json.dumps(facts)}))
        place = embedded.TablePlace(start, file.position, file.position)
        file.append([place.dumps(), footer])


def _arrow_schema(schema: Schema, options: ArrowOptions) -> pa.Schema:
    max_bytes = options.max_batch_bytes
    data, *others = (
        pa.field(each.name, _binary(each, max_bytes), nullable=False) for each in schema.all_blobs
    )
    features = {}
    key = pa.field("key", pa.string(), nullable=False)
    if options.layout == "juelich":
        # Exactly the types of the Jülich file, followed by our columns.
        meta = [each for each in schema.values.schema if each.name == META]
        fields = [pa.field("image_data", data.type), pa.field("label", pa.uint16()), key, *meta]
    else:
        # Small columns first, so that reading keys and labels touches one page per batch.
        features = _features(schema.classes)
        complete = {"captions"} if features else {"captions", "label"}
        fields = [key, *(each.with_nullable(each.name not in complete) for each in schema.values.schema)]
        fields += [data.with_name("data"), *others]
    record = record_of("arrow", schema, options)
    return pa.schema(fields, {PROVENANCE: dump_record(record)} | features)


def _features(classes: Sequence[str]) -> dict[bytes, str]:
    """Return the metadata by which Hugging Face `datasets` finds the class names.

    Hugging Face accepts only a nullable label, and refuses repeated class names. So return no metadata if a
    name is repeated.
    """
    if not classes or len({*classes}) < len(classes):
        return {}
    label = {"names": list(classes), "_type": "ClassLabel"}
    return {FEATURES: dump_record({"info": {"features": {"label": label}}})}


def _binary(sizes: BlobField, max_bytes: int) -> pa.DataType:
    large = max(sizes.largest_bytes, min(max_bytes, sizes.total_bytes)) > BINARY_LIMIT
    return pa.large_binary() if large else pa.binary()


class _Column:
    """The bytes of one field in one record batch. They are never copied to one place, only written.

    Args:
        name: Name of the column.
        kind: Arrow type of the column.
        largest_bytes: Size in bytes of the largest blob that the schema allows.
    """

    def __init__(self, name: str, type_: pa.DataType, largest_bytes: int) -> None:
        self.name, self._type, self.largest_bytes = name, type_, largest_bytes
        self._stand_in = np.empty(0, np.uint8)
        self.address, self.sizes = 0, array("q")
        self._clear()

    def _clear(self) -> None:
        self.offsets, self.pieces = [0], list[Buffer]()
        self.used = 0

    def take(self, sink: ArrowSink) -> pa.Array:
        """Return the column and begin a new one.

        Nothing is written to the column's buffer, so it takes no memory.
        """
        wide = np.int64 if self._type == pa.large_binary() else np.int32
        offsets = pa.py_buffer(np.array(self.offsets, wide))
        if self.used > len(self._stand_in):
            self._stand_in = np.empty(self.used, np.uint8)
        stand_in = pa.py_buffer(self._stand_in).slice(0, self.used)
        self.address = stand_in.address
        sink.instead(stand_in, self.pieces)
        found = pa.Array.from_buffers(self._type, len(self.offsets) - 1, [None, offsets, stand_in])
        self._clear()
        return found


class _Batch:
    """The samples of one record batch."""

    def __init__(self, out: Path, schema: Schema, arrow_schema: pa.Schema, every: SampleColumns) -> None:
        self._out, self._arrow, self._every = out, arrow_schema, every
        self.keys = list[str]()
        first = "data" if "data" in arrow_schema.names else "image_data"
        self.numbers = array("q")  # the rows of all samples in the values of the schema
        self.columns = [
            _Column(name, arrow_schema.field(name).type, blob.largest_bytes)
            for blob in schema.all_blobs
            for name in [blob.name or first]
        ]
        self.used = 0

    def add(self, sample: Sample) -> None:
        """Append a sample.

        Raises:
            FormatError: The sample does not fit the schema.
        """
        self.keys.append(key_of(sample, self._out))
        self.numbers.append(sample.row)
        for blobs, data in zip(self.columns, sample.blobs, strict=True):
            self._append(blobs, sample, data)

    def _append(self, blobs: _Column, sample: Sample, data: Buffer) -> None:
        size = len(data)
        if size > blobs.largest_bytes:
            raise FormatError(
                f"{sample.key!r} for {self._out} has {size:,} bytes",
                expected=f"at most {blobs.largest_bytes:,}, as the schema says",
                next_step="Make the manifest again if the data changed",
            )
        blobs.pieces.append(data)
        blobs.sizes.append(size)
        blobs.used += size
        blobs.offsets.append(blobs.used)
        self.used += size

    def take(self, sink: ArrowSink) -> pa.RecordBatch:
        """Return the record batch and begin a new one.

        The samples' bytes appear only in what `sink` writes.
        """
        columns = self._every.values_of(self.numbers[-len(self.keys) :])
        columns |= {each.name: each.take(sink) for each in self.columns}
        columns["key"], self.keys, self.used = column(self.keys, pa.string()), [], 0
        if "image_data" in columns:
            columns["label"] = columns["label"].cast(pa.uint16())
        return pa.record_batch([columns[field.name] for field in self._arrow], schema=self._arrow)
