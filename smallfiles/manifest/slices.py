"""Read a large manifest a few megabytes at a time, straight into Arrow columns.

`json.load` makes all objects of a file before one sees the first: 300 MB at the peak for ImageNet.
Here the file is cut at places that look like the end of an entry, and each piece, put in brackets,
goes through the same JSON parser. A piece that parses proves its cut: had it been inside a string or a
nested value, quotes or brackets would be left open. A file for which this does not work out is
reported as None, and is then read whole, which also names its fault.

The trap: a fast path that accepts what the careful one refuses. Whatever is unusual (an unknown key,
one key twice, an odd type) gives up. Notebook 02 measures what is gained.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from smallfiles.errors import ManifestError
from smallfiles.manifest.arrays import GrowingNumbers, GrowingStrings, integers, one_chunk, strings
from smallfiles.manifest.columns import by_row, caption_column, meta_column, target_kind_of
from smallfiles.samples import TargetKind

SLICE_BYTES = 1 << 18
HEADER = ("format", "version", "name", "split", "classes", "root_hint", "target", "digest", "count")

_FLAT = re.compile(rb"\s*\{")
_OURS = re.compile(rb'\s*\{\s*"format"\s*:\s*"')
_ENTRY_ENDS = re.compile(rb'[\d\]]\s*,\s*(?=")')  # a label or list of captions, then the next key
_COLUMN_STARTS = re.compile(rb'\n[ \t]*"(path|label|captions|bytes|sha256|meta)": ?\[\n')
_TAIL, _CANDIDATES = 1 << 16, 8  # where, and how many, to try


class _GaveUpError(Exception):
    """This file is not of the plain kind."""


@dataclass(frozen=True)
class Sliced:
    """A header (empty for the flat shape) and its columns as Arrow arrays."""

    header: dict[str, Any]
    columns: dict[str, pa.Array]


def read_sliced(path: Path, slice_bytes: int = SLICE_BYTES) -> Sliced | None:
    """Read a manifest of either shape in pieces; None if it is unusual or faulty in any way.

    Args:
        path: The file.
        slice_bytes: Size of a piece, which decides the memory needed beyond the columns.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            window = _Window(file, slice_bytes)
            window.more()
            if _OURS.match(window.data):
                return _read_ours(window)
            return _read_flat(window)
    except (_GaveUpError, ManifestError, ValueError, RecursionError):
        return None


class _Window:
    """The part of the file between what was cut off and what was not read yet."""

    def __init__(self, file: BinaryIO, slice_bytes: int) -> None:
        self.data = b""
        self._file = file
        self._slice_bytes = slice_bytes

    def more(self) -> bool:
        if len(self.data) > 4 * self._slice_bytes:
            raise _GaveUpError  # no cut in sight: adding on and on would be quadratic
        found = self._file.read(self._slice_bytes)
        self.data += found
        return bool(found)

    def cut(self, stop: int, resume: int) -> bytes:
        piece, self.data = self.data[:stop], self.data[resume:]
        return piece


class _Columns:
    """Columns that grow by pieces; paths, labels and sizes without being held twice."""

    def __init__(self) -> None:
        self._paths = GrowingStrings()
        # A label of more than 32 bits is refused anyway.
        self._numbers = {"label": GrowingNumbers(pa.int32()), "bytes": GrowingNumbers(pa.int64())}
        self._pieces: dict[str, list[pa.Array]] = {}

    def add(self, name: str, values: list[Any]) -> None:
        pieces = self._pieces.setdefault(name, [])
        match name:
            case "path":
                if not set(map(type, values)) <= {str}:
                    raise _GaveUpError
                self._paths.add(values)
            case "label" | "bytes":
                self._numbers[name].add(integers(values, name, by_row, nullable=name == "bytes"))
            case "captions":
                pieces.append(caption_column(values))
            case "sha256":
                pieces.append(strings(values, name, by_row, nullable=True))
            case _:
                pieces.append(meta_column(values))

    def finish(self, *chosen: str) -> dict[str, pa.Array]:
        found = {"path": self._paths.finish()}
        for name in chosen or [name for name in self._pieces if name != "path"]:
            grown, pieces = self._numbers.get(name), self._pieces.pop(name)
            found[name] = grown.finish() if grown else one_chunk(pa.chunked_array(pieces))
        return found


def _read_flat(window: _Window) -> Sliced:
    start = _FLAT.match(window.data)
    if start is None:
        raise _GaveUpError
    window.cut(0, start.end())
    columns = _Columns()
    kinds: set[TargetKind] = set()
    for pairs in _flat_pieces(window):
        targets = [target for _, target in pairs]
        kind = target_kind_of(targets)
        if pairs:
            kinds.add(kind)
        columns.add("path", [path for path, _ in pairs])
        columns.add(kind, targets)
    if len(kinds) > 1:
        raise _GaveUpError
    return Sliced({}, columns.finish(*kinds))


def _flat_pieces(window: _Window) -> Iterator[list[tuple[str, Any]]]:
    while True:
        if (pairs := _cut_pairs(window)) is not None:
            yield pairs
        if not window.more():
            break
    yield _pairs(b"{" + window.data)


def _cut_pairs(window: _Window) -> list[tuple[str, Any]] | None:
    """All entries that are complete; None if there is none, or only candidates that are no ends."""
    start = max(0, len(window.data) - _TAIL)
    for end in reversed([*_ENTRY_ENDS.finditer(window.data, start)][-_CANDIDATES:]):
        try:
            pairs = _pairs(b"{" + window.data[: end.start() + 1] + b"}")
        except ValueError:  # inside a caption that looks like the end of an entry
            continue
        window.cut(end.start() + 1, end.end())
        return pairs
    return None


def _pairs(piece: bytes) -> list[tuple[str, Any]]:
    found: list[list[tuple[str, Any]]] = []
    json.loads(piece.decode(), object_pairs_hook=found.append, parse_constant=_refuse)
    if len(found) != 1:
        raise _GaveUpError  # an object inside, where a label should be
    return found[0]


def _read_ours(window: _Window) -> Sliced:
    columns = _Columns()
    rest = b""
    seen: list[str] = []
    while (start := _column_start(window)) is not None:
        seen.append(start[1].decode())
        rest += window.cut(start.end(), start.end())
        for piece in _column_pieces(window):
            columns.add(seen[-1], _parsed(b"[" + piece + b"]"))
    header = _parsed(rest + window.data)
    found = header.pop("columns", None)
    if found != {name: [] for name in seen} or len(set(seen)) != len(seen):
        raise _GaveUpError  # a column stands elsewhere, or twice; the header is checked later
    return Sliced(header, columns.finish())


def _column_start(window: _Window) -> re.Match[bytes] | None:
    while (start := _COLUMN_STARTS.search(window.data)) is None:
        if not window.more():
            return None
    return start


def _column_pieces(window: _Window) -> Iterator[bytes]:
    """The entries of a column up to its closing bracket; a line break is never inside a JSON string."""
    while (end := window.data.find(b"\n]")) < 0:
        cut = window.data.rfind(b",\n")
        if cut > 0:
            yield window.cut(cut, cut + 2)
        if not window.more():
            raise _GaveUpError
    yield window.cut(end, end)


def _parsed(text: bytes) -> Any:
    return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _GaveUpError
    return found


def _refuse(constant: str) -> None:
    raise _GaveUpError
