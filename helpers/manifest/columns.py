"""Turn whatever columns a caller has into checked Arrow columns, and name what is wrong.

The trap: checking a million paths in a Python loop takes seconds, so that people leave it out. Each
check here is one vectorised pass; only when it finds something does a loop name the culprits.
Notebook 02 shows the messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from helpers.errors import ManifestError, first_few
from helpers.keys import key_problem
from helpers.samples import UNLABELLED, Meta, TargetKind

SUSPICIOUS_PATH = r"\x00|(^|/)\.{0,2}(/|$)"
"""Matches exactly the strings that `key_problem` objects to (a test compares the two)."""

COLUMNS = ("path", "label", "captions", "bytes", "sha256", "meta")
_INT32, _INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


def checked_table(
    paths: Any,
    targets: Any,
    class_count: int,
    *,
    sizes: Any = None,
    sha256: Any = None,
    metas: Any = None,
    target: TargetKind | None = None,
) -> pa.Table:
    """All columns checked, alone and together.

    Raises:
        ManifestError: Names the first kind of fault that was found.
    """
    found = {"path": path_column(paths)}
    kind = target or target_kind_of(targets)
    found[kind] = label_column(targets, class_count) if kind == "label" else caption_column(targets)
    if sizes is not None:
        found["bytes"] = size_column(sizes)
    if sha256 is not None:
        found["sha256"] = sha256_column(sha256)
    if metas is not None:
        found["meta"] = meta_column(metas)
    check_lengths({name: len(column) for name, column in found.items()})
    check_unique(found["path"])
    return in_order(pa.table(found))


def in_order(table: pa.Table) -> pa.Table:
    """The columns in their usual order, so that equal manifests compare equal."""
    return table.select([name for name in COLUMNS if name in table.column_names])


def check_header(name: object, split: object, classes: Iterable[object], root_hint: object) -> None:
    """Check what stands above the columns."""
    if isinstance(classes, str) or not all(isinstance(entry, str) for entry in classes):
        raise _fault("the classes are not a list of names", "a list of strings in label order")
    for what, value in (("name", name), ("split", split), ("root_hint", root_hint)):
        if not isinstance(value, str):
            raise _fault(f"the {what} is {value!r}", "a string")
    for text in (name, split, root_hint, *classes):
        if not _is_utf8(str(text)) or "\0" in str(text):
            raise _fault(f"{text!r} in the header is not valid text", "UTF-8 without NUL")
    if str(root_hint).startswith("/"):
        raise _fault(f"the root_hint {root_hint} is an absolute path", "a path relative to the manifest file")


def target_kind_of(targets: Any) -> TargetKind:
    """Whether these are labels or captions; an empty list counts as labels."""
    if isinstance(targets, pa.Array | pa.ChunkedArray):
        nested = pa.types.is_list(targets.type) or pa.types.is_large_list(targets.type)
        return "captions" if nested else "label"
    return "captions" if len(targets) and isinstance(targets[0], list | tuple) else "label"


def path_column(paths: Any) -> pa.StringArray:
    """Paths as one Arrow array, each relative, normalised and valid UTF-8."""
    column = _string_column(paths, "paths", key_problem)
    suspicious = pc.match_substring_regex(column, SUSPICIOUS_PATH)
    if pc.any(suspicious).as_py():
        names = column.filter(suspicious).to_pylist()
        raise _fault(
            f"{_count(names, 'path')} cannot be used: {_named(names, key_problem)}",
            "relative, normalised POSIX paths inside one folder",
            "Make the paths relative to the root folder of the data",
        )
    return column


def check_unique(paths: pa.StringArray) -> None:
    """No path may occur twice."""
    if pc.count_distinct(paths).as_py() == len(paths):
        return
    counts = pc.value_counts(paths)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
    raise duplicate_fault(repeated)


def duplicate_fault(repeated: Sequence[str]) -> ManifestError:
    """The error that names repeated paths."""
    return _fault(
        f"{_count(repeated, 'path')} occur more than once: {first_few(map(repr, repeated), len(repeated))}",
        "each path once",
        "Leave out the repeats; with two labels for one file, find out which is right",
    )


def label_column(labels: Any, class_count: int) -> pa.Array:
    """Labels as int32, inside the class list where there is one."""
    column = _integers(labels, "label", nullable=False)
    lowest, highest = (UNLABELLED, class_count - 1) if class_count else (_INT32.min, _INT32.max)
    outside = pc.or_(pc.less(column, lowest), pc.greater(column, highest))
    if pc.any(outside).as_py():
        rows = np.flatnonzero(np.asarray(outside))
        named = (f"{column[int(row)]} in row {row}" for row in rows)
        raise _fault(
            f"{_count(rows, 'label')} outside the class list: {first_few(named, len(rows))}",
            f"labels from 0 to {highest}, or {UNLABELLED} for unknown",
            "Compare the order and length of the class list with the labels (1-based ids are one off)",
        )
    return column.cast(pa.int32())


def caption_column(captions: Any) -> pa.Array:
    """Captions as lists of strings."""
    if isinstance(captions, pa.Array | pa.ChunkedArray):
        captions = captions.to_pylist()
    bad = [row for row, entry in enumerate(captions) if not _is_captions(entry)]
    if bad:
        named = (f"{_short(captions[row])} in row {row}" for row in bad)
        raise _fault(
            f"{_count(bad, 'sample')} without a list of captions: {first_few(named, len(bad))}",
            "a list of strings in UTF-8 for each sample",
        )
    return _one_chunk(pa.array(captions, pa.list_(pa.string())))


def _is_captions(entry: object) -> bool:
    return isinstance(entry, list | tuple) and all(isinstance(text, str) and _is_utf8(text) for text in entry)


def size_column(sizes: Any) -> pa.Array:
    """Sizes in bytes as int64, null where unknown."""
    column = _integers(sizes, "size", nullable=True)
    negative = pc.fill_null(pc.less(column, 0), False)
    if pc.any(negative).as_py():
        rows = np.flatnonzero(np.asarray(negative))
        named = (f"{column[int(row)]} in row {row}" for row in rows)
        raise _fault(f"{_count(rows, 'size')} negative: {first_few(named, len(rows))}", "bytes from 0 on")
    return column


def sha256_column(hexes: Any) -> pa.Array:
    """SHA-256 as lower-case hexadecimal, null where unknown."""
    column = _string_column(hexes, "sha256", _sha256_problem, nullable=True)
    good = pc.fill_null(pc.match_substring_regex(column, r"^[0-9a-f]{64}$"), True)
    if not pc.all(good, min_count=0).as_py():
        bad = column.filter(pc.invert(good)).to_pylist()
        raise _fault(
            f"{_count(bad, 'sha256')} malformed: {first_few(map(_short, bad), len(bad))}",
            "64 hexadecimal digits in lower case, or null",
        )
    return column


def meta_column(metas: Sequence[Meta | None] | pa.Array) -> pa.Array:
    """JSON objects as compact text, null where there is none."""
    if isinstance(metas, pa.Array | pa.ChunkedArray):
        metas = [None if text is None else _parsed(text) for text in metas.to_pylist()]
    texts = [None if meta is None else _meta_text(meta) for meta in metas]
    bad = [row for row, text in enumerate(texts) if text == ""]
    if bad:
        named = (f"{_short(metas[row])} in row {row}" for row in bad)
        raise _fault(
            f"{_count(bad, 'meta entry')} not JSON objects: {first_few(named, len(bad))}",
            "a JSON object with string keys, or null",
        )
    return _one_chunk(pa.array(texts, pa.string()))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _meta_text(meta: object) -> str:
    if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
        return ""
    try:
        # ASCII, so that text which is not valid UTF-8 survives as escapes.
        return json.dumps(meta, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""


def check_lengths(lengths: Mapping[str, int]) -> None:
    """All columns must have one length."""
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise _fault(f"the columns have different lengths: {told}", "one entry a sample in each column")


def _string_column(
    values: Any, what: str, problem: Callable[[str], str | None], nullable: bool = False
) -> pa.StringArray:
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = list(values)
        allowed = (str, type(None)) if nullable else (str,)
        odd = [value for value in values if not isinstance(value, allowed)]
        if odd:
            raise _fault(
                f"{_count(odd, 'entry')} of {what} not strings: {first_few(map(_short, odd), len(odd))}",
                "strings",
            )
    try:
        column = _one_chunk(pa.array(values, pa.string()) if isinstance(values, list) else values)
        column = column.cast(pa.string())
        column.validate(full=True)
    except (UnicodeEncodeError, pa.ArrowException, OverflowError) as error:
        bad = [v for v in values if isinstance(v, str) and not _is_utf8(v)]
        if not bad:
            raise _fault(f"the column {what} cannot be stored ({error})", "strings, 2 GB at most") from error
        raise _fault(
            f"{_count(bad, 'entry')} of {what} not valid UTF-8: {_named(bad, problem)}", "UTF-8"
        ) from error
    if column.null_count and not nullable:
        raise _fault(f"{column.null_count:,} entries of {what} missing", "a string each")
    return column


def _integers(values: Any, what: str, *, nullable: bool) -> pa.Array:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        values = pa.array(values)
    if isinstance(values, pa.Array | pa.ChunkedArray) and pa.types.is_integer(values.type):
        column = _one_chunk(values)
        if column.null_count and not nullable:
            raise _fault(f"{column.null_count:,} entries of {what} missing", "a whole number each")
        return column.cast(pa.int64())
    values = list(values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else values)
    if not set(map(type, values)) <= ({int, type(None)} if nullable else {int}):
        _refuse_odd_integers(values, what, nullable)
        values = [None if value is None else int(value) for value in values]
    try:
        return _one_chunk(pa.array(values, pa.int64()))
    except (OverflowError, pa.ArrowException):
        huge = [value for value in values if value is not None and not _INT64.min <= value <= _INT64.max]
        raise _fault(
            f"{_count(huge, what)} too large: {first_few(map(_short, huge), len(huge))}",
            "whole numbers that fit 64 bits",
        ) from None


def _refuse_odd_integers(values: list[Any], what: str, nullable: bool) -> None:
    bad = [
        row
        for row, value in enumerate(values)
        if isinstance(value, bool)
        or not (isinstance(value, int | np.integer) or (nullable and value is None))
    ]
    if bad:
        named = (f"{_short(values[row])} in row {row}" for row in bad)
        raise _fault(
            f"{_count(bad, what)} not whole numbers: {first_few(named, len(bad))}",
            "whole numbers" + (" or null" if nullable else ""),
        )


def _one_chunk(values: Any) -> pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return values
    combined = values.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        if combined.num_chunks > 1:
            raise _fault("a column is larger than 2 GB", "a smaller set, cut into several manifests")
        return combined.chunk(0)
    return combined


def _fault(
    got: str, expected: str, next_step: str = "Correct the entries, or make the manifest again"
) -> ManifestError:
    return ManifestError(got, expected=expected, next_step=next_step)


def _count(items: Sized, what: str) -> str:
    plural = what if len(items) == 1 else (f"{what[:-1]}ies" if what.endswith("y") else f"{what}s")
    return f"{len(items):,} {plural}"


def _named(names: Sequence[str], problem: Callable[[str], str | None]) -> str:
    return first_few((f"{_short(name)} {problem(name) or ''}" for name in names), len(names))


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a very large number"
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text):,} characters)"


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _sha256_problem(text: str) -> str | None:
    return None if len(text) == 64 else "has not 64 digits"
