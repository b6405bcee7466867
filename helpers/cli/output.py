"""How results leave: one JSON object for programs, messages for people.

The trap: a message on standard output breaks the program that reads the JSON there.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(record, ensure_ascii=False, indent=2, sort_keys=False))


def say(message: str) -> None:
    """A message for the person at the terminal, on standard error."""
    print(message, file=sys.stderr)


def in_seconds(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
