"""How results leave: one JSON object for programs, messages for people.

The trap: a message on standard output breaks the program that reads the JSON there.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any, TextIO

from smallfiles.keys import printable


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    text = json.dumps(record, ensure_ascii=not _speaks("é漢"), indent=2, sort_keys=False)
    print("\n".join(map(_as_json_string, text.split("\n"))))


def _as_json_string(line: str) -> str:
    """What `printable` escapes, in the way of JSON, which has no escapes of two digits."""
    return line if printable(line) == line else "".join(map(_as_json_character, line))


def _as_json_character(character: str) -> str:
    return character if printable(character) == character else f"\\u{ord(character):04x}"


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
    """A message for the person at the terminal, on standard error; names in it cannot steer the terminal."""
    print("\n".join(map(printable, message.split("\n"))), file=sys.stderr)


def size_of(out: Path) -> int:
    """Bytes of a packed output, for a warning only: whoever reads it tells what is wrong with it."""
    try:
        files = out.iterdir() if out.is_dir() else [out]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


def in_seconds(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
