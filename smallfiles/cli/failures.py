"""Every way in which a command can end, told in one sentence on standard error.

The trap: a reader such as `head` that closes the pipe early is no failure of ours, and Python would
complain once more at exit unless standard output is pointed elsewhere. Notebook 00 shows a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from smallfiles.cli.output import say
from smallfiles.errors import (
    MissingPackageError,
    ResourceError,
    SmallfilesError,
    UsageError,
    of_system,
    printable,
)

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
    """One sentence for any exception."""
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
