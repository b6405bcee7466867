"""Output of results: one JSON object for programs, messages for people.

The trap: a message on standard output breaks the program that reads the JSON there.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

from smallfiles.errors import printable


def print_json(record: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output, in ASCII, which cannot control a terminal."""
    print(json.dumps(record, indent=2, default=os.fspath).replace("\x7f", r"\u007f"))


def report(arguments: argparse.Namespace, record: Mapping[str, Any], *lines: str | Path) -> int:
    """Print the result of a verb, the record with --json, else lines; return the exit code 0.

    Each record has samples, bytes and seconds; by default none, and those since the verb began. Names in
    lines cannot control a terminal. A Path is for `$(...)`, so only a terminal gets it with escapes.
    """
    if arguments.json:
        print_json({"samples": 0, "bytes": 0, "seconds": since(arguments), **record})
    elif lines:
        as_it_is = not sys.stdout.isatty()
        print(
            *(line if as_it_is and isinstance(line, Path) else escaped(str(line)) for line in lines), sep="\n"
        )
    return 0


def since(arguments: argparse.Namespace) -> float:
    """Return the seconds since a verb began."""
    began: float = arguments.began
    return round(perf_counter() - began, 3)


def escaped(text: str) -> str:
    """Lines that cannot control the terminal."""
    return "\n".join(map(printable, text.split("\n")))


def lenient(*streams: TextIO | None) -> None:
    """Make streams escape what they cannot encode: an ASCII locale, a file name that is not UTF-8."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def sign(wanted: str, plain: str) -> str:
    """`wanted`, or `plain` if standard output cannot encode it."""
    try:
        wanted.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return plain
    return wanted


def say(message: str) -> None:
    """A message on standard error; names in it cannot control the terminal."""
    print(escaped(message), file=sys.stderr)


def size_of(out: Path) -> int:
    """Bytes of a packed output, for a warning only; errors are left to the reader."""
    try:
        files = out.iterdir() if out.is_dir() else [out]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


def look_at(out: Path, format: str | None = None) -> str:
    """The command that shows what is in a packed file."""
    chosen = ["--format", format] if format else []
    command = ["smallfiles", "inspect", str(out), *chosen, "--picture", "sheet.html"]
    return f"look at it: {shlex.join(command)}"


def in_seconds(seconds: float) -> str:
    """A duration as text."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
