"""Write a manifest as JSON, one entry per line: fast to write, and easy to diff.

The trap: `json.dump(..., indent=…)` uses a slow encoder, and a job killed while it writes leaves half a file
under the final name. So lines are joined here, written to a temporary file, flushed and renamed. Notebook 02
teaches it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from smallfiles.atomic import replaced
from smallfiles.errors import ManifestError
from smallfiles.fields import finite

FORMAT, VERSION = "smallfiles-manifest", 1
_SLICE = 50_000  # rows at a time as Python objects

_quoted: Callable[[str], str] = json.JSONEncoder(ensure_ascii=False).encode


def write_columns(path: Path, header: Mapping[str, Any], table: pa.Table) -> None:
    """Write our form: a header, then the columns.

    Args:
        path: The file; replaced if it exists.
        header: Written above the columns.
        table: The checked table.

    Raises:
        ManifestError: It cannot be written.
    """
    _write(path, _column_lines(header, table))


def write_flat(path: Path, paths: pa.StringArray, targets: pa.Array) -> None:
    """Write the flat form `{path: target}`.

    Raises:
        ManifestError: It cannot be written.
    """
    _write(path, _flat_lines(paths, targets))


def _column_lines(header: Mapping[str, Any], table: pa.Table) -> Iterator[str]:
    yield "{\n"
    for name, value in {"format": FORMAT, "version": VERSION, **header}.items():
        yield f'"{name}": {_quoted(value)},\n'
    yield '"columns": {'
    for number, name in enumerate(table.column_names):
        yield f'{"," if number else ""}\n"{name}": [\n'
        yield from _joined(_entries(part, name) for part in _slices(table.column(name)))
        yield "\n]"
    yield "\n}\n}\n"


def _flat_lines(paths: pa.StringArray, targets: pa.Array) -> Iterator[str]:
    yield "{\n"
    parts = zip(_slices(paths), _slices(targets), strict=True)
    yield from _joined(
        map("{}: {}".format, _entries(keys, "path"), _entries(values, "")) for keys, values in parts
    )
    yield "\n}\n"


def _slices(column: pa.Array | pa.ChunkedArray) -> Iterator[list[Any]]:
    return (column.slice(start, _SLICE).to_pylist() for start in range(0, len(column), _SLICE))


def _entries(values: list[Any], name: str) -> Iterable[str]:
    if name == "meta":
        return ("null" if text is None else text for text in values)
    kinds = set(map(type, values))
    if kinds == {int}:
        return map(str, values)
    return map(_quoted, map(finite, values) if kinds & {float, list} else values)


def _joined(slices: Iterator[Iterable[str]]) -> Iterator[str]:
    for number, entries in enumerate(slices):
        yield (",\n" if number else "") + ",\n".join(entries)


def _write(path: Path, pieces: Iterator[str]) -> None:
    try:
        with replaced(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(pieces)
    except OSError as error:
        raise ManifestError(
            f"the manifest {path} cannot be written ({error.strerror or error})",
            expected="a folder that may be written, with space left",
            next_step="Check the path, its permissions and your quota",
        ) from error
