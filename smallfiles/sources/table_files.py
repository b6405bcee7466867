"""Read the files of tables: CSV, TSV, JSON Lines, Parquet and Arrow, as plain strings, numbers and lists.

The trap: readers of CSV guess types, so that the id 007 becomes 7 and 2020-01-01 a time. Here only columns
of plain numbers without leading zeros become numbers, and nothing becomes a time. docs/recipes.md uses one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import give_back_memory
from smallfiles.errors import SourceError, first_few, refuse_shortage
from smallfiles.progress import bytes_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".feather", ".arrow")
_ARROW_SUFFIXES = SUFFIXES[5:]
_ROWS_AT_ONCE = 64
_LARGEST_GROUP_BYTES = 2 << 30
_LONGEST_LINE_BYTES = 1 << 24
_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_DECIMAL = r"^(-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?|nan|NaN|-?inf)$"
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
    except (OSError, pa.ArrowException):
        return False


def read_table(path: Path) -> pa.Table:
    """All rows of a table.

    Raises:
        SourceError: It cannot be read, or a column holds bytes or is there twice.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in _READERS:
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
    return found


def unreadable(path: Path, error: Exception) -> SourceError:
    """The error for a file that is no table."""
    refuse_shortage(error, path)
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path} does not exist", expected="a table", next_step="Check the path")
    cause = (str(error).splitlines() or [type(error).__name__])[0][:200]
    if "straddling" in cause:
        cause = f"a line is longer than {_LONGEST_LINE_BYTES >> 20} MiB"
    return SourceError(
        f"{path} cannot be read as a table ({cause})",
        expected="UTF-8 text or an Arrow or Parquet file, with one row per file",
        next_step="Correct it, or write it again",
    )


def _refuse_columns(path: Path, schema: pa.Schema) -> None:
    binary = [field.name for field in schema if _is_binary(field.type)]
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if binary or twice:
        what, names = ("contains bytes", binary) if binary else ("occurs several times", twice)
        raise SourceError(
            f"the column {first_few(names, len(names))} of {path} {what}",
            expected="columns of paths, targets and other values, each with its own name",
            next_step="For pictures in a table use sources.from_dataset(datasets.load_dataset(...))"
            if binary
            else "Rename one of them",
        )


def _is_binary(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_is_binary(field.type) for field in kind)
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def schema_of(path: Path) -> pa.Schema:
    """The columns of a Parquet or Arrow file."""
    from pyarrow import parquet

    if path.suffix.lower() == ".parquet":
        return parquet.read_schema(path)
    with open_arrow(path) as reader:
        return reader.schema


def file_columns(path: Path) -> tuple[str, ...]:
    """The columns of a Parquet or Arrow file that hold files, as structs of `bytes` and `path`."""
    try:
        schema = schema_of(path)
        schema.names  # noqa: B018 - a name may be no UTF-8
    except (OSError, ValueError, pa.ArrowException):
        return ()  # reading says why
    return tuple(
        field.name
        for field in schema
        if pa.types.is_struct(field.type)
        and {each.name for each in field.type} == {"bytes", "path"}
        and _is_binary(field.type)
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
    """`bytes` or `path` of one column of files in a group."""
    from pyarrow import parquet

    if group.file.suffix.lower() == ".parquet":
        with parquet.ParquetFile(group.file) as file:
            table = file.read_row_group(group.number, columns=[f"{name}.{part}"])
    else:
        with open_arrow(group.file) as reader:
            table = reader.read_all()
    return pc.struct_field(table.column(name), part)


def _read_csv(path: Path) -> pa.Table:
    from pyarrow import csv

    with path.open("rb") as file:
        header = file.readline(_LONGEST_LINE_BYTES)
    is_tsv = path.suffix.lower() == ".tsv"
    delimiter = b"\t" if is_tsv else max(b",", b";", b"\t", b"|", key=header.count)
    read = csv.ReadOptions(block_size=_LONGEST_LINE_BYTES)
    parse = csv.ParseOptions(delimiter=delimiter.decode(), newlines_in_values=True)
    with csv.open_csv(path, read, parse) as reader:
        texts = dict.fromkeys(reader.schema.names, pa.string())
    convert = csv.ConvertOptions(column_types=texts, strings_can_be_null=True, null_values=[""])
    with csv.open_csv(path, read, parse, convert) as reader:  # in a stream: all at once take 80 MB more
        names, columns = reader.schema.names, reader.read_all().columns
    for at, texts in enumerate(columns):  # the texts of numbers are given back one column at a time
        columns[at] = _typed(texts)
    return pa.Table.from_arrays(columns, names)


def _typed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as numbers, if all of them are, as other programs write them: also not a number, and infinity."""
    for pattern, kind in ((_WHOLE, pa.int64()), (_DECIMAL, pa.float64())):
        if texts.null_count < len(texts) and pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            return texts.cast(kind)
    return texts


def as_truth(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as truth values, if all of them are."""
    all_are = texts.null_count < len(texts) and pc.all(pc.match_substring_regex(texts, _TRUTH)).as_py()
    return texts.cast(pa.bool_()) if all_are else texts


def _read_json(path: Path) -> pa.Table:
    from pyarrow import json

    read = json.ReadOptions(block_size=_LONGEST_LINE_BYTES)
    table = json.read_json(path, read)
    times = [field.with_type(pa.string()) for field in table.schema if pa.types.is_timestamp(field.type)]
    if not times:
        return table
    # Texts that look like times; Arrow has no option that keeps them.
    return json.read_json(path, read, json.ParseOptions(explicit_schema=pa.schema(times)))


def _read_parquet(path: Path) -> pa.Table:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        _refuse_columns(path, file.schema_arrow)  # before gigabytes of pictures are read
        return file.read()


def open_arrow(path: Path) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    """An Arrow file of either form, mapped into memory."""
    source = pa.memory_map(str(path))
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
    **dict.fromkeys((".csv", ".tsv"), _read_csv),
    **dict.fromkeys((".jsonl", ".ndjson"), _read_json),
    ".parquet": _read_parquet,
}
