"""A complete file under its name, or none: task 3 of exercise 03.

The function of the participant gets a `write` that works, one that an exception ends, and one that Ctrl-C
ends, each with and without an older file of that name. The trap: an Arrow file that its writer closes after
an exception opens, with the rows that came before.
"""

from __future__ import annotations

from pathlib import Path

from exercises.checks import Attempt, check

_HALF, _WHOLE = b"three of ten", b"ten of ten"


class _Unreadable(OSError):
    """An image in the middle."""


@check(buys="A job that dies halfway leaves nothing that the next job could take for a data set.")
def write_whole(attempt: Attempt) -> None:
    """`write_whole(out, write)` publishes what `write` made, and nothing of what it could not finish."""
    for before in (None, b"of yesterday"):
        _writes(attempt, before)
        for failure in (_Unreadable("3.jpg cannot be read"), KeyboardInterrupt()):
            _fails(attempt, before, failure)


def _prepared(attempt: Attempt, before: bytes | None) -> tuple[Path, str]:
    out = attempt.folder() / "train.arrow"
    if before:
        out.write_bytes(before)
    return out, f"{out.name}, which is there already, " if before else f"{out.name}, "


def _writes(attempt: Attempt, before: bytes | None) -> None:
    out, shown = _prepared(attempt, before)
    places = []

    def write(part: Path) -> None:
        places.append(part)
        attempt.expect(1, len(places), because="call write once")
        _expect_unnamed(attempt, part != out, "while write was still running")
        _expect_old(attempt, out, before)
        because = "renaming within a folder is one step, from elsewhere it may be a copy: out.with_name(…)"
        attempt.require(part.parent == out.parent, f"written to {part.parent}", "the folder of out", because)
        part.write_bytes(_WHOLE)

    attempt.expect(out, attempt(out, write, _shown=f"{shown}a write that works"), because="return out")
    attempt.expect(1, len(places), because="call write once")
    found = out.read_bytes() if out.exists() else b"no file"
    attempt.expect(_WHOLE, found, because="a complete file gets the name out: part.replace(out)")
    _expect_no_leftover(attempt, out)


def _fails(attempt: Attempt, before: bytes | None, failure: BaseException) -> None:
    out, shown = _prepared(attempt, before)
    by = "Ctrl-C" if isinstance(failure, KeyboardInterrupt) else "an exception"

    def write(part: Path) -> None:
        part.write_bytes(_HALF)
        raise failure

    def run() -> str:
        try:
            attempt.answer(out, write)
        except (_Unreadable, KeyboardInterrupt) as error:
            return "that exception" if error is failure else "another exception"
        return "no exception"

    got = attempt.tried(f"{attempt.name}({shown}a write that is ended by {by})", run)
    because = "who called must learn that there is no new file: let the exception go on"
    attempt.expect("that exception", got, because=because)
    _expect_unnamed(attempt, not out.exists() or out.read_bytes() != _HALF, f"after {by}")
    _expect_old(attempt, out, before)
    _expect_no_leftover(attempt, out, f" after {by}; `finally` runs in any case")


def _expect_unnamed(attempt: Attempt, unnamed: bool, when: str) -> None:
    because = "a job that looks now takes it for a complete file; let write use another name"
    attempt.require(unnamed, f"half a file called out {when}", "out for a complete file only", because)


def _expect_old(attempt: Attempt, out: Path, before: bytes | None) -> None:
    there = out.read_bytes() if out.exists() else None
    because = "until the new file is complete, the old one stays; renaming replaces it"
    attempt.require(there == before, f"as {out.name} {there!r}", f"{before!r}, as before", because)


def _expect_no_leftover(attempt: Attempt, out: Path, when: str = "") -> None:
    left = sorted(path.name for path in out.parent.iterdir() if path != out)
    because = f"half files fill a quota: remove what is left{when}"
    attempt.require(not left, f"left in the folder: {', '.join(left)}", "nothing else in the folder", because)
