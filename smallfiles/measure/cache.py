"""Make the page cache forget files, without root, and find out whether it did.

`posix_fadvise(DONTNEED)` drops the clean pages of a file. The trap: it drops data and not metadata
(names and inodes stay known), it does nothing for files in memory (tmpfs), nothing for pages that
are still mapped, and nothing on a server of a network file system that has its own cache. So a
"cold" plain-files number here is still flattering. Notebook 01 teaches it.
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
    """Whether a file is in memory however often it is forgotten; another program may use it for a moment."""
    for pause_s in _PAUSES_S:
        if not is_cached(file):
            return False
        sleep(pause_s)
        _forget(file, clean)
    return is_cached(file)


def is_cached(file: Path) -> bool:
    """Whether the middle of `file` is in memory; False also where the system does not tell.

    `mincore` starts no read, as a read that does not wait (RWF_NOWAIT) would. It tells the truth only to
    those who may write to the file.
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
