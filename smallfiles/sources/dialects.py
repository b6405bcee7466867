"""How a text table is written: its delimiter, its quoting, its encoding, and whether it has a header.

The trap: quotes mean two things. In most CSV files they enclose texts, and in the TSV files of Common Voice
they are ordinary characters that need no partner. A reader that assumes the first loses rows of the second
without an error. So a file with quotes is parsed both ways, and a reading counts only if it gives every row
the same number of columns.
"""

from __future__ import annotations

import codecs
import csv
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from smallfiles.errors import SourceError
from smallfiles.progress import plural

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
        quoting: Whether double quotes enclose texts; otherwise they are ordinary characters.
        header: Whether the first line has the names of the columns.
        remark: What the other reading would change; empty if nothing.
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
    """Rows and columns of one reading of a table, or what is wrong with it."""

    rows: int = 0
    columns: int = 0
    problem: str = ""


def dialect_of(path: Path, flags: Sequence[str]) -> Dialect:
    """Decide how a text table is written.

    Args:
        path: A `.tsv` file has tabs; any other file has the delimiter that gives each row as many columns.
        flags: The flags `--field`: if they name `column1`, and the first line does not, there is no header.

    Raises:
        SourceError: It is not UTF-8, its quoting is broken, or it can be read in two ways.
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
    """Whether a file has double quotes, and line ends of old Macs; refuse one that is not UTF-8."""
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


def rows_of(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a text table, the header too, each with the number of its last line."""
    return _rows(path, dialect.delimiter, dialect.quoting, "\n")


def _rows(path: Path, delimiter: str, quoting: bool, end: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with the number of its last line."""
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
        for line, row in _rows(path, delimiter, quoting, end):
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
    """Whether a delimiter gives each row the same number of columns, and more than one."""
    return quoted.columns > 1 or (delimiter in "\t|" and plain.columns > 1)


def _quoting(path: Path, delimiter: str, plain: _Shape, quoted: _Shape, end: str) -> tuple[bool, str]:
    """Whether quotes enclose texts, and what the other reading would change."""
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
    both = zip_longest(_rows(path, delimiter, True, end), _rows(path, delimiter, False, end))
    cells = sum(a != b for one, other in both for a, b in zip(one[1], other[1], strict=True))
    return True, f"{plural(cells, 'cell')} would differ without quoting" if cells else ""


def _broken(path: Path, problem: str) -> SourceError:
    return SourceError(
        problem,
        expected="as many columns in each row, and a text in quotes that ends before a delimiter or the line",
        next_step="Correct this line, or write the table as JSON Lines (.jsonl)",
    )
