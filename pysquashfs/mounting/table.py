"""Which mounts are ours, and whether they can be read.

The trap: a FUSE mount only has the name that its server was given. Ours have the name of their image.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

from pysquashfs.mounts import Mount, read_mounts

MARK = "pysquashfs:"  # start of the source of our FUSE mounts, followed by the image
PREFIX = "pysquashfs-"  # start of the names of private mount points
_STAT_S = 5


def mounts() -> list[Mount]:
    """All visible mounts of whole file systems, the latest last."""
    found: dict[str, Mount] = {}
    for mount in read_mounts():
        found.pop(mount.point, None)  # it hides the previous mount at this folder
        if mount.root == "/":
            found[mount.point] = mount
    return list(found.values())


def at(folder: Path) -> Mount | None:
    """The mount at exactly this folder."""
    return next((mounted for mounted in mounts() if mounted.folder == folder), None)


def answer(folder: Path) -> str:
    """Try to read a mount point: "" if that works, otherwise what is wrong with it."""
    try:
        # In a process of its own, since a call to a server that hangs would never return.
        subprocess.run(["stat", folder], capture_output=True, timeout=_STAT_S)
    except subprocess.TimeoutExpired:
        return "it does not answer"
    except OSError:  # no such tool here
        pass
    try:
        folder.stat()
        with os.scandir(folder) as entries:
            next(entries, None)
    except OSError as error:
        return "its server is gone" if error.errno == errno.ENOTCONN else str(error.strerror)
    return ""
