"""Make the page cache forget files, without root, and find out whether it did.

`posix_fadvise(DONTNEED)` drops the clean pages of a file. The trap: it drops data and not metadata
(names and inodes stay known), it does nothing for files in memory (tmpfs), nothing for pages that
are still mapped, and nothing on a server of a network file system that has its own cache. So a
"cold" plain-files number here is still flattering. Notebook 01 teaches it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from helpers import machine
from helpers.errors import ResourceError

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_TRIALS = 3


def files_of(path: Path) -> list[Path]:
    """All files of a packed file: itself, or everything in its folder."""
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path]


def can_be_cold(path: Path) -> bool:
    """Whether the page cache and the storage of `path` are two different things."""
    return machine.filesystem(path).kind not in IN_MEMORY


def drop(files: Iterable[Path], *, clean: bool = False) -> None:
    """Write back and forget the cached pages of `files`.

    Args:
        files: Which ones.
        clean: Whether they were dropped before and not written since; each needless write-back asks
            the disk to empty its own cache, which takes milliseconds a file.

    Raises:
        ResourceError: The system has no such call, or the pages are still there afterwards.
    """
    if not hasattr(os, "posix_fadvise"):
        raise ResourceError(
            "this system cannot be told to forget cached files",
            expected="posix_fadvise, as Linux has it",
            next_step="Measure warm only (--cache warm)",
        )
    files = list(files)
    for file in files:
        _forget(file, clean)
    still = next((file for file in files[:: max(1, len(files) // 8)] if _stays(file, clean)), None)
    if still is not None:
        raise ResourceError(
            f"{still} stays in memory although it was to be forgotten",
            expected="a file system whose cache can be dropped, and no other program using the file",
            next_step="Measure warm only (--cache warm), or on another file system",
        )


def _forget(file: Path, clean: bool) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if not clean:
            with contextlib.suppress(OSError):  # read-only file systems refuse; then nothing is dirty either
                os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _stays(file: Path, clean: bool) -> bool:
    """Whether a file is in memory however often it is forgotten.

    Asking starts a read: a quick disk may answer "yes" to the first question, and what was read must
    be forgotten again.
    """
    for _ in range(_TRIALS):
        found = is_cached(file)
        _forget(file, clean)
        if not found:
            return False
    return True


def is_cached(file: Path) -> bool:
    """Whether the middle of `file` is in memory; False also where the system does not tell."""
    size = file.stat().st_size
    if size == 0 or not hasattr(os, "RWF_NOWAIT"):
        return False
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(1)], size // 2, os.RWF_NOWAIT) == 1
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    finally:
        os.close(descriptor)
