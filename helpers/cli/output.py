"""How results are shown: a table for people, one JSON object for programs.

The trap: numbers in a table are for reading, so they are rounded; numbers in JSON are not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(record, ensure_ascii=False, indent=2, sort_keys=False))


def say(message: str) -> None:
    """A message for the person at the terminal, on standard error."""
    print(message, file=sys.stderr)


def in_bytes(count: float) -> str:
    """A number of bytes in the unit that fits (powers of 1000, as `df -H` shows them)."""
    size, unit = float(count), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 99.5 else f"{size:.1f} {_UNITS[unit]}"


def in_seconds(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, all others to the right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    shown = ["  ".join(_cell(cell, widths[n], n) for n, cell in enumerate(line)).rstrip() for line in lines]
    return "\n".join([shown[0], "  ".join("-" * width for width in widths), *shown[1:]])


def _cell(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column == 0 else text.rjust(width)
