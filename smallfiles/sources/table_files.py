"""Read the files of tables: CSV, TSV, JSON Lines, Parquet and Arrow, as plain strings, numbers and lists.

There are two traps. Readers of CSV guess types, so that the id 007 becomes 7 and 2020-01-01 a time. Here only
columns of plain numbers without leading zeros become numbers, and nothing becomes a time. A number that a
float cannot hold stays a text. And quotes mean two things: in most CSV files they enclose texts, but in the
TSV files of Common Voice they are ordinary characters that need no partner. A reader that assumes the first
loses rows of the second without an error. So a file with quotes is parsed both ways, and a reading counts
only if it gives every row the same number of columns. docs/recipes.md uses a table.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import from_numpy, give_back_memory, scalar, to_numpy
from smallfiles.contents import refuse_pointer
from smallfiles.errors import SourceError, first_few, first_line, refuse_shortage
from smallfiles.formats.bytefile import arrow_file
from smallfiles.progress import bytes_text, plural

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
"""Floats can represent all whole numbers up to this one exactly."""
_TRUTH = r"^(true|True|TRUE|false|False|FALSE)$"


@dataclass(frozen=True)
class Group:
    """A group of rows of a file that are decoded together.

    An Arrow file is a single group, because it is mapped into memory instead.
    """

    file: Path
    number: int
    rows: int


def is_table(path: Path) -> bool:
    """Check whether a file is a table of samples.

    Arrow files with binary columns are not, because they contain the samples themselves.
    """
    if path.suffix.lower() not in _ARROW_SUFFIXES:
        return path.suffix.lower() in SUFFIXES and path.is_file()
    try:
        with open_arrow(path) as reader:
            return not any(_is_binary(field.type) for field in reader.schema)
    except (OSError, pa.ArrowException) as error:
        refuse_shortage(error, path)
        return False


def read_with_notes(path: Path, flags: Sequence[str] = ()) -> tuple[pa.Table, tuple[str, ...]]:
    """Read all rows of a table. Return the table, and notes on how it was read.

    Args:
        path: The table.
        flags: The flags `--field`. If they name `column1`, a text table has no header.

    Raises:
        SourceError: The table cannot be read, or a column holds bytes or occurs twice.
    """
    suffix = path.suffix.lower()
    notes: tuple[str, ...] = ()
    try:
        refuse_pointer(path)
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
    """Return the error for a file that is not a table."""
    refuse_shortage(error, path)
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path} does not exist", expected="a table", next_step="Check the path")
    cause = first_line(error)[:200]
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
        f"the column {first_few(names)} of {path} {what}",
        expected="columns of paths, targets and other values, each with its own name",
        next_step=cure,
    )


def _is_binary(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_is_binary(field.type) for field in type_)
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(type_) for test in tests)


def _is_plain_binary(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def schema_of(path: Path) -> pa.Schema:
    """Read the schema of a Parquet or Arrow file."""
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
    """Yield a Parquet or Arrow file a few rows at a time, without decoding more than these rows."""
    from pyarrow import parquet

    if path.suffix.lower() == ".parquet":
        with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield from file.iter_batches(_ROWS_AT_ONCE)
    else:
        with open_arrow(path) as reader:
            yield from reader.read_all().to_batches(_ROWS_AT_ONCE)


def groups_of(path: Path) -> list[Group]:
    """Return the groups of rows of a Parquet or Arrow file.

    Raises:
        SourceError: A group is too large to be decoded at once.
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
    """Return `bytes` or `path` of a column of files, for the rows of one group.

    If the column holds plain bytes, all paths are null.
    """
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
    """Convert texts to numbers, if all of them are numbers as other programs write them.

    These include "not a number" and infinity.

    Returns:
        The column, and a phrase on what happened to numbers that 64 bits cannot hold. It continues a
        sentence.
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
    """Return the first cell whose float is another number. Return an empty text if there is no such cell.

    Such cells are whole numbers above 2^53, and numbers that became infinite or zero.
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
    """Return texts with null in place of empty texts."""
    empty = pc.equal(texts, scalar(""))
    return pc.if_else(empty, scalar(None), texts) if pc.any(empty).as_py() else texts


def as_truth(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert texts to truth values, if all of them are. Otherwise, return the texts."""
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
    """Refuse whole numbers that were rounded because another number in their column is a float."""
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
    """Return a whole number in a JSON value that is a different number in the table.

    Return None if there is none.
    """
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
    """Open an Arrow file or stream. It is mapped into memory if it is on a local disk."""
    source = arrow_file(path)
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to strings, numbers or lists."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.cast(kind.value_type))
    texts = ("is_large_string", "is_string_view", "is_temporal", "is_decimal", "is_null")
    return column.cast(pa.string()) if any(getattr(pa.types, test)(kind) for test in texts) else column


_READERS = {**dict.fromkeys((".jsonl", ".ndjson"), _read_json), ".parquet": _read_parquet}


LONGEST_LINE_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 20
_IN_WORDS = {",": "commas", "\t": "tabs"}
_NUMBERED = re.compile(r"column[1-9][0-9]*")
_LONE_RETURN = re.compile(rb"\r(?!\n)")


@dataclass(frozen=True)
class Dialect:
    """How a text table is written.

    Args:
        delimiter: The character between two columns.
        quoting: Whether double quotes enclose texts. Otherwise, they are ordinary characters.
        header: Whether the first line holds the names of the columns.
        remark: What would change if quotes were interpreted the other way. It is empty if nothing would.
    """

    delimiter: str
    quoting: bool
    header: bool
    remark: str = ""

    def note(self, path: Path) -> str:
        """Return the sentence that says how the table was read."""
        between = _IN_WORDS.get(self.delimiter, repr(self.delimiter))
        how = f"with {between} between columns, {'with' if self.quoting else 'without'} quoting, as UTF-8"
        remark = f"; {self.remark}" if self.remark else ""
        return f"{path.name} was read {how}, {'with' if self.header else 'without'} a header{remark}"


@dataclass(frozen=True)
class _Shape:
    """The number of rows and columns of a table when read in one way, or what is wrong with this way."""

    rows: int = 0
    columns: int = 0
    problem: str = ""


def dialect_of(path: Path, flags: Sequence[str]) -> Dialect:
    """Determine how a text table is written.

    Args:
        path: The table. A `.tsv` file has tabs. Any other file has the delimiter that gives all rows the same
            number of columns.
        flags: The flags `--field`. If they name `column1`, and the first line does not, there is no header.

    Raises:
        SourceError: The table is not UTF-8, its quoting is broken, or it can be read in two ways.
    """
    has_quotes, has_lone_returns = _scan(path)
    with path.open("rb") as file:
        first = file.readline(LONGEST_LINE_BYTES).decode("utf-8-sig", "replace")
    header = not set(_NUMBERED.findall(" ".join(flags))) - set(_NUMBERED.findall(first))
    candidates = "\t" if path.suffix.lower() == ".tsv" else "".join(each for each in ",;\t|" if each in first)
    if len(candidates) < 2 and not (has_quotes or has_lone_returns):
        return Dialect(candidates or ",", True, header)
    end = "\r" if has_lone_returns and b"\n" not in first.encode() else "\n"
    plain = {each: _shape(path, each, False, end) for each in candidates or ","}
    quoted = {each: _shape(path, each, True, end) for each in plain} if has_quotes else plain
    fitting = [each for each in plain if _fits(plain[each], quoted[each], each)]
    if len(fitting) > 1:
        raise SourceError(
            f"{path} can be read in two ways: {fitting[0]!r} and {fitting[1]!r} both give each row the same "
            "number of columns",
            expected="one delimiter that fits",
            next_step="Write the table again with tabs between the columns, as a .tsv file",
        )
    delimiter = (fitting or sorted(plain, key=first.count))[-1]
    quoting, remark = True, ""
    if has_quotes:
        quoting, remark = _quoting(path, delimiter, plain[delimiter], quoted[delimiter], end)
    elif problem := plain[delimiter].problem:
        raise _broken(path, problem)
    return Dialect(delimiter, quoting, header, remark)


def _scan(path: Path) -> tuple[bool, bool]:
    """Check whether a file has double quotes, and whether it has line ends of old Macs.

    Refuse a file that is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    quotes, returns, lines, tail = False, False, 1, b""
    with path.open("rb") as file:
        head = file.read(2)
        if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise _other_encoding(path, f"{path} is in UTF-16", "", "UTF-16")
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                lines += chunk[: max(0, error.start)].count(b"\n")
                what = f"line {lines} of {path} is not UTF-8"
                raise _other_encoding(path, what, "If it is Latin-1, as is likely: ", "LATIN1") from error
            lines += chunk.count(b"\n")
            quotes = quotes or b'"' in chunk
            returns = returns or _LONE_RETURN.search(tail + chunk[:-1] + chunk[-1:].rstrip(b"\r")) is not None
            tail = chunk[-1:] if chunk.endswith(b"\r") else b""
    return quotes, returns or bool(tail)


def _other_encoding(path: Path, what: str, guess: str, name: str) -> SourceError:
    new = path.with_name(f"{path.stem}.utf-8{path.suffix}")
    command = f"iconv -f {name} -t UTF-8 {shlex.quote(str(path))} > {shlex.quote(str(new))}"
    return SourceError(what, expected="text in UTF-8", next_step=f"Convert it. {guess}{command}")


def rows_of(path: Path, delimiter: str, quoting: bool, end: str = "\n") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a text table, including the header. Each comes with the number of its last line."""
    csv.field_size_limit(LONGEST_LINE_BYTES)
    with path.open(encoding="utf-8-sig", newline=end) as file:
        reader = csv.reader(
            file, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE, strict=True
        )
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            what = str(error) if quoting else "a line break within a cell"
            raise ValueError(f"line {reader.line_num} of {path} cannot be read ({what})") from error


def _shape(path: Path, delimiter: str, quoting: bool, end: str) -> _Shape:
    columns = count = 0
    try:
        for line, row in rows_of(path, delimiter, quoting, end):
            columns = columns or len(row)
            if len(row) != columns:
                return _Shape(
                    problem=f"line {line} of {path} has {plural(len(row), 'column')}, "
                    f"and the first line has {columns}"
                )
            count += 1
    except ValueError as error:
        return _Shape(problem=str(error))
    return _Shape(count, columns)


def _fits(plain: _Shape, quoted: _Shape, delimiter: str) -> bool:
    """Check whether a delimiter gives all rows the same number of columns, and more than one."""
    return quoted.columns > 1 or (delimiter in "\t|" and plain.columns > 1)


def _quoting(path: Path, delimiter: str, plain: _Shape, quoted: _Shape, end: str) -> tuple[bool, str]:
    """Return whether quotes enclose texts, and what would change if they were interpreted the other way."""
    may_be_plain = delimiter in "\t|" and not plain.problem
    if not may_be_plain:
        if quoted.problem:
            raise _broken(path, f"{quoted.problem}, and its quotes are to enclose texts")
        return True, ""
    if quoted.problem:
        return False, f"its quotes are ordinary characters, since with quoting {quoted.problem}"
    if plain.rows != quoted.rows:
        raise SourceError(
            f"{path} can be read in two ways: it has {quoted.rows - 1:,} rows with quoting "
            f"and {plain.rows - 1:,} rows without",
            expected="quotes that enclose whole cells, or no quote at the beginning of a cell",
            next_step="Write it as JSON Lines (.jsonl, one object per row), where quotes are clear",
        )
    both = zip_longest(rows_of(path, delimiter, True, end), rows_of(path, delimiter, False, end))
    cells = sum(a != b for one, other in both for a, b in zip(one[1], other[1], strict=True))
    return True, f"{plural(cells, 'cell')} would differ without quoting" if cells else ""


def _broken(path: Path, problem: str) -> SourceError:
    return SourceError(
        problem,
        expected="as many columns in each row, and a text in quotes that ends before a delimiter or the line",
        next_step="Correct this line, or write the table as JSON Lines (.jsonl)",
    )
