"""How results leave: one JSON object for programs, messages for people.

The trap: a message on standard output breaks the program that reads the JSON there.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any, TextIO


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(record, ensure_ascii=not _speaks("é漢"), indent=2, sort_keys=False))


def lenient(*streams: TextIO | None) -> None:
    """Have streams escape what they cannot encode: an ASCII locale, a file name that is no UTF-8."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def sign(wanted: str, plain: str) -> str:
    """`wanted`, or `plain` where standard output cannot show it."""
    return wanted if _speaks(wanted) else plain


def _speaks(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


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
