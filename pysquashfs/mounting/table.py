r"""What is mounted where, from `/proc/self/mountinfo`, and which of these mounts are ours.

The trap: spaces in the table are written as `\040`, and a FUSE mount only has the name that its server was
given. Ours have the name of their image.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

MARK = "pysquashfs:"  # start of the source of our FUSE mounts, followed by the image
PREFIX = "pysquashfs-"  # start of the names of private mount points
_STAT_S = 5
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mounted:
    """One line of the table."""

    folder: Path
    kind: str  # "squashfs", "fuse.squashfuse_ll", ...
    source: str


def mounts() -> list[Mounted]:
    """All visible mounts of whole file systems, the latest last."""
    found: dict[Path, Mounted] = {}
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
        left, _, right = line.partition(b" - ")
        (_, _, _, root, folder), (kind, source) = left.split(b" ")[:5], right.split(b" ")[:2]
        path = Path(_plain(folder))
        found.pop(path, None)  # it hides the previous mount at this folder
        if root == b"/":
            found[path] = Mounted(path, _plain(kind), _plain(source))
    return list(found.values())


def at(folder: Path) -> Mounted | None:
    """The mount at exactly this folder."""
    return next((mounted for mounted in mounts() if mounted.folder == folder), None)


def of_image(image: Path) -> list[Mounted]:
    """Our FUSE mounts of this image, including those that do not respond."""
    return [mounted for mounted in mounts() if mounted.source == f"{MARK}{image}"]


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


def _plain(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), field))
