"""How results leave: one JSON object for programs, messages for people.

The trap: a message on standard output breaks the program that reads the JSON there.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any, TextIO

from smallfiles.keys import printable


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on standard output, in ASCII: any terminal shows it, and no name in it steers one."""
    print(json.dumps(record, indent=2).replace("\x7f", r"\u007f"))


def report(arguments: argparse.Namespace, record: dict[str, Any], *lines: str) -> int:
    """What a verb found, on standard output: the record if --json was given, else lines; 0, its exit code."""
    if arguments.json:
        print_json(record)
    elif lines:
        print(*lines, sep="\n")
    return 0


def lenient(*streams: TextIO | None) -> None:
    """Have streams escape what they cannot encode: an ASCII locale, a file name that is no UTF-8."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def sign(wanted: str, plain: str) -> str:
    """`wanted`, or `plain` where standard output cannot show it."""
    try:
        wanted.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return plain
    return wanted


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
