"""Write a manifest as JSON, one entry a line: fast to write, and two versions can be compared.

The trap: `json.dump(..., indent=…)` uses a slow pure-Python encoder, and a job that is killed while
it writes leaves half a file under the final name. So lines are joined here, written aside, flushed to
disk and renamed. Notebook 02 teaches it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from helpers.errors import ManifestError

FORMAT, VERSION = "smallfiles-manifest", 1
_SLICE = 50_000  # rows that exist as Python objects at once


def write_columns(path: Path, header: Mapping[str, Any], table: pa.Table) -> None:
    """Write our shape: a header, then the columns.

    Args:
        path: The file; replaced if it exists.
        header: What stands above the columns.
        table: The checked table.
    """
    _write_aside(path, _column_lines(header, table))


def write_flat(path: Path, paths: pa.StringArray, targets: pa.Array) -> None:
    """Write the flat shape `{path: target}`."""
    _write_aside(path, _flat_lines(paths, targets))


def _column_lines(header: Mapping[str, Any], table: pa.Table) -> Iterator[str]:
    yield "{\n"
    for name, value in {"format": FORMAT, "version": VERSION, **header}.items():
        yield f'"{name}": {json.dumps(value, ensure_ascii=False)},\n'
    yield '"columns": {\n'
    for number, name in enumerate(table.column_names):
        yield f'{"," if number else ""}"{name}": [\n' if not number else f',\n"{name}": [\n'
        yield from _joined(
            _entries(name, table.column(name), start) for start in range(0, len(table), _SLICE)
        )
        yield "\n]"
    yield "\n}\n}\n"


def _flat_lines(paths: pa.StringArray, targets: pa.Array) -> Iterator[str]:
    yield "{\n"
    yield from _joined(
        [
            f"{json.dumps(path, ensure_ascii=False)}: {json.dumps(target, ensure_ascii=False)}"
            for path, target in rows
        ]
        for rows in (
            zip(paths.slice(start, _SLICE).to_pylist(), targets.slice(start, _SLICE).to_pylist(), strict=True)
            for start in range(0, len(paths), _SLICE)
        )
    )
    yield "\n}\n"


def _joined(slices: Iterator[list[str]]) -> Iterator[str]:
    for number, entries in enumerate(slices):
        yield (",\n" if number else "") + ",\n".join(entries)


def _entries(name: str, column: pa.ChunkedArray, start: int) -> list[str]:
    values = column.slice(start, _SLICE).to_pylist()
    if name == "meta":
        return ["null" if text is None else text for text in values]
    return [json.dumps(value, ensure_ascii=False) for value in values]


def _write_aside(path: Path, pieces: Iterator[str]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with aside.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        raise ManifestError(
            f"the manifest {path} cannot be written ({error.strerror or error})",
            expected="a folder that may be written, with space left",
            next_step="Check the path, its permissions and your quota",
        ) from error


def _flush_folder(folder: Path) -> None:
    """The new name itself must reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
