"""Read a manifest from either JSON form, describe what is wrong with it, and write it, one entry per line.

The trap: `json.load` silently keeps the last of two equal keys, so a file with two labels for one image looks
fine. And a job that is killed while it writes would leave half a file under the final name, so a manifest is
written to a temporary file, flushed and renamed. Notebook 02 teaches it.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from smallfiles.atomic import replaced
from smallfiles.errors import ManifestError, fault, refuse_shortage, short
from smallfiles.fields import finite, typed_column
from smallfiles.manifest.columns import OPTIONAL, repeated_paths
from smallfiles.storage import answered

HEADER = (
    *("format", "version", "name", "split", "classes", "root_hint", "target", "digest", "count", "fields"),
    "first",
)
_NEXT = "Check that this is the right file, or make it again: smallfiles manifest"


@dataclass(frozen=True)
class Document:
    """The contents of a manifest file.

    Args:
        arguments: Arguments of `Manifest.from_columns`.
        digest: The set digest. It is None if the file has no digest.
    """

    arguments: dict[str, Any]
    digest: str | None = None

    def check_digest(self, path: Path, actual: str) -> None:
        """Refuse rows that were changed after the digest was taken."""
        if self.digest not in (None, actual):
            raise _fault(
                f"{path} has the digest {short(self.digest)}, but its rows have {actual}",
                "rows unchanged since the digest was taken",
                'Restore the file, or delete its "digest" line if the change was meant',
            )


def read_document(path: Path) -> Document:
    """Read and parse a manifest file, without checking its columns.

    While it is parsed, the 1.28 million rows of ImageNet take 450 MB as Python objects. A table is better for
    sets of many millions.

    Args:
        path: The JSON file.

    Raises:
        ManifestError: The file cannot be read, is not JSON, or has neither of the two forms.
    """
    found = _parse(path, _text(path))
    if not isinstance(found, dict):
        raise _fault(f"{path} contains a JSON {_kind(found)}", "a JSON object")
    if not isinstance(found.get("format"), str) and not isinstance(found.get("columns"), dict):
        return Document({"paths": list(found), "targets": list(found.values())})
    columns = found.pop("columns", None)
    if not isinstance(columns, dict):
        raise _fault(f"{path} has columns of the JSON kind {_kind(columns)}", "an object of lists")
    return _interpreted(path, found, columns)


def _interpreted(path: Path, header: dict[str, Any], columns: dict[str, Any]) -> Document:
    _check_version(path, header)
    target: Any = header.get("target")
    if target not in ("label", "captions"):
        raise _fault(f"{path} has the target {short(target)}", '"label" or "captions"')
    _check_columns(path, header, columns, target)
    _check_header(path, header, len(columns["path"]))
    arguments = {"paths": columns["path"], "sizes": columns.get("bytes"), "sha256": columns.get("sha256")}
    arguments |= {"metas": columns.get("meta"), **_fields(header, columns)}
    arguments["values"][target] = columns[target]
    plain = ("name", "split", "classes", "root_hint", "first")
    arguments |= {name: header[name] for name in plain if name in header}
    return Document(arguments, header.get("digest"))


def _check_version(path: Path, header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise _fault(f"{path} has the format {short(header.get('format'))}", f'"format": "{FORMAT}"')
    version = header.get("version")
    if version != VERSION or isinstance(version, bool):
        raise _fault(
            f"{path} has the version {short(version)}",
            f"version {VERSION}",
            "Update this package, or write the file again with the version that made it",
        )


def _check_header(path: Path, header: dict[str, Any], count: int) -> None:
    unknown = [name for name in header if name not in HEADER]
    if unknown:
        raise _fault(f"{path} has unknown entries {', '.join(map(short, unknown))}", ", ".join(HEADER))
    declared = header.get("count", count)
    if declared != count or isinstance(declared, bool):
        raise _fault(f"{path} declares {short(declared)} samples but has {count:,} paths", "the same count")
    if not isinstance(header.get("digest"), str | None):
        raise _fault(f"{path} has the digest {short(header['digest'])}", "a string")
    if not isinstance(header.get("classes", []), list):
        raise _fault(f"{path} has classes of the JSON kind {_kind(header['classes'])}", "a list of names")


def _fields(header: dict[str, Any], columns: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the additional columns as `blobs` and `values`.

    `blobs` are paths of files, whose suffix is recorded as their type. `values` are all other columns.
    """
    declared = header.get("fields", {})
    blobs = {name: columns[name] for name, kind in declared.items() if str(kind).startswith(".")}
    values = {
        name: typed_column(name, str(kind), columns[name])
        for name, kind in declared.items()
        if name not in blobs
    }
    return {"blobs": blobs, "values": values}


def _check_columns(path: Path, header: dict[str, Any], columns: dict[str, Any], target: str) -> None:
    fields = header.get("fields", {})
    if not isinstance(fields, dict):
        raise _fault(f"{path} has fields of the JSON kind {_kind(fields)}", "an object of types by name")
    missing = [name for name in ("path", target, *fields) if name not in columns]
    unknown = [name for name in columns if name not in ("path", target, *OPTIONAL, *fields)]
    malformed = [
        name for name, values in columns.items() if isinstance(values, dict | str | int | float | None)
    ]
    for what, names in (("lacks the", missing), ("has unknown", unknown), ("has malformed", malformed)):
        if names:
            raise _fault(
                f"{path} {what} columns {', '.join(map(short, names))}",
                f"lists path and {target}, and if known bytes, sha256 and meta",
            )


def _text(path: Path) -> str:
    try:
        data = answered(path, path.read_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not data.strip():
        raise _fault(f"{path} is empty", "a JSON object")
    if data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _fault(
            f"{path} begins with a byte order mark", "UTF-8 without one", "Save it again as plain UTF-8"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault(f"{path} is not UTF-8 from byte {error.start:,} on", "a JSON file in UTF-8") from error


def _unreadable(path: Path, error: OSError) -> ManifestError:
    refuse_shortage(error, path)
    return _fault(f"{path} cannot be read ({error.strerror or error})", "a manifest file", "Check the path")


def _parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        got = "ends in the middle" if cut else "is not JSON"
        raise _fault(
            f"{path} {got}: {error.msg.removesuffix(' at')} at line {error.lineno:,}, column {error.colno:,}",
            "a complete JSON object",
        ) from error
    except RecursionError as error:
        raise _fault(f"{path} is nested too deeply", "a manifest") from error
    except _NotAllowedError as error:
        raise _fault(f"{path}: {error}", "each key once, and plain JSON numbers") from error
    except ValueError as error:  # a number with more digits than Python converts
        raise _fault(f"{path} contains a number that is too long to read", "labels of 32 bits") from error


class _NotAllowedError(Exception):
    """Stops the JSON parser when it meets something that a manifest may not contain."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        times = Counter(key for key, _ in pairs)
        raise _NotAllowedError(repeated_paths([key for key, count in times.items() if count > 1]).got)
    return found


def _no_constant(name: str) -> Any:
    raise _NotAllowedError(f"{name} is not a JSON number")


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")


def _fault(got: str, expected: str, next_step: str = _NEXT) -> ManifestError:
    return fault(got, expected, next_step)


FORMAT, VERSION = "smallfiles-manifest", 1
_SLICE = 50_000  # rows at a time as Python objects

_quoted: Callable[[str], str] = json.JSONEncoder(ensure_ascii=False).encode


def write_columns(path: Path, header: Mapping[str, Any], table: pa.Table) -> None:
    """Write the columnar form of a manifest: a header, then the columns.

    Args:
        path: The file. It is replaced if it exists.
        header: The entries above the columns.
        table: The checked table.

    Raises:
        ManifestError: The file cannot be written.
    """
    _write(path, _column_lines(header, table))


def write_flat(path: Path, paths: pa.StringArray, targets: pa.Array) -> None:
    """Write the flat form `{path: target}`.

    Raises:
        ManifestError: The file cannot be written.
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
