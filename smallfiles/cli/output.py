"""Print the results of a command for programs and for people, and end every failure with one sentence.

The traps: a message on standard output breaks the program that reads the JSON there. And `head` closes the
pipe early. That is not an error, but Python complains about it at exit unless standard output is redirected
first. Notebook 00 shows a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

from smallfiles.errors import (
    MissingPackageError,
    ResourceError,
    SmallfilesError,
    UsageError,
    of_system,
    printable,
)
from smallfiles.progress import duration_text


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
    """Escape control characters in lines, so that they cannot control the terminal."""
    return "\n".join(map(printable, text.split("\n")))


def escape_unencodable(*streams: TextIO | None) -> None:
    """Make streams escape what they cannot encode: an ASCII locale, a file name that is not UTF-8."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def glyph(wanted: str, plain: str) -> str:
    """Return `wanted`, or `plain` if standard output cannot encode `wanted`."""
    try:
        wanted.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return plain
    return wanted


def say(message: str) -> None:
    """Print a message on standard error. Names in it cannot control the terminal."""
    print(escaped(message), file=sys.stderr)


def size_of(out: Path) -> int:
    """Return the bytes of a packed output, for a warning only. The reader reports errors."""
    try:
        files = out.iterdir() if out.is_dir() else [out]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


def look_at(out: Path, format: str | None = None) -> str:
    """Return the command that shows what is in a packed file."""
    chosen = ["--format", format] if format else []
    command = ["smallfiles", "inspect", str(out), *chosen, "--picture", "sheet.html"]
    return f"look at it: {shlex.join(command)}"


def in_seconds(seconds: float) -> str:
    """Format a duration."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return duration_text(seconds)


FAILED = 1
USAGE = 2
UNPROVEN = 3
INTERRUPTED = 130
PIPE_CLOSED = 141

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def guarded(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a verb and turn whatever it raises into a sentence and an exit code."""
    try:
        code = run(arguments)
        if sys.stdout is not None:  # closed by the caller (>&-)
            sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
    except KeyboardInterrupt:
        _say("interrupted; nothing unfinished was published. Run the same command again")
        code = INTERRUPTED
    except Exception as error:
        if getattr(arguments, "debug", False) or os.environ.get("SMALLFILES_DEBUG") == "1":
            traceback.print_exc()
        _say(f"error: {_with_owners(summary(error), getattr(arguments, 'parser', None))}")
        code = USAGE if isinstance(error, UsageError) else FAILED
    _let_go(sys.stdout, sys.stderr)
    return code


def _let_go(*streams: TextIO | None) -> None:
    """Point streams that take nothing more elsewhere: what they hold would be an error at exit, with 120."""
    for stream in filter(None, streams):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def summary(error: Exception) -> str:
    """Return one sentence for any exception."""
    if isinstance(error, SmallfilesError):
        return str(error)
    if not isinstance(error, MemoryError) and (missing := MissingPackageError.of_import(error)):
        return str(missing)
    if isinstance(error, OSError) and error.errno is not None:
        return str(_of_system(error))
    if isinstance(error, MemoryError):
        return str(
            ResourceError(
                "there is not enough memory",
                expected="room for a few samples at a time",
                next_step="Ask for more memory",
            )
        )
    return (
        f"this is a bug in the package: {type(error).__name__} ({printable(str(error))}) at {_place(error)}. "
        "Run it again with --debug and report what it prints."
    )


def _with_owners(sentence: str, parser: argparse.ArgumentParser | None) -> str:
    """Say of flags that this verb does not have which verbs have them: its parts may be those of others."""
    from smallfiles.cli import flags_of_verbs

    own = set() if parser is None else set(parser._option_string_actions)
    for flag in sorted(set(_FLAG.findall(sentence)) - own):
        verbs = [verb for verb, flags in flags_of_verbs().items() if flag in flags]
        if verbs and not any(re.search(rf"\b{verb}\b", sentence) for verb in verbs):
            sentence = f"{sentence.rstrip('.')} ({flag} is a flag of: {', '.join(verbs)})"
    return sentence


def _of_system(error: OSError) -> SmallfilesError:
    name = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else error.filename
    if name is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        name = "standard output"  # files that we write are named by those who write them
    what = f"{name}: " if name is not None else ""
    return of_system(error, f"{what}{os.strerror(error.errno or 0)}")


def _place(error: BaseException) -> str:
    """Module and line, of our own code where possible."""
    frames = traceback.extract_tb(error.__traceback__)
    packages = {"smallfiles", "helpers", "pysquashfs"}
    ours = [frame for frame in frames if packages & set(Path(frame.filename).parts)] or list(frames)
    return f"{Path(ours[-1].filename).name}, line {ours[-1].lineno}" if ours else "an unknown place"


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # nobody can be told
        say(sentence)
