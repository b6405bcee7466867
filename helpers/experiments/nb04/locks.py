"""What a lock on an HDF5 file refuses: one process holds the file open, another one asks for it.

HDF5 locks a file as a whole when it opens it. Each attempt runs in a process of its own, since within
one process the library recognises the file and asks for no second lock.

The trap: `HDF5_USE_FILE_LOCKING` is read when the library starts, so setting it after `import h5py`
changes nothing. Where a file system has no locks, every open fails instead (h5py/h5py#1101). Notebook 04
shows all of it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers.experiments.nb04.own_process import LOCKING, command, environment
from smallfiles.errors import FormatError

_LIMIT_S = 60
_HOLD = """
import sys, h5py
try:
    file = h5py.File(sys.argv[1], sys.argv[2])
except OSError as error:
    print("refused:", error, flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""
_OPENERS = {
    "h5py, to read": "h5py.File(path, 'r')",
    "h5py, to write": "h5py.File(path, 'r+')",
    "h5py, to read, locking=False": "h5py.File(path, 'r', locking=False)",
    "h5py, to read, variable set before import": "h5py.File(path, 'r')",
    "h5py, to read, variable set after import": f"os.environ.update({LOCKING}='FALSE'), h5py.File(path, 'r')",
    "our reader": "len(hdf5.open(pathlib.Path(path)))",
}
_TRY = """
import os, pathlib, sys
import h5py
from smallfiles.errors import SmallfilesError
from smallfiles.formats import hdf5
path = sys.argv[1]
try:
    {}
except (OSError, SmallfilesError) as error:
    print("refused:", error)
else:
    print("opened")
"""
ASKED = (
    ("reading", "h5py, to read"),
    ("reading", "h5py, to write"),
    ("writing", "h5py, to read"),
    ("writing", "h5py, to read, variable set after import"),
    ("writing", "h5py, to read, variable set before import"),
    ("writing", "h5py, to read, locking=False"),
    ("writing", "our reader"),
)


@dataclass(frozen=True)
class Attempted:
    """One process asked for a file that another one held.

    Args:
        held_for: `reading` or `writing`.
        opener: Who asked, and how.
        opened: Whether it got the file.
        message: Why not.
    """

    held_for: str
    opener: str
    opened: bool
    message: str = ""


def lock_attempts(path: Path, asked: tuple[tuple[str, str], ...] = ASKED) -> list[Attempted]:
    """Hold a complete HDF5 file in one process and ask for it in others; nothing is written to it.

    Args:
        path: The file.
        asked: What it is held for, and who asks.

    Returns:
        One attempt each, in order.

    Raises:
        FormatError: It cannot even be held; the file system may have no locks.
    """
    found = []
    for held_for in dict.fromkeys(held for held, _ in asked):
        with _held(path, "r" if held_for == "reading" else "r+"):
            found += [_attempt(path, held_for, opener) for held, opener in asked if held == held_for]
    return found


@contextmanager
def _held(path: Path, mode: str) -> Iterator[None]:
    """Another process has the file open as long as the block lasts."""
    holder = subprocess.Popen(
        command(_HOLD, str(path), mode),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        if said != "held":
            raise FormatError(
                f"{path} cannot be opened with a lock ({said or 'the process died'})",
                expected="a file system with locks, and nobody else using the file",
                next_step="Shut down other kernels that use it; on Lustre ask whether flock is on",
            )
        yield
    finally:
        holder.kill()
        holder.communicate(timeout=_LIMIT_S)


def _attempt(path: Path, held_for: str, opener: str) -> Attempted:
    variables = {LOCKING: "FALSE"} if "before import" in opener else {}
    done = subprocess.run(
        command(_TRY.format(_OPENERS[opener]), str(path)),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env=environment(**variables),
        check=False,
    )
    said = (done.stdout.strip() or done.stderr.strip() or "the process died").splitlines()[-1]
    return Attempted(
        held_for, opener, said == "opened", said.removeprefix("opened").removeprefix("refused: ")
    )
