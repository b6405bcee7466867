"""Drop files from the page cache, without root, and check that they are gone.

`posix_fadvise(DONTNEED)` drops the clean pages of a file. The trap: it drops data but not metadata
(names and inodes stay cached); it has no effect on files in memory (tmpfs), on mapped pages, and on
the cache of a file server. So a "cold" rate of plain files is still too high. Notebook 01 teaches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from time import sleep

import numpy as np

from smallfiles import machine
from smallfiles.errors import ResourceError
from smallfiles.machine.nodelocal import IN_MEMORY

_PAUSES_S = (0.0, 0.01, 0.1, 0.5)


def files_of(path: Path) -> list[Path]:
    """List all files of a packed output: the file itself, or all files in its folder."""
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path]


def can_be_cold(path: Path) -> bool:
    """Check whether the files of `path` have storage besides the page cache."""
    return machine.filesystem(path).kind not in IN_MEMORY


def drop(files: Iterable[Path], *, clean: bool = False) -> None:
    """Write back and drop the cached pages of `files`.

    Args:
        files: The files.
        clean: Whether they were dropped before and not written since; a needless write-back makes the
            disk flush its own cache, which takes milliseconds per file.

    Raises:
        ResourceError: The system has no such call, or the pages are still cached afterwards.
    """
    if not hasattr(os, "posix_fadvise"):
        raise ResourceError(
            "this system cannot drop cached files",
            expected="posix_fadvise, as Linux has it",
            next_step="Measure warm only (--cache warm)",
        )
    files = list(files)
    for file in files:
        _drop(file, clean)
    still = next((file for file in files[:: max(1, len(files) // 8)] if _stays_cached(file, clean)), None)
    if still is not None:
        raise ResourceError(
            f"{still} is still cached after it was dropped",
            expected="a file system whose cache can be dropped, and no other program using the file",
            next_step="Measure warm only (--cache warm), or on another file system",
        )


def _drop(file: Path, clean: bool) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if not clean:
            with contextlib.suppress(OSError):  # read-only file systems refuse, and have no dirty pages
                os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _stays_cached(file: Path, clean: bool) -> bool:
    """Check whether a file stays cached after several attempts to drop it.

    Another program may use the file for a moment.
    """
    for pause_s in _PAUSES_S:
        if not is_cached(file):
            return False
        sleep(pause_s)
        _drop(file, clean)
    return is_cached(file)


def is_cached(file: Path) -> bool:
    """Check whether the middle of `file` is cached. Return False, too, if the system does not know.

    Unlike a read with RWF_NOWAIT, `mincore` starts no read. Its answer is correct only for users who may
    write to the file.
    """
    status = file.stat()
    ours = status.st_uid == os.geteuid() or os.access(file, os.W_OK)
    if status.st_size == 0 or not ours or sys.platform != "linux":
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        page = start + status.st_size // 2 // mmap.PAGESIZE * mmap.PAGESIZE
        answer = ctypes.c_ubyte()
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(answer))
    return not failed and bool(answer.value & 1)
