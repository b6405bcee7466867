"""The named fields of a sample beside its default file: more files (blobs), and values of Arrow types.

    image.jpg  +  mask.png                  blobs: bytes of files, never re-encoded
    label, age = 31.5, boxes = [[…], …]     values: integers, floats, truth values, texts, and lists of these

Values stay columns from the manifest to the batch: a Python object for each of a million samples costs more
than the samples' labels themselves.

The trap: a float read as a class number, or a date as text, trains without any error. So a column keeps the
type that it came with, and a type that no format can hold is refused by name. Notebook 13 teaches it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import from_numpy, one_chunk, scalar, to_numpy
from smallfiles.errors import fault, first_line, short
from smallfiles.folders import IMAGE_SUFFIXES

RESERVED = (
    *("key", "path", "data", "label", "labels", "captions", "caption", "target", "targets", "meta"),
    *("index", "bytes", "sha256", "start", "image_data", "__key__", "__url__"),
)
"""Names that formats and batches use themselves."""

TARGETS = ("label", "captions")
"""Values that every format, other programs and the set digest know by their names: whole numbers, texts."""

META = "meta"
"""The field of a JSON object of each sample, as text; it is no part of the set digest."""

_FIRST = {
    "image": (*IMAGE_SUFFIXES, ".pgm", ".gif", ".jp2", ".avif", ".jxl"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
    "array": (".npy",),
    "text": (".txt",),
}
MAX_NAME_BYTES = 100
_BOXES = re.compile(r"(?:^|_)b?box(?:es)?$")
_BLOB_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = {str(kind): kind for kind in (pa.int64(), pa.float64(), pa.float32(), pa.bool_(), pa.string())}
_ESCAPES = (("\\", "\\\\"), ("\0", "\\0"), ("\n", "\\n"), ('"', '\\"'))


def name_problem(name: object, *, blob: bool = False) -> str | None:
    """Return what is wrong with the name of a field, as the end of a sentence, or None."""
    if not isinstance(name, str) or not name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"is not a text of 1 to {MAX_NAME_BYTES} bytes"
    if name in RESERVED:
        return "is a name that is used for something else"
    if not name.isprintable() or "/" in name or name[0] in ". ":
        return "contains a slash or a control character, or begins with a dot or a space"
    if blob and not _BLOB_NAME.fullmatch(name):
        return "is no part of a file name (letters, digits, _ and -), which the field of a file must be"
    return None


def is_blob(kind: str) -> bool:
    """Check whether the kind of a field is a file suffix, and not a type of values."""
    return not kind or kind.startswith(".")


def further_files(fields: Mapping[str, str]) -> dict[str, str]:
    """Select the blob fields of a reader except the default one: name and suffix of each."""
    return {name: kind for name, kind in list(fields.items())[1:] if is_blob(kind)}


def further_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Select all fields of a reader except the default one, the label, captions, and JSON objects."""
    return {name: kind for name, kind in list(fields.items())[1:] if name not in TARGETS and name != META}


def is_boxes(name: str) -> bool:
    """Check whether a field is called box, boxes, bbox or bboxes, or ends with `_` and one of these names."""
    return _BOXES.search(name) is not None


def name_of_first(key: str) -> str:
    """Return the name of the default field, which the suffix of any key decides.

    Example:
        >>> name_of_first("birds/1.jpg"), name_of_first("1.wav"), name_of_first("1.xyz")
        ('image', 'audio', 'data')
    """
    suffix = suffix_of(key)
    return next((name for name, suffixes in _FIRST.items() if suffix in suffixes), "data")


def suffix_of(key: str) -> str:
    """Return the suffix of a key in lower case with its dot, or an empty text if it has none."""
    name = key.rpartition("/")[2]
    return "." + name.rpartition(".")[2].lower() if "." in name else ""


def check_names(names: Iterable[object], *, blob: bool = False) -> None:
    """Refuse names that fields cannot have.

    Raises:
        ManifestError: Names the first of them.
    """
    for name in names:
        if problem := name_problem(name, blob=blob):
            raise fault(
                f"the field {short(name)} {problem}",
                "a short plain name",
                "Give it another one, for example --field age=COLUMN",
            )


def stored_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type in which values are stored, or None if no format can store them.

    Numbers have 64 bits, small floats 32. Times and decimals become text. Since all lists and texts get one
    type, a format needs to know only a few types.
    """
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        inner = stored_type(type_.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_dictionary(type_):
        return stored_type(type_.value_type)
    if pa.types.is_boolean(type_):
        return pa.bool_()
    if pa.types.is_integer(type_):
        return pa.int64()
    if pa.types.is_floating(type_):
        return pa.float64() if type_ == pa.float64() else pa.float32()
    text = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    return pa.string() if text or pa.types.is_temporal(type_) or pa.types.is_decimal(type_) else None


def value_column(name: str, values: Any) -> pa.Array:
    """Convert values to an Arrow column of the type in which they are stored.

    Args:
        name: Name of the field.
        values: An Arrow column, or values that `pyarrow.array` converts.

    Raises:
        ManifestError: Their types differ from row to row, or no format can hold them.
    """
    try:
        found = one_chunk(values) if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        found.validate(full=True)
        if (kind := stored_type(found.type)) is not None:
            return found.cast(kind)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise fault(
            f"the values of the field {short(name)} do not form a column ({first_line(error)})",
            "one type for all: integers of 64 bits, floats, truth values, text, or lists of these",
            "Correct the values that differ, or leave this field out",
        ) from error
    raise fault(
        f"the values of the field {short(name)} have the type {found.type}",
        "integers, floats, truth values, text, or lists of these",
        "Convert them first, or leave this field out",
    )


def type_named(text: str) -> pa.DataType:
    """Return the Arrow type with this name, as Arrow writes it.

    Raises:
        ManifestError: Values are not stored in a type of this name.
    """
    inner = re.fullmatch(r"list<(?:item|element): (.*)>", text)
    if inner and len(text) <= MAX_NAME_BYTES:
        return pa.list_(type_named(inner[1]))
    if text not in _PLAIN:
        raise fault(
            f"the type of a field is {short(text)}",
            "a suffix such as .png for files, or int64, double, float, bool, string, list<item: …>",
            "Correct the types of the fields",
        )
    return _PLAIN[text]


def typed_column(name: str, kind: str, values: list[Any]) -> pa.Array:
    """Convert values from a JSON file to a column of the type that the file states.

    Args:
        name: Name of the field.
        kind: A type name that `type_named` accepts.
        values: One value per sample; a number that JSON does not have is the text `nan`, `inf` or `-inf`.

    Raises:
        ManifestError: A value has another type.
    """
    wanted = type_named(kind)
    elements = kind.rstrip(">")
    if elements.endswith(("double", "float")):
        values = _with_nan(values)
    try:
        if elements.endswith("int64"):
            _check_whole(values)
        return pa.array(values, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise fault(
            f"a value of the field {short(name)} is no {kind} ({first_line(error)})",
            "values of the type that the file states",
            "Correct the value, or the type",
        ) from error


def _check_whole(values: list[Any]) -> None:
    """Refuse floats and truth values among whole numbers: Arrow alone would convert them."""
    for each in values:
        if isinstance(each, list):
            _check_whole(each)
        elif each is not None and type(each) is not int:
            raise TypeError(short(each))


def _with_nan(values: list[Any]) -> list[Any]:
    """Replace the texts `nan`, `inf`, and `-inf` by the floats that JSON cannot express."""
    return [
        _with_nan(each) if isinstance(each, list) else float(each) if each in ("nan", "inf", "-inf") else each
        for each in values
    ]


def finite(value: Any) -> Any:
    """Replace floats that JSON cannot express by the texts `nan`, `inf`, and `-inf`.

    `typed_column` turns these texts into floats again.
    """
    if type(value) is list:
        return [finite(each) for each in value]
    return repr(value) if type(value) is float and value - value != 0 else value


def value_columns(columns: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Convert columns of values to the types in which they are stored, sorted by name."""
    check_names(columns)
    return {name: value_column(name, columns[name]) for name in sorted(columns)}


def value_table(columns: Mapping[str, Any]) -> pa.Table:
    """Convert columns of values to a table, as `value_columns` does."""
    return pa.table(value_columns(columns))


def as_text(column: pa.Array) -> pa.Array:
    """Write each value as a text that is unique to this value, for the set digest.

    A float becomes its 64 bits as a decimal number, or `nan` whatever its sign, as in JSON. Text is quoted, a
    list is in brackets, and a missing value is `null`. No Python object is made per value.

    Args:
        column: A column of a type that `stored_type` returns.
    """
    kind = column.type
    if pa.types.is_list(kind):
        inner = pa.LargeListArray.from_arrays(from_numpy(list_borders(column)), as_text(column.flatten()))
        joined = pc.binary_join(inner, _large(","))
        texts = pc.binary_join_element_wise(_large("["), joined, _large("]"), _large(""))
        return pc.if_else(column.is_null(), _large("null"), texts) if column.null_count else texts
    if pa.types.is_floating(kind):
        wide = column.cast(pa.float64())
        texts = pc.if_else(pc.is_nan(wide), _large("nan"), _bits(wide).cast(pa.large_string()))
    elif pa.types.is_string(kind):
        texts = column.cast(pa.large_string())
        for plain, escaped in _ESCAPES:
            if pc.any(pc.match_substring(texts, plain)).as_py():
                texts = pc.replace_substring(texts, plain, escaped)
        texts = pc.binary_join_element_wise(_large('"'), texts, _large('"'), _large(""))
    else:
        texts = column.cast(pa.large_string())
    return pc.fill_null(texts, _large("null")) if texts.null_count else texts


def list_borders(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Return the offsets of lists in `lists.flatten()`. List i lies between offsets i and i + 1.

    A missing list is empty.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), scalar(0).cast(pa.int32()))
    return np.cumsum(np.append(0, to_numpy(lengths)), dtype=np.int64)


def _large(text: str) -> pa.Scalar:
    return scalar(text).cast(pa.large_string())


def _bits(column: pa.Array) -> pa.Array:
    """Reinterpret the bits of floats as whole numbers, without a copy."""
    validity, data = column.buffers()
    return pa.Array.from_buffers(pa.int64(), len(column), [validity, data], offset=column.offset)
