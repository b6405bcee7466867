"""The provenance record inside every packed file: from what, by what and how it was packed.

The trap: a record of time, user, host or part number makes equal inputs give unequal bytes, and then
no digest can tell whether two packs are the same. So it names only what decides the content.
Notebook 05 teaches it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any

import smallfiles
from smallfiles.samples import Schema, TargetKind

PACKAGE = "smallfiles"


def record(format_name: str, schema: Schema, options: Any) -> dict[str, Any]:
    """Make the record that a writer stores.

    A file that was copied to another cluster still says which set and which classes it holds.

    Args:
        format_name: Name of the format.
        schema: What is packed.
        options: The format's frozen dataclass, or None.

    Returns:
        A JSON object; `resize` is in it only if pictures were scaled before packing, `came_as`
        only where a tar of others told it.
    """
    odd: dict[str, Any] = {} if schema.resize is None else {"resize": dict(schema.resize)}
    if schema.came_as:
        odd["came_as"] = list(schema.came_as)
    return odd | {
        "package": PACKAGE,
        "version": smallfiles.__version__,
        "format": format_name,
        "options": asdict(options) if is_dataclass(options) else {},  # type: ignore[arg-type]
        "schema": {
            "name": schema.name,
            "split": schema.split,
            "classes": list(schema.classes),
            "target": schema.target,
            "count": schema.count,
            "has_meta": schema.has_meta,
            "manifest_digest": schema.manifest_digest,
        },
    }


def dumps(provenance: dict[str, Any]) -> str:
    """Canonical JSON: compact, ASCII, keys sorted, so that equal records are equal bytes."""
    return json.dumps(provenance, sort_keys=True, separators=(",", ":"))


def loads(text: str | bytes | None) -> dict[str, Any]:
    """Read a record; whatever is no JSON object gives `{}`.

    A file whose record was lost, or that another program wrote, still holds readable samples.

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
    """Class names in label order; empty if the record tells none."""
    classes = provenance.get("schema", {}).get("classes")
    return tuple(str(name) for name in classes) if isinstance(classes, list) else ()


def came_as(provenance: dict[str, Any]) -> tuple[str, ...]:
    """What `Schema.came_as` was; empty if the record does not tell."""
    found = provenance.get("came_as")
    return tuple(word for word in ("json", "txt") if word in found) if isinstance(found, list) else ()


def target_kind(provenance: dict[str, Any]) -> TargetKind | None:
    """Whether samples carry labels or captions; None if the record does not tell."""
    match provenance.get("schema", {}).get("target"):
        case "label":
            return "label"
        case "captions":
            return "captions"
    return None
