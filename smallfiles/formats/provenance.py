"""The provenance record inside every packed file: from what, by what and how it was packed.

The trap: with a record of time, user, host or part number, equal inputs give unequal bytes, and then no
digest can show that two packed files are the same. So it contains only what determines the content.
Notebook 05 teaches it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import smallfiles
from smallfiles.fields import META, TARGETS, name_problem
from smallfiles.samples import Schema

PACKAGE = "smallfiles"


def record(format_name: str, schema: Schema, options: Any) -> dict[str, Any]:
    """Make the record that a writer stores.

    A file that was copied to another cluster still contains the name of its set and its classes.

    Args:
        format_name: Name of the format.
        schema: What is packed.
        options: The format's frozen dataclass, or None.

    Returns:
        A JSON object; `resize` is in it only if images were scaled before packing, and `came_as` (the
        `member_suffixes` of the schema) only if the source was a tar of another program; `fields` and
        `columns` only if there are more than the first file and its target; `first` only if its field was
        given a name.
    """
    odd: dict[str, Any] = {} if schema.resize is None else {"resize": dict(schema.resize)}
    if schema.member_suffixes:
        odd["came_as"] = list(schema.member_suffixes)
    if schema.fields:
        odd["fields"] = schema.fields
        odd |= {"columns": list(schema.columns)} if schema.columns else {}
    if schema.first:
        odd["first"] = schema.first
    names = schema.values.column_names
    return odd | {
        "package": PACKAGE,
        "version": smallfiles.__version__,
        "format": format_name,
        "options": asdict(options) if is_dataclass(options) else {},  # type: ignore[arg-type]
        "schema": {
            "name": schema.name,
            "split": schema.split,
            "classes": list(schema.classes),
            "target": "captions" if "captions" in names else "label",
            "count": schema.count,
            "has_meta": META in names,
            "manifest_digest": schema.manifest_digest,
        },
    }


def dumps(provenance: dict[str, Any]) -> str:
    """Canonical JSON: compact, ASCII, keys sorted, so that equal records are equal bytes."""
    return json.dumps(provenance, sort_keys=True, separators=(",", ":"))


def loads(text: str | bytes | None) -> dict[str, Any]:
    """Read a record; anything but a JSON object gives `{}`.

    A file that lost its record, or that another program wrote, still has readable samples.

    Returns:
        The record; its `schema`, `options` and `resize`, where present, are objects.
    """
    try:
        found = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in found.items()
        if name not in ("schema", "options", "resize") or isinstance(value, dict)
    }


def class_names(provenance: dict[str, Any]) -> tuple[str, ...]:
    """Class names in label order; empty if the record has none."""
    classes = provenance.get("schema", {}).get("classes")
    return tuple(str(name) for name in classes) if isinstance(classes, list) else ()


def member_suffixes(provenance: dict[str, Any]) -> tuple[str, ...]:
    """What `Schema.member_suffixes` was; empty if the record does not have it."""
    found = provenance.get("came_as")
    return tuple(word for word in ("json", "txt") if word in found) if isinstance(found, list) else ()


def blob_suffixes(provenance: dict[str, Any]) -> dict[str, str]:
    """Name and suffix of each field of further files; empty if the record has none."""
    found = provenance.get("fields")
    fields = found.items() if isinstance(found, dict) else ()
    return {str(name): kind for name, kind in fields if isinstance(kind, str) and kind.startswith(".")}


def first_field(provenance: Mapping[str, Any]) -> str:
    """What `Schema.first` was; empty if the record does not have it."""
    found = provenance.get("first")
    return "" if name_problem(found) else str(found)


def columns(provenance: dict[str, Any]) -> tuple[str, ...]:
    """What `SourceOptions.columns` was, if the record has it."""
    found = provenance.get("columns")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def target_of(provenance: dict[str, Any]) -> str | None:
    """Whether samples carry `label` or `captions`; None if the record does not have it."""
    found = provenance.get("schema", {}).get("target")
    return found if found in TARGETS else None
