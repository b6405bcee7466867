"""Read the files of tables: CSV, TSV, JSON Lines, Parquet and Arrow, as plain strings, numbers and lists.

The trap: readers of CSV guess types, so that the id 007 becomes 7 and 2020-01-01 a time. Here only columns
of plain numbers without leading zeros become numbers, and nothing becomes a time. A number that a float
cannot hold stays a text. docs/recipes.md uses one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import from_numpy, give_back_memory, scalar, to_numpy
from smallfiles.errors import SourceError, first_few, refuse_shortage
from smallfiles.formats.bytefile import arrow_file
from smallfiles.progress import bytes_text
from smallfiles.sources.dialects import LONGEST_LINE_BYTES, dialect_of

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".feather", ".arrow")
TEXT_SUFFIXES = SUFFIXES[:2]
_ARROW_SUFFIXES = SUFFIXES[5:]
_LOOKED_AT = 100
_ROWS_AT_ONCE = 64
_LARGEST_GROUP_BYTES = 2 << 30
_WHOLE = r"^(0|-?[1-9][0-9]*)$"
_DECIMAL = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?|nan|NaN|-?inf)$"
_NOT_ZERO = r"^[^eE]*[1-9]"
_MANY_DIGITS = r"^-?[0.]*[1-9]([.]?[0-9]){17}"
_LONG_NUMBER = re.compile(rb"[0-9]{16}")
_LARGEST_EXACT = 1 << 53
"""Floats hold every whole number up to this one."""
_TRUTH = r"^(true|True|TRUE|false|False|FALSE)$"


@dataclass(frozen=True)
class Group:
    """Rows of a file that are decoded together; all of an Arrow file, which is mapped into memory instead."""

    file: Path
    number: int
    rows: int


def is_table(path: Path) -> bool:
    """Whether a file is a table of samples; Arrow files with binary columns contain the samples."""
    if path.suffix.lower() not in _ARROW_SUFFIXES:
        return path.suffix.lower() in SUFFIXES and path.is_file()
    try:
        with open_arrow(path) as reader:
            return not any(_is_binary(field.type) for field in reader.schema)
    except (OSError, pa.ArrowException) as error:
        refuse_shortage(error, path)
        return False


def read_table(path: Path) -> pa.Table:
    """Return all rows of a table; see `read_with_notes`."""
    return read_with_notes(path)[0]


def read_with_notes(path: Path, flags: Sequence[str] = ()) -> tuple[pa.Table, tuple[str, ...]]:
    """Return all rows of a table, and how it was read.

    Args:
        path: The table.
        flags: The flags `--field`; those that name `column1` say that a text table has no header.

    Raises:
        SourceError: It cannot be read, or a column holds bytes or is there twice.
    """
    suffix = path.suffix.lower()
    notes: tuple[str, ...] = ()
    try:
        if suffix in TEXT_SUFFIXES and path.exists():
            table, notes = _read_csv(path, flags)
        elif suffix in _READERS:
            table = _READERS[suffix](path)
        elif suffix in _ARROW_SUFFIXES or not path.exists():
            with open_arrow(path) as reader:
                table = reader.read_all()
        else:
            raise ValueError(f"its suffix is not one of {', '.join(SUFFIXES)}")
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    _refuse_columns(path, table.schema)
    found = pa.table({name: plain(table.column(name)) for name in table.column_names})
    del table
    give_back_memory()  # 100 MB for a million rows
    return found, notes


def unreadable(path: Path, error: Exception) -> SourceError:
    """The error for a file that is no table."""
    refuse_shortage(error, path)
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path} does not exist", expected="a table", next_step="Check the path")
    cause = (str(error).splitlines() or [type(error).__name__])[0][:200]
    if "straddling" in cause:
        cause = f"a line is longer than {LONGEST_LINE_BYTES >> 20} MiB"
    return SourceError(
        f"{path} cannot be read as a table ({cause})",
        expected="UTF-8 text or an Arrow or Parquet file, with one row per file",
        next_step="Correct it, or write it again",
    )


def _refuse_columns(path: Path, schema: pa.Schema) -> None:
    binary = [field.name for field in schema if _is_binary(field.type)]
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if not (binary or twice):
        return
    if not binary:
        what, names, cure = "occurs several times", twice, "Rename one of them"
    elif _is_plain_binary(schema.field(binary[0]).type):
        what, names = "contains bytes", binary
        cure = (
            f"If it holds the files of the samples, pack this table with --field image={binary[0]}; "
            "if not, write the table without it"
        )
    else:
        what, names = "contains bytes", binary
        cure = "Write its bytes as a plain binary column, or write the table without it"
    raise SourceError(
        f"the column {first_few(names, len(names))} of {path} {what}",
        expected="columns of paths, targets and other values, each with its own name",
        next_step=cure,
    )


def _is_binary(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_is_binary(field.type) for field in kind)
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _is_plain_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def schema_of(path: Path) -> pa.Schema:
    """The columns of a Parquet or Arrow file."""
    from pyarrow import parquet

    if path.suffix.lower() == ".parquet":
        return parquet.read_schema(path)
    with open_arrow(path) as reader:
        return reader.schema


def file_columns(path: Path, binary: bool = False) -> tuple[str, ...]:
    """Return the columns of a Parquet or Arrow file that hold files, as structs of `bytes` and `path`.

    Args:
        path: The table.
        binary: Also return columns of a Parquet file that hold bytes alone. They may be anything, so the user
            must have declared that they are files.
    """
    binary = binary and path.suffix.lower() == ".parquet"
    try:
        schema = schema_of(path)
        schema.names  # noqa: B018 - a name may be no UTF-8
    except (OSError, ValueError, pa.ArrowException) as error:
        refuse_shortage(error, path)
        return ()  # reading says why
    return tuple(
        field.name
        for field in schema
        if (binary and _is_plain_binary(field.type))
        or (
            pa.types.is_struct(field.type)
            and {each.name for each in field.type} == {"bytes", "path"}
            and _is_binary(field.type)
        )
    )


def batches_of(path: Path) -> Iterator[pa.RecordBatch]:
    """A few rows at a time of a Parquet or Arrow file, without decoding more."""
    from pyarrow import parquet

    if path.suffix.lower() == ".parquet":
        with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield from file.iter_batches(_ROWS_AT_ONCE)
    else:
        with open_arrow(path) as reader:
            yield from reader.read_all().to_batches(_ROWS_AT_ONCE)


def groups_of(path: Path) -> list[Group]:
    """The groups of rows of a Parquet or Arrow file.

    Raises:
        SourceError: One is too large to be decoded at once.
    """
    from pyarrow import parquet

    if path.suffix.lower() != ".parquet":
        with open_arrow(path) as reader:
            return [Group(path, 0, len(reader.read_all()))]
    about = parquet.read_metadata(path)
    groups = [about.row_group(at) for at in range(about.num_row_groups)]
    largest = max((group.total_byte_size for group in groups), default=0)
    if largest > _LARGEST_GROUP_BYTES:
        raise SourceError(
            f"{path} has a group of rows of {bytes_text(largest)}, which is decoded at once",
            expected=f"groups of at most {bytes_text(_LARGEST_GROUP_BYTES)}",
            next_step="Write it again with smaller ones (pyarrow: row_group_size=100)",
        )
    return [Group(path, at, group.num_rows) for at, group in enumerate(groups)]


def read_group(group: Group, name: str, part: str) -> pa.ChunkedArray:
    """Return `bytes` or `path` of one column of files in a group; all paths are null beside plain bytes."""
    from pyarrow import parquet

    if group.file.suffix.lower() == ".parquet":
        with parquet.ParquetFile(group.file) as file:
            if not pa.types.is_struct(file.schema_arrow.field(name).type):
                if part == "path":
                    return pa.chunked_array([pa.nulls(group.rows, pa.string())])
                return file.read_row_group(group.number, columns=[name]).column(name)
            table = file.read_row_group(group.number, columns=[f"{name}.{part}"])
    else:
        with open_arrow(group.file) as reader:
            table = reader.read_all()
    return pc.struct_field(table.column(name), part)


def _read_csv(path: Path, flags: Sequence[str]) -> tuple[pa.Table, tuple[str, ...]]:
    from pyarrow import csv

    dialect = dialect_of(path, flags)
    read = csv.ReadOptions(block_size=LONGEST_LINE_BYTES, autogenerate_column_names=not dialect.header)
    quote = '"' if dialect.quoting else False
    parse = csv.ParseOptions(
        delimiter=dialect.delimiter, quote_char=quote, newlines_in_values=dialect.quoting
    )
    with csv.open_csv(path, read, parse) as reader:
        texts = dict.fromkeys(reader.schema.names, pa.string())
    convert = csv.ConvertOptions(
        column_types=texts, strings_can_be_null=True, null_values=[""], quoted_strings_can_be_null=False
    )
    with csv.open_csv(path, read, parse, convert) as reader:  # in a stream: all at once take 80 MB more
        names, columns = reader.schema.names, reader.read_all().columns
    if not dialect.header:
        names = [f"column{number}" for number in range(1, len(names) + 1)]
    notes = [dialect.note(path)]
    for at, name in enumerate(names):  # the texts of numbers are given back one column at a time
        columns[at], said = _typed(columns[at])
        notes += [f"{path.name}: the column {name} {said}"] * bool(said)
    return pa.Table.from_arrays(columns, names), tuple(notes)


def _typed(texts: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str]:
    """Texts as numbers, if all of them are, as other programs write them: also not a number, and infinity.

    Returns:
        The column, and what happened to numbers that 64 bits cannot hold, to continue a sentence.
    """
    some = texts.slice(0, _LOOKED_AT)
    if pc.any(pc.and_(pc.not_equal(some, scalar("")), pc.invert(_match(some, _DECIMAL)))).as_py():
        return texts, ""  # a column of texts, as its first rows tell
    cells = missing_if_empty(texts)
    if cells.null_count == len(cells):
        return texts, ""
    if pc.all(_match(cells, _WHOLE)).as_py():
        try:
            return cells.cast(pa.int64()), ""
        except pa.ArrowInvalid:
            return texts, "stays text, since it has whole numbers of more than 64 bits with a sign"
    if not pc.all(_match(cells, _DECIMAL)).as_py():
        return texts, ""
    numbers = cells.cast(pa.float64())
    changed = _changed(cells, numbers)
    if changed:
        return texts, f"stays text, since a float cannot hold some of its numbers, such as {changed}"
    rounded = cells.filter(_match(cells, _MANY_DIGITS))
    rounded = rounded.filter(pc.invert(_match(rounded, _WHOLE)))
    said = (
        f"has numbers of more than 17 digits, which are rounded, such as {rounded[0].as_py()}"
        if len(rounded)
        else ""
    )
    return numbers, said


def _match(texts: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    return pc.match_substring_regex(texts, pattern)


def _changed(cells: pa.ChunkedArray, numbers: pa.ChunkedArray) -> str:
    """The first cell that means another number than its float; empty if there is none.

    These are whole numbers above 2^53, and those that became infinite or zero.
    """
    values = np.concatenate([to_numpy(each) for each in numbers.chunks])
    odd = np.flatnonzero(np.isinf(values) | (values == 0) | (np.abs(values) >= _LARGEST_EXACT))
    for row, text in zip(odd.tolist(), cells.take(from_numpy(odd)).to_pylist(), strict=True):
        number = float(values[row])
        if text is None:
            continue
        if math.isinf(number) and "inf" not in text:
            return str(text)
        if not number and re.match(_NOT_ZERO, text):
            return str(text)
        if re.match(_WHOLE, text) and number != int(text):
            return str(text)
    return ""


def missing_if_empty(texts: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return texts with null in place of empty ones."""
    empty = pc.equal(texts, scalar(""))
    return pc.if_else(empty, scalar(None), texts) if pc.any(empty).as_py() else texts


def as_truth(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as truth values, if all of them are."""
    cells = missing_if_empty(texts)
    all_are = cells.null_count < len(cells) and pc.all(_match(cells, _TRUTH)).as_py()
    return cells.cast(pa.bool_()) if all_are else texts


def _read_json(path: Path) -> pa.Table:
    from pyarrow import json as arrow_json

    read = arrow_json.ReadOptions(block_size=LONGEST_LINE_BYTES)
    table = arrow_json.read_json(path, read)
    _refuse_rounded(path, table)
    times = [field.with_type(pa.string()) for field in table.schema if pa.types.is_timestamp(field.type)]
    if not times:
        return table
    # Texts that look like times; Arrow has no option that keeps them.
    return arrow_json.read_json(path, read, arrow_json.ParseOptions(explicit_schema=pa.schema(times)))


def _refuse_rounded(path: Path, table: pa.Table) -> None:
    """Refuse whole numbers that became other floats, since another number of their column is a float."""
    with path.open("rb") as file:
        if not any(map(_LONG_NUMBER.search, file)):
            return
    rows = (row for batch in table.to_batches(_ROWS_AT_ONCE) for row in batch.to_pylist())
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            for said in _objects(line):
                if (wrong := _rounded(said, next(rows))) is not None:
                    raise ValueError(
                        f"line {number} has the whole number {wrong}, which cannot be held exactly: its "
                        "column has floats, or whole numbers of more than 64 bits; write the column as texts"
                    )


def _objects(line: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    line = line.strip()
    while at < len(line):
        found, at = decoder.raw_decode(line, at)
        at += len(line[at:]) - len(line[at:].lstrip())
        yield found


def _rounded(said: Any, stored: Any) -> int | None:
    """A whole number of a JSON value that is another number in the table; None if there is none."""
    if type(said) is int and type(stored) is float:
        return said if stored != said else None
    if isinstance(said, dict) and isinstance(stored, dict):
        pairs = [(each, stored.get(name)) for name, each in said.items()]
    elif isinstance(said, list) and isinstance(stored, list):
        pairs = [*zip(said, stored, strict=True)]
    else:
        return None
    return next((wrong for pair in pairs if (wrong := _rounded(*pair)) is not None), None)


def _read_parquet(path: Path) -> pa.Table:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        _refuse_columns(path, file.schema_arrow)  # before gigabytes of pictures are read
        return file.read()


def open_arrow(path: Path) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    """An Arrow file of either form; mapped into memory if it is on a local disk."""
    source = arrow_file(path)
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as strings, numbers or lists."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.cast(kind.value_type))
    texts = ("is_large_string", "is_string_view", "is_temporal", "is_decimal", "is_null")
    return column.cast(pa.string()) if any(getattr(pa.types, test)(kind) for test in texts) else column


_READERS = {
    **dict.fromkeys((".jsonl", ".ndjson"), _read_json),
    ".parquet": _read_parquet,
}
