"""What each column of an Arrow file means: in our files, those of the Jülich course, and others.

The trap: a file of Hugging Face `datasets` is an IPC *stream*, whose images are structs of `bytes`
and `path`; a reader that knows only IPC files calls it damaged. Notebook 03 looks inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from smallfiles.errors import FormatError
from smallfiles.fields import META, is_storable, name_problem

_DATA = ("data", "image_data", "image", "jpg", "jpeg", "png", "img", "bytes", "content")
_LABELS = ("label", "labels", "target", "targets", "cls", "class", "fine_label")
_CAPTIONS = ("captions", "caption")
_KEYS = ("key", "__key__", "path", "file_name", "filename", "name")


@dataclass(frozen=True)
class ArrowColumns:
    """Column numbers; None where a file has no such column.

    Args:
        data: Encoded bytes (binary, or a struct with a binary field `bytes`).
        key: Strings.
        blobs: Further columns of bytes by name.
        values: Columns of values by name: `label` (integers) or `captions` (lists of strings, or one string
            each), `meta` (JSON objects as strings), and further ones.
    """

    data: int
    key: int | None
    blobs: dict[str, int]
    values: dict[str, int]


def is_binary(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold encoded bytes."""
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and is_binary(kind.field(index).type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def find(schema: pa.Schema, path: Path) -> ArrowColumns:
    """Find the columns by name, or by type where only one fits.

    Raises:
        FormatError: No column of bytes, or several and none with a known name; or a column that is named
            like targets but has another type: class names have no numbers that all files share.
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
    """Whether a column can be a further field: a file of others may have more, of any name and type."""
    blob = is_binary(field.type)
    return name_problem(field.name, blob=blob) is None and (blob or is_storable(field.type))


def _targets(schema: pa.Schema, fits: dict[str, list[int]], path: Path) -> tuple[int | None, int | None]:
    """Column of labels, or of captions; names take precedence over types."""
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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_strings(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type)
