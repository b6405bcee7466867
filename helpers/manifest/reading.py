"""Read a manifest from JSON, whichever of the two shapes it has.

The trap: `json.load` keeps the last of two equal keys and says nothing, so a file with two labels
for one image looks fine. Notebook 02 teaches it.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import ManifestError
from helpers.manifest.columns import duplicate_fault
from helpers.manifest.writing import FORMAT, VERSION

_NEXT = "Check that this is the right file, or make it again: python -m helpers manifest"


@dataclass(frozen=True)
class Document:
    """What a file says: the arguments of `Manifest.from_columns`, and the digest if it has one."""

    arguments: dict[str, Any]
    digest: str | None = None


def read_document(path: Path) -> Document:
    """Read and understand a file; its columns are not checked yet.

    Raises:
        ManifestError: It cannot be read, is not JSON, or has neither of the two shapes.
    """
    found = _parse(path, _text(path))
    if not isinstance(found, dict):
        raise _fault(f"{path} holds a JSON {_kind(found)}", "a JSON object")
    if isinstance(found.get("format"), str) or isinstance(found.get("columns"), dict):
        return _columns(path, found)
    return Document({"paths": list(found), "targets": list(found.values())})


def _columns(path: Path, found: dict[str, Any]) -> Document:
    if found.get("format") != FORMAT:
        raise _fault(f"{path} says its format is {found.get('format')!r}", f'"format": "{FORMAT}"')
    version = found.get("version")
    if version != VERSION or isinstance(version, bool):
        raise _fault(
            f"{path} has version {version!r}",
            f"version {VERSION}",
            "Update this package, or convert the file",
        )
    columns, target = found.get("columns"), found.get("target")
    if not isinstance(columns, dict) or target not in ("label", "captions"):
        raise _fault(f"{path} has target {target!r} and columns {_kind(columns)}", "a target and columns")
    wrong = [name for name in ("path", target) if not isinstance(columns.get(name), list)]
    wrong += [
        name
        for name in columns
        if name not in ("path", target, "bytes", "sha256", "meta") or not isinstance(columns[name], list)
    ]
    if wrong:
        raise _fault(
            f"{path} has missing, unknown or malformed columns: {', '.join(wrong)}", "lists of entries"
        )
    if not isinstance(found.get("classes", []), list):
        raise _fault(f"{path} has classes {_kind(found['classes'])}", "a list of names")
    count = found.get("count", len(columns["path"]))
    if count != len(columns["path"]):
        raise _fault(f"{path} says {count!r} samples but has {len(columns['path']):,} paths", "one count")
    digest = found.get("digest")
    if digest is not None and not isinstance(digest, str):
        raise _fault(f"{path} has digest {digest!r}", "a string")
    arguments = {
        "paths": columns["path"],
        "targets": columns[target],
        "target": target,
        "sizes": columns.get("bytes"),
        "sha256": columns.get("sha256"),
        "metas": columns.get("meta"),
        "classes": found.get("classes", []),
    }
    arguments |= {name: found[name] for name in ("name", "split", "root_hint") if name in found}
    return Document(arguments, digest)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _fault(
            f"{path} cannot be read ({error.strerror or error})", "a manifest file", "Check the path"
        ) from error
    if not data.strip():
        raise _fault(f"{path} is empty", "a JSON object")
    if data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _fault(
            f"{path} begins with a byte order mark", "UTF-8 without one", "Save it again as plain UTF-8"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault(f"{path} is not UTF-8 at byte {error.start:,}", "a JSON file in UTF-8") from error


def _parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        got = f"{path} ends in the middle" if cut else f"{path} is not JSON"
        raise _fault(f"{got}: {error.msg} at {place}", "a complete JSON object") from error
    except RecursionError as error:
        raise _fault(f"{path} is nested too deeply", "a manifest") from error
    except _NotAllowedError as error:
        raise _fault(f"{path}: {error}", "each key once, and plain JSON numbers") from error
    except ValueError as error:
        raise _fault(f"{path} holds a number too large to read", "labels that fit 32 bits") from error


class _NotAllowedError(Exception):
    """Raised inside json to stop it."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        repeated = dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _NotAllowedError(duplicate_fault(list(repeated)).got)
    return found


def _no_constant(name: str) -> Any:
    raise _NotAllowedError(f"{name} is not a JSON number")


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")


def _fault(got: str, expected: str, next_step: str = _NEXT) -> ManifestError:
    return ManifestError(got, expected=expected, next_step=next_step)
