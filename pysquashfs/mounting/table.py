r"""What is mounted where, by `/proc/self/mountinfo`, and which of it we have mounted.

The trap: spaces in the table are written as `\040`, and a FUSE mount says only what its server was told to
say. Ours say which image they show.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

MARK = "pysquashfs:"  # what FUSE mounts of ours have before the image as their source, …
PREFIX = "pysquashfs-"  # … and what private mount points start with
_STAT_S = 5
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mounted:
    """One line of the table."""

    folder: Path
    kind: str  # "squashfs", "fuse.squashfuse_ll", ...
    source: str


def mounts() -> list[Mounted]:
    """Everything that is mounted whole and visible, the latest last."""
    found: dict[Path, Mounted] = {}
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
        left, _, right = line.partition(b" - ")
        (_, _, _, root, folder), (kind, source) = left.split(b" ")[:5], right.split(b" ")[:2]
        path = Path(_plain(folder))
        found.pop(path, None)  # what was mounted there before is hidden
        if root == b"/":
            found[path] = Mounted(path, _plain(kind), _plain(source))
    return list(found.values())


def at(folder: Path) -> Mounted | None:
    """What is mounted exactly here."""
    return next((mounted for mounted in mounts() if mounted.folder == folder), None)


def of_image(image: Path) -> list[Mounted]:
    """FUSE mounts of ours that show this image, those that do not answer included."""
    return [mounted for mounted in mounts() if mounted.source == f"{MARK}{image}"]


def answer(folder: Path) -> str:
    """How a mount point answers: "" if well, otherwise what is wrong with it."""
    try:
        # In a process of its own, since asking a server that hangs would never end here.
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
