r"""What is mounted where, by `/proc/self/mountinfo`, and which of it shows a certain image.

The trap: spaces in the table are written as `\040`, and a FUSE mount does not say what it shows. What
its server has open does.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
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
    device: str  # "major:minor"

    @property
    def ours(self) -> bool:
        """Whether `mount` made it, so that it may go at any time."""
        return self.source.startswith(MARK) or self.folder.name.startswith(PREFIX)


def mounts() -> list[Mounted]:
    """Everything that is mounted whole and visible, the latest last."""
    found: dict[Path, Mounted] = {}
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
        left, _, right = line.partition(b" - ")
        (_, _, device, root, folder), (kind, source) = left.split(b" ")[:5], right.split(b" ")[:2]
        path = Path(_plain(folder))
        found.pop(path, None)  # what was mounted there before is hidden
        if root == b"/":
            found[path] = Mounted(path, _plain(kind), _plain(source), device.decode())
    return list(found.values())


def at(folder: Path) -> Mounted | None:
    """What is mounted exactly here."""
    return next((mounted for mounted in mounts() if mounted.folder == folder), None)


def of_image(image: Path) -> Iterator[Mounted]:
    """Mounts that show this image, those that do not answer included."""
    for mounted in mounts():
        if mounted.kind == "squashfs":
            if _same(_backing_file(mounted), image):
                yield mounted
        elif mounted.kind.startswith("fuse") and (
            mounted.source in (f"{MARK}{image}", str(image)) or _served(mounted, image)
        ):
            yield mounted


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


def _backing_file(mounted: Mounted) -> Path:
    """The file behind a loop device, or the device itself."""
    try:
        line = Path(f"/sys/dev/block/{mounted.device}/loop/backing_file").read_bytes()
    except OSError:
        return Path(mounted.source)
    return Path(os.fsdecode(line.removesuffix(b"\n")))


def _served(mounted: Mounted, image: Path) -> bool:
    """Whether a server that was started for this mount point has the image open."""
    if "squashfuse" not in mounted.kind + mounted.source:
        return False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"squashfuse" in words[0] and os.fsencode(mounted.folder) in words:
                return any(_same(opened, image) for opened in (process / "fd").iterdir())
        except OSError:  # it ended, or belongs to somebody else
            continue
    return False


def _same(path: Path, image: Path) -> bool:
    try:
        return path.samefile(image)
    except OSError:
        return False
