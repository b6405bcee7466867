"""Check the columns of a manifest, alone and together, and name what is wrong.

The trap: checking a million paths in a Python loop takes seconds, so it is often omitted. Each check here is
one vectorised pass; a loop runs only to name the faults that were found.
Notebook 02 shows the messages.
"""

from __future__ import annotations

import json
import json.encoder
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import (
    SLICE_ROWS,
    TEXTS,
    GrowingStrings,
    Namer,
    fault_of,
    from_numpy,
    integers,
    is_arrow,
    one_chunk,
    strings,
    suffixes_of,
    valid,
)
from smallfiles.arrays import column as arrow_column
from smallfiles.digests import RowOrder, byte_order, in_order, name_hashes
from smallfiles.errors import ManifestError, counted, fault, first_few, is_utf8, named, short
from smallfiles.fields import META, check_names, value_columns
from smallfiles.folders import key_problem
from smallfiles.samples import UNLABELLED, Meta

SUSPICIOUS_PATH = r"[\x00\n]|(^|/)\.{0,2}(/|$)"
"""Matches exactly those strings to which `key_problem` objects (a test compares the two)."""

COLUMNS = ("path", "label", "captions", "bytes", "sha256", "meta")
_ROWS_AT_ONCE = 1 << 12
_LARGEST_SIZE = (1 << 63) - 1
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_quoted = json.encoder.encode_basestring_ascii


def by_row(row: int) -> str:
    """Return the name of a row whose path is not known, such as `row 7`."""
    return f"row {row}"


def by_path(paths: pa.StringArray) -> Namer:
    """Return a function that names a row by its path, which is more helpful than its number."""
    return lambda row: short(paths[row].as_py()) if row < len(paths) else by_row(row)


def check_header(name: object, split: object, classes: Iterable[object], root_hint: object) -> None:
    """Check the header of a manifest. Raise an error if it is malformed."""
    if isinstance(classes, str) or not all(isinstance(entry, str) for entry in classes):
        raise fault("the classes are not a list of names", "a list of strings in label order")
    for what, value in (("name", name), ("split", split), ("root_hint", root_hint)):
        if not isinstance(value, str):
            raise fault(f"the {what} is {short(value)}", "a string")
    for text in (str(text) for text in (name, split, root_hint, *classes)):
        if not is_utf8(text) or "\0" in text:
            raise fault(f"{short(text)} in the header is not valid text", "UTF-8 without NUL")
    if str(root_hint).startswith("/"):
        raise fault(f"the root_hint {root_hint} is an absolute path", "a path relative to the manifest file")


def check_first(first: Any, others: Iterable[str]) -> None:
    """Check the name of the first file's field. The empty name is always valid."""
    if first != "":
        check_names([first])
    if first in others:
        raise fault(f"the first file and another field are called {short(first)}", "a name for each field")


def target_name(targets: Any) -> str:
    """Return whether these targets are `label` or `captions`. An empty list counts as labels."""
    if is_arrow(targets):
        return (
            "captions" if pa.types.is_list(targets.type) or pa.types.is_large_list(targets.type) else "label"
        )
    return "captions" if len(targets) and isinstance(targets[0], list | tuple) else "label"


def check_lengths(columns: Iterable[tuple[str, Any]]) -> None:
    """Check that all columns have the same length. Columns that are None are ignored."""
    lengths = {name: len(values) for name, values in columns if values is not None}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise fault(f"the columns have different lengths: {counts}", "one entry per sample in each column")


def path_column(paths: Any) -> pa.StringArray:
    """Convert paths to one array. Check that each path is relative, normalised and valid UTF-8."""
    column = strings(paths, "path", by_row)
    suspicious = pc.match_substring_regex(column, SUSPICIOUS_PATH)
    if pc.any(suspicious).as_py():
        bad = column.filter(suspicious).to_pylist()
        raise fault(
            f"{counted(bad, 'path')} not usable: {named(bad, len(bad), key_problem)}",
            "relative, normalised POSIX paths inside one folder",
            "Make the paths relative to the root folder of the data",
        )
    return column


def checked_order(paths: pa.StringArray) -> RowOrder:
    """Return the row numbers sorted by path, so that equal paths are neighbours.

    A hash table of a million strings takes 450 MB, and sorted row numbers take 10 MB.

    Raises:
        ManifestError: A path occurs more than once.
    """
    order = byte_order(paths)
    repeated = [name for names in _repeats(paths, order) for name in names.to_pylist()]
    if repeated:
        raise repeated_paths(list(dict.fromkeys(repeated)))
    return order


def _repeats(column: pa.StringArray, order: RowOrder) -> Iterator[pa.StringArray]:
    """Yield entries that equal the entry before them in a sorted order of all rows.

    A few thousand rows are compared at a time.
    """
    for start in () if isinstance(order, range) else range(0, len(column), _ROWS_AT_ONCE):
        found = in_order(column, order, start, _ROWS_AT_ONCE + 1)
        yield found.slice(1).filter(pc.equal(found.slice(1), found.slice(0, len(found) - 1)))


def repeated_paths(repeated: Sequence[str]) -> ManifestError:
    """Return the error for paths that occur more than once."""
    return fault(
        f"{counted(repeated, 'path')} given more than once: {first_few(map(short, repeated), len(repeated))}",
        "each path once",
        "Remove the repeats; where one file has two targets, find out which is right",
    )


def label_column(labels: Any, class_count: int, name: Namer = by_row) -> pa.Array:
    """Convert labels to int32. Check that they are within the class list if there is one."""
    as_stored = is_arrow(labels) and labels.type == pa.int32() and not labels.null_count
    column = one_chunk(labels) if as_stored else integers(labels, "label", name)
    int32 = np.iinfo(np.int32)
    lowest, highest = (UNLABELLED, class_count - 1) if class_count else (int(int32.min), int(int32.max))
    if outside := _outside(column, lowest, highest):
        what = "outside the class list" if class_count else "outside the range of 32 bits"
        raise fault_of(
            outside,
            "label",
            what,
            column,
            name,
            f"labels from 0 to {highest}, or {UNLABELLED} for unknown",
            "Compare order and length of the class list with the labels (ids that count from 1 are one off)",
        )
    return column.cast(pa.int32())


def _outside(column: pa.Array, lowest: int, highest: int) -> list[int]:
    extremes = pc.min_max(column).as_py()
    if extremes["min"] is None or lowest <= extremes["min"] <= extremes["max"] <= highest:
        return []
    numbers = enumerate(column.to_pylist())
    return [row for row, value in numbers if value is not None and not lowest <= value <= highest]


def caption_column(captions: Any, name: Namer = by_row) -> pa.Array:
    """Convert captions to a column of lists of strings."""
    kind = pa.list_(pa.string())
    if is_arrow(captions):
        found = one_chunk(captions)
        is_texts = getattr(found.type, "value_type", None) in TEXTS
        if is_texts and not (found.null_count or found.flatten().null_count):
            return valid(found, kind, "caption")
        captions = found.to_pylist()
    bad = [row for row, entry in enumerate(captions) if not _is_captions(entry)]
    expected = "a list of strings in UTF-8 for each sample"
    if lists := [row for row in bad if isinstance(captions[row], list | tuple)]:
        raise fault_of(lists, "list", "not of captions (text in UTF-8)", captions, name, expected)
    if bad:
        raise fault_of(bad, "sample", "without a list of captions", captions, name, expected)
    return arrow_column(captions, kind)


def _is_captions(entry: object) -> bool:
    return isinstance(entry, list | tuple) and all(isinstance(text, str) and is_utf8(text) for text in entry)


def size_column(sizes: Any, name: Namer = by_row) -> pa.Array:
    """Convert sizes in bytes to int64. An unknown size is null."""
    column = integers(sizes, "size", name, nullable=True)
    if negative := _outside(column, 0, _LARGEST_SIZE):
        raise fault_of(negative, "size", "negative", column, name, "bytes from 0 on, or null")
    # A 64-bit sum would wrap around, and pass any check of free space.
    if (pc.max(column).as_py() or 0) * len(column) > _LARGEST_SIZE:
        total = sum(size or 0 for size in column.to_pylist())
        if total > _LARGEST_SIZE:
            raise fault(f"the sizes add up to {total:,} bytes", "less than 8 EiB in all")
    return column


def sha256_column(hexes: Any, name: Namer = by_row) -> pa.StringArray:
    """Check SHA-256 hashes, which must be lower-case hexadecimal. An unknown hash is null."""
    column = strings(hexes, "sha256", name, nullable=True)
    good = pc.match_substring_regex(column, r"^[0-9a-f]{64}$")
    if not pc.all(good, min_count=0).as_py():
        bad = [row for row, fits in enumerate(good.to_pylist()) if fits is False]
        expected = "64 hexadecimal digits in lower case, or null"
        raise fault_of(bad, "sha256", "malformed", column, name, expected)
    return column


def meta_column(metas: Sequence[Meta | None] | pa.Array, name: Namer = by_row) -> pa.StringArray:
    """Convert JSON objects to compact text. They may be objects, texts or Arrow structs.

    The text is null for a sample without an object.
    """
    if isinstance(metas, pa.Array | pa.ChunkedArray):
        if pa.types.is_struct(metas.type):
            return _texts_of_structs(metas, name)
        metas = [None if text is None else _parsed(text) for text in one_chunk(metas).to_pylist()]
    texts = [None if meta is None else _as_text(meta) for meta in metas]
    _refuse_bad(texts, metas, name)
    return arrow_column(texts, pa.string())


def _refuse_bad(texts: Sequence[str | None], metas: Any, name: Namer) -> None:
    if bad := [row for row, text in enumerate(texts) if text == ""]:
        expected = "objects with string keys that JSON can hold, or null"
        raise fault_of(bad, "meta entry", "not a JSON object", metas, name, expected)


def _texts_of_structs(structs: pa.Array, name: Namer) -> pa.StringArray:
    """Convert Arrow structs to JSON column by column. This takes a fifth of the time of dictionaries."""
    grown = GrowingStrings()
    pattern = "{" + ",".join(f"{json.dumps(each.name).replace('%', '%%')}:%s" for each in structs.type) + "}"
    for start in range(0, len(structs), SLICE_ROWS):
        some = structs.slice(start, SLICE_ROWS)
        try:
            columns = [map(_encoder(kind.type), values.to_pylist()) for kind, values in _fields(some)]
            texts = list(map(pattern.__mod__, zip(*columns, strict=True)))
        except (TypeError, ValueError):
            texts = [_as_text(meta) for meta in some.to_pylist()]
            _refuse_bad(texts, some, partial(_shifted, name, start))
        grown.add(texts)
    return grown.finish()


def _shifted(name: Namer, start: int, row: int) -> str:
    return name(start + row)


def _fields(structs: pa.Array) -> Iterator[tuple[pa.Field, pa.Array]]:
    return zip(structs.type, one_chunk(structs).flatten(), strict=True)


def _encoder(type_: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_integer(type_):
        return lambda value: "null" if value is None else repr(value)
    if pa.types.is_string(type_):
        return lambda value: "null" if value is None else _quoted(value)
    return _any_text


def _any_text(value: object) -> str:
    return repr(value) if type(value) is float and math.isfinite(value) else _dumps(value)


def _parsed(text: object) -> Any:
    try:
        return json.loads(str(text))
    except (ValueError, RecursionError):
        return text


def _as_text(meta: object) -> str:
    if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
        return ""
    try:
        # ASCII, so that invalid UTF-8 survives as escapes.
        return _dumps(meta)
    except (TypeError, ValueError, RecursionError):
        return ""


def shared_stems(paths: pa.StringArray) -> frozenset[str]:
    """Return the stems that several paths share. A stem ends at the first dot of the file name."""
    hashes = np.empty(len(paths), np.uint64)
    for start, stems in _stems(paths):
        hashes[start : start + len(stems)] = name_hashes(stems)
    hashes.sort()
    twice = hashes[1:][hashes[1:] == hashes[:-1]]
    times: Counter[str] = Counter()
    for _, stems in _stems(paths) if len(twice) else ():
        rows = np.flatnonzero(np.isin(name_hashes(stems), twice))
        times.update(stems.take(from_numpy(rows)).to_pylist())
    return frozenset(stem for stem, count in times.items() if count > 1)  # hashes may collide


def _stems(paths: pa.StringArray) -> Iterator[tuple[int, pa.StringArray]]:
    """Yield the stems of the paths, a few thousand at a time, with the row of the first one."""
    for start in range(0, len(paths), _ROWS_AT_ONCE):
        some = paths.slice(start, _ROWS_AT_ONCE)
        yield start, pc.replace_substring_regex(some, pattern=r"\.[^/]*$", replacement="")


OPTIONAL: dict[str, Callable[[Any, Namer], pa.Array]] = {
    "bytes": size_column,
    "sha256": sha256_column,
    META: meta_column,
}


def checked_table(
    paths: Any,
    values: Mapping[str, Any],
    class_count: int,
    facts: Mapping[str, Any],
    blobs: Mapping[str, Any],
) -> pa.Table:
    """Make a table of all columns after checking them, except for repeated paths (see `checked_order`).

    Args:
        paths: See `Manifest.from_columns`, which also describes the other columns.
        values: Columns of values by name: labels or captions, JSON objects, and all others.
        class_count: Number of classes. It is 0 if this is unknown.
        facts: Sizes and hashes by the name of their column. A missing column is None.
        blobs: Paths of additional files by the name of their field.

    Raises:
        ManifestError: A column is wrong. The message names the first kind of fault.
    """
    check_lengths([("path", paths), *values.items(), *facts.items(), *blobs.items()])
    found = {"path": path_column(paths)}
    name = by_path(found["path"])
    if "label" in values:
        found["label"] = label_column(values["label"], class_count, name)
    else:
        found["captions"] = caption_column(values["captions"], name)
    given = {**values, **facts}
    found |= {
        each: check(given[each], name) for each, check in OPTIONAL.items() if given.get(each) is not None
    }
    others = {each: column for each, column in values.items() if each not in found and each != META}
    return pa.table(found | blob_columns(found["path"], blobs, others) | value_columns(others))


def blob_columns(
    first: pa.StringArray, blobs: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, pa.Array]:
    """Return the paths of additional files by the name of their field, after checking them.

    Args:
        first: The paths of the samples' first files.
        blobs: The paths of other files, by field.
        values: Fields of values, whose names must be different.

    Raises:
        ManifestError: A path is not usable, a sample has the same file in two fields, a name is used twice,
            or the files of a field have several suffixes.
    """
    check_names(blobs, blob=True)
    if twice := sorted(blobs.keys() & values.keys()):
        raise fault(
            f"{named(twice, len(twice), str)} is a field of files and one of values", "one of the two"
        )
    found = {name: path_column(blobs[name]) for name in blobs}
    for name, column in found.items():
        for other, theirs in {"first": first, **found}.items():
            if other != name and pc.any(pc.equal(column, theirs)).as_py():
                row = pc.index(pc.equal(column, theirs), pa.scalar(True)).as_py()
                raise fault(
                    f"{short(column[row].as_py())} is the file of two fields of one sample",
                    "another file for each field",
                    "Correct the template of one of them",
                )
        suffix_of(name, column)
    return found


def suffix_of(name: str, paths: pa.StringArray) -> str:
    """Return the suffix that all files of a field have, with its dot.

    Raises:
        ManifestError: The files have several suffixes, or no suffix. Shards and readers go by the suffix.
    """
    found = suffixes_of(paths).unique().to_pylist()
    if len(found) > 1 or found == [""]:
        raise fault(
            f"the files of {name} have the suffixes {', '.join(each or '(none)' for each in found)}",
            "one suffix, the same for all samples, since programs take a file for what its suffix says",
            "Convert the others, or pack them apart",
        )
    return str(found[0]) if found else ""
