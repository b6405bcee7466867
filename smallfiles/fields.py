"""The named fields of a sample beside its first file: more files (blobs), and values of Arrow types.

    image.jpg  +  mask.png                  blobs: bytes of files, never re-encoded
    label, age = 31.5, boxes = [[…], …]     values: integers, floats, truth values, texts, and lists of these

Values stay columns from the manifest to the batch: a Python object for each of a million samples costs more
than the samples' labels themselves.

The trap: a float read as a class number, or a date as text, trains without any error. So a column keeps the
type that it came with, and a type that no format can hold is refused by name. Notebook 13 teaches it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import from_numpy, one_chunk, scalar
from smallfiles.faults import fault, short

RESERVED = (
    *("key", "path", "data", "label", "labels", "captions", "caption", "target", "targets", "meta"),
    *("index", "bytes", "sha256", "start", "image_data", "__key__", "__url__"),
)
"""Names that formats and batches use themselves."""

MAX_NAME_BYTES = 100
_BLOB_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = (("\\", "\\\\"), ("\0", "\\0"), ("\n", "\\n"), ('"', '\\"'))


def name_problem(name: object, *, blob: bool = False) -> str | None:
    """What is wrong with the name of a field, to continue a sentence; None if nothing is."""
    if not isinstance(name, str) or not name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"is not a text of 1 to {MAX_NAME_BYTES} bytes"
    if name in RESERVED:
        return "is a name that is used for something else"
    if not name.isprintable() or "/" in name or name[0] in ". ":
        return "contains a slash or a control character, or begins with a dot or a space"
    if blob and not _BLOB_NAME.fullmatch(name):
        return "is no part of a file name (letters, digits, _ and -), which the field of a file must be"
    return None


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


def is_storable(kind: pa.DataType) -> bool:
    """Whether every format can hold values of this type, as it is or cast."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return is_storable(kind.value_type)
    if pa.types.is_dictionary(kind):
        return is_storable(kind.value_type)
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(plain or text or pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values are held: of 64 bits, 32 for small floats; times and decimals as text.

    One type for all lists and texts means that each format needs to know only these.
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_boolean(kind):
        return pa.bool_()
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64() if kind == pa.float64() else pa.float32()
    return pa.string()


def value_column(name: str, values: Any) -> pa.Array:
    """One column of values in the type in which it is held.

    Args:
        name: Of the field.
        values: An Arrow column, or what Arrow makes one of.

    Raises:
        ManifestError: Their types differ from row to row, or no format can hold them.
    """
    try:
        found = one_chunk(values) if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        found.validate(full=True)
        if is_storable(found.type):
            return found.cast(stored_type(found.type))
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise fault(
            f"the values of the field {short(name)} do not form a column ({str(error).splitlines()[0]})",
            "one type for all: integers of 64 bits, floats, truth values, text, or lists of these",
            "Correct the values that differ, or leave this field out",
        ) from error
    raise fault(
        f"the values of the field {short(name)} have the type {found.type}",
        "integers, floats, truth values, text, or lists of these",
        "Convert them first, or leave this field out",
    )


def type_named(text: str) -> pa.DataType:
    """The type of this name, as Arrow writes it.

    Raises:
        ManifestError: It is none that values are held in.
    """
    plain = {"int64": pa.int64(), "double": pa.float64(), "float": pa.float32(), "bool": pa.bool_()}
    plain["string"] = pa.string()
    inner = re.fullmatch(r"list<(?:item|element): (.*)>", text)
    if inner and len(text) <= MAX_NAME_BYTES:
        return pa.list_(type_named(inner[1]))
    if text not in plain:
        raise fault(
            f"the type of a field is {short(text)}",
            "a suffix such as .png for files, or int64, double, float, bool, string, list<item: …>",
            "Correct the types of the fields",
        )
    return plain[text]


def typed_column(name: str, kind: str, values: list[Any]) -> pa.Array:
    """Values of a JSON file as a column of the type that the file states.

    Args:
        name: Of the field.
        kind: From `type_named`.
        values: Of each sample; a number that JSON does not have is the text `nan`, `inf` or `-inf`.

    Raises:
        ManifestError: A value has another type.
    """
    wanted = type_named(kind)
    if kind.rstrip(">").endswith(("double", "float")):
        values = _with_nan(values)
    try:
        _check_numbers(values, int if kind.rstrip(">").endswith("int64") else None)
        return pa.array(values, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise fault(
            f"a value of the field {short(name)} is no {kind} ({str(error).splitlines()[0]})",
            "values of the type that the file states",
            "Correct the value, or the type",
        ) from error


def _check_numbers(values: list[Any], kind: type | None) -> None:
    """Refuse floats among whole numbers, and truth values as numbers: Arrow alone would convert them."""
    for each in values if kind is not None else ():
        if isinstance(each, list):
            _check_numbers(each, kind)
        elif each is not None and type(each) is not kind:
            raise TypeError(f"{short(each)}")


def _with_nan(values: list[Any]) -> list[Any]:
    """The same with floats in place of the texts for those that JSON does not have."""
    return [
        _with_nan(each) if isinstance(each, list) else float(each) if each in ("nan", "inf", "-inf") else each
        for each in values
    ]


def value_table(columns: Any) -> pa.Table:
    """Columns of values by name, each in the type in which it is held, in the order of their names."""
    check_names(columns)
    return pa.table({name: value_column(name, columns[name]) for name in sorted(columns)})


def as_text(column: pa.Array) -> pa.Array:
    """Each value as a text that no other value has, without a Python object: what the set digest covers.

    A float is the decimal of its 64 bits, text is quoted, a list is in brackets, a missing value is `null`.

    Args:
        column: Of a type that `stored_type` names.
    """
    kind = column.type
    if pa.types.is_list(kind):
        inner = as_text(column.flatten()).cast(pa.string())
        lengths = pc.fill_null(pc.list_value_length(column), scalar(0).cast(pa.int32()))
        ends = pc.cumulative_sum(lengths)
        borders = pa.concat_arrays([scalar_array(0, pa.int32()), ends.cast(pa.int32())])
        joined = pc.binary_join(pa.ListArray.from_arrays(borders, inner), scalar(","))
        texts = pc.binary_join_element_wise(scalar("["), joined, scalar("]"), scalar(""))
        nulls = column.is_null()
        texts = pc.if_else(nulls, scalar("null"), texts) if column.null_count else texts
        return texts.cast(pa.large_string())
    if pa.types.is_floating(kind):
        wide = column.cast(pa.float64())
        texts = _bits(wide).cast(pa.large_string())
    elif pa.types.is_string(kind):
        texts = column.cast(pa.large_string())
        for plain, escaped in _ESCAPES:
            if pc.any(pc.match_substring(texts, plain)).as_py():
                texts = pc.replace_substring(texts, plain, escaped)
        quote = scalar('"').cast(pa.large_string())
        texts = pc.binary_join_element_wise(quote, texts, quote, scalar("").cast(pa.large_string()))
    else:
        texts = column.cast(pa.large_string())
    return pc.fill_null(texts, scalar("null").cast(pa.large_string())) if texts.null_count else texts


def scalar_array(value: int, kind: pa.DataType) -> pa.Array:
    """An array of one whole number."""
    return from_numpy(np.array([value], np.int64)).cast(kind)


def _bits(column: pa.Array) -> pa.Array:
    """The bits of floats as whole numbers, over the same memory."""
    validity, data = column.buffers()
    return pa.Array.from_buffers(pa.int64(), len(column), [validity, data], offset=column.offset)
