"""Read an Arrow file without a table of samples: find what its columns mean, and where its batches are.

An Arrow file ends with a table of its batches: offset, header and body size, but no row counts. Those
are in the headers of the batches, spread over the whole file: ten thousand small random reads for a
million samples, in each worker. Our former writer stored the rule by which it cut, so that the sizes suffice.

The traps: a file of Hugging Face `datasets` is an IPC *stream*, whose images are structs of `bytes`
and `path`; a reader that knows only IPC files calls it damaged. And "all batches but the last are full" is
wrong for a file that was also cut by bytes. Notebook 03 looks inside one.
Forms: Apache Arrow `format/File.fbs` and `format/Message.fbs`, encoded as FlatBuffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from smallfiles.errors import FormatError
from smallfiles.fields import META, name_problem, stored_type
from smallfiles.formats.bytefile import ByteFile, damaged

_DATA = ("data", "image_data", "image", "jpg", "jpeg", "png", "img", "bytes", "content")
_LABELS = ("label", "labels", "target", "targets", "cls", "class", "fine_label")
_CAPTIONS = ("captions", "caption")
_KEYS = ("key", "__key__", "path", "file_name", "filename", "name")

_BLOCK = np.dtype([("offset", "<i8"), ("header", "<i4"), ("pad", "<i4"), ("body", "<i8")])
_READ_ALL = 4096
_READ_SOME = 64
_RECORD_BATCH = 3  # what a message of a stream may hold


@dataclass(frozen=True)
class ArrowColumns:
    """Numbers of the columns of an Arrow file, by their meaning.

    Args:
        data: The column of encoded bytes (binary, or a struct with a binary field `bytes`).
        key: The column of keys (strings). It is None if there is no such column.
        blobs: Additional columns of bytes by name.
        values: Columns of values by name: `label` (integers) or `captions` (lists of strings, or one string
            each), `meta` (JSON objects as strings), and additional values.
    """

    data: int
    key: int | None
    blobs: dict[str, int]
    values: dict[str, int]


def is_binary(type_: pa.DataType) -> bool:
    """Check whether a column of this type can hold encoded bytes."""
    if pa.types.is_struct(type_):
        index = type_.get_field_index("bytes")
        return index >= 0 and is_binary(type_.field(index).type)
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def find_columns(schema: pa.Schema, path: Path) -> ArrowColumns:
    """Find the meaning of the columns by their names, or by a type that only one column has.

    Raises:
        FormatError: There is no column of bytes, or there are several and none has a known name; or a column
            is named like targets but has another type. Class names are refused because they have no numbers
            that all files share.
    """
    fits = {
        "data": [i for i, field in enumerate(schema) if is_binary(field.type)],
        "label": [i for i, field in enumerate(schema) if pa.types.is_integer(field.type)],
        "captions": [i for i, field in enumerate(schema) if _is_strings(field.type)],
        "key": [i for i, field in enumerate(schema) if _is_text(field.type)],
    }
    names = schema.names
    data = _choose(names, fits["data"], _DATA, alone=True)
    if data is None:
        raise FormatError(
            f"{path} has the columns {', '.join(f'{f.name}: {f.type}' for f in schema) or '(none)'}",
            expected=f"one binary column, or one named {', '.join(_DATA[:4])}",
            next_step="Rename or cast the column that holds the images",
        )
    label, captions = _targets(schema, fits, path)
    key, meta = (_choose(names, fits["key"], known, alone=False) for known in (_KEYS, (META,)))
    taken = {data, label, captions, key, meta}
    rest = {field.name: i for i, field in enumerate(schema) if i not in taken and _is_field(field)}
    blobs = {name: i for name, i in rest.items() if is_binary(schema.field(i).type)}
    known = {"label": label, "captions": captions, META: meta}
    values = {name: i for name, i in known.items() if i is not None}
    values |= {name: i for name, i in rest.items() if name not in blobs}
    return ArrowColumns(data, key, blobs, values)


def _is_field(field: pa.Field) -> bool:
    """Check whether a column can be a field.

    A file of another program may have columns of any name and type.
    """
    blob = is_binary(field.type)
    return name_problem(field.name, blob=blob) is None and (blob or stored_type(field.type) is not None)


def _targets(schema: pa.Schema, fits: dict[str, list[int]], path: Path) -> tuple[int | None, int | None]:
    """Return the number of the label column and that of the captions column. At least one of them is None.

    Names take precedence over types.
    """
    names = schema.names
    label = _choose(names, fits["label"], _LABELS, alone=False)
    if label is not None:
        return label, None
    captions = _choose(names, fits["captions"] + fits["key"], _CAPTIONS, alone=False)
    if captions is not None:
        return None, captions
    for field in schema:
        if field.name in _LABELS + _CAPTIONS and not pa.types.is_null(field.type):
            raise FormatError(
                f"{path} has the column {field.name} of type {field.type}",
                expected="labels as integers, or captions as strings or lists of strings",
                next_step="Cast it: class names to class numbers that are the same in every file "
                "(class_encode_column of Hugging Face datasets does), 3.0 to 3",
            )
    label = _choose(names, fits["label"], (), alone=True)
    return label, None if label is not None else _choose(names, fits["captions"], (), alone=True)


def _choose(names: list[str], fitting: list[int], known: tuple[str, ...], *, alone: bool) -> int | None:
    for name in known:
        for index in fitting:
            if names[index] == name:
                return index
    return fitting[0] if alone and len(fitting) == 1 else None


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_strings(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_)) and _is_text(type_.value_type)


@dataclass(frozen=True)
class Cuts:
    """The rule by which a file was cut into record batches.

    Args:
        rows: Number of rows of a full batch.
        batch_bytes: The maximum size of a batch's samples in bytes. A batch ends before it exceeds this.
        largest: Size of the largest sample in bytes.
    """

    rows: int
    batch_bytes: int
    largest: int

    @classmethod
    def loads(cls, text: bytes | None) -> Cuts | None:
        """Read the rule that the writer stored. Return None if it is missing or makes no sense."""
        try:
            found = json.loads(text or b"")
            cuts = cls(int(found["rows"]), int(found["bytes"]), int(found["largest"]))
        except (ValueError, KeyError, TypeError):
            return None
        return cuts if 0 < cuts.rows <= 1 << 20 else None


def row_counts(
    bodies: np.ndarray, cuts: Cuts | None, rows_in: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the number of rows in each batch. A reader checks a count when it first reads from that batch.

    Args:
        bodies: Size of the body of each batch in bytes.
        cuts: The writer's rule. It is None if it is not known.
        rows_in: Reads the row counts of some batches from their headers, which takes small random reads.

    Returns:
        An int64 array.
    """
    count = len(bodies)
    counts = np.full(count, 1 if cuts is None else cuts.rows, np.int64)
    if cuts is not None:
        # A batch was cut by bytes only if the largest sample might not have fitted into it.
        unsure = (bodies > cuts.batch_bytes - cuts.largest) & (cuts.rows > 1)
        unsure[count - 1 :] = True
        counts[unsure] = rows_in(np.flatnonzero(unsure))
    elif count <= _READ_ALL or (rows_in(np.linspace(0, count - 1, _READ_SOME).astype(int)) != 1).any():
        counts = rows_in(np.arange(count))  # else one row per batch, as the Jülich course writes them
    return counts


def stream_blocks(file: ByteFile) -> np.ndarray:
    """Find the record batches of a stream by reading its messages one after the other.

    Form of a message: Apache Arrow `format/Message.fbs`.

    Raises:
        DamagedFileError: The file is not a stream of whole messages.
    """
    found, at = [], 0
    try:
        while at + 8 <= file.size:
            _, length = struct.unpack("<ii", file.read(at, at + 8))
            if length == 0:
                break
            header, body = _message(bytes(file.read(at + 8, at + 8 + length)))
            if header == _RECORD_BATCH:
                found.append((at, 8 + length, 0, body))
            at += 8 + length + max(0, body)
    except (struct.error, IndexError) as error:
        raise damaged(file.path, f"the message at byte {at:,} cannot be read ({error})") from error
    return np.array(found, _BLOCK)


def _message(data: bytes) -> tuple[int, int]:
    """Return the kind of a message, and the number of bytes of its body."""
    (root,) = struct.unpack_from("<I", data, 0)
    (back,) = struct.unpack_from("<i", data, root)
    table_bytes, _, _, kind, _, body = struct.unpack_from("<6H", data, root - back)
    body = body if table_bytes >= 12 else 0  # the last field may be left out, as that of a schema is
    (size,) = struct.unpack_from("<q", data, root + body) if body else (0,)
    return data[root + kind] if kind else 0, size


def blocks(file: ByteFile) -> np.ndarray:
    """Read the offset, header size and body size of each batch of an Arrow file from its footer.

    Raises:
        DamagedFileError: The footer cannot be read.
    """
    try:
        end = file.size - 10
        (length,) = struct.unpack("<i", file.read(end, end + 4))
        footer = file.read(end - length, end)
        (root,) = struct.unpack_from("<I", footer, 0)
        (back,) = struct.unpack_from("<i", footer, root)
        table, slot = root - back, 4 + 2 * 3  # the fourth field: recordBatches
        (table_bytes,) = struct.unpack_from("<H", footer, table)
        field = struct.unpack_from("<H", footer, table + slot)[0] if table_bytes >= slot + 2 else 0
        if field == 0:
            return np.zeros(0, _BLOCK)
        vector = root + field + struct.unpack_from("<I", footer, root + field)[0]
        (count,) = struct.unpack_from("<I", footer, vector)
        return np.frombuffer(footer, _BLOCK, count, vector + 4)
    except (struct.error, ValueError) as error:
        raise damaged(file.path, f"its footer cannot be read ({error})") from error
