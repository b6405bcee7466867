"""The ways to mount an image on this machine, in order of preference.

First the kernel without root, then FUSE, then a container. Root comes last, because the kernel trusts what
it mounts, and an image from elsewhere may not be trustworthy.

The trap: some ways cannot be used from inside a running program. `squashfs-mount` and `apptainer` start the
program, so only the command can be shown. Notebook 06 shows the list.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from pysquashfs.mounting import table

FUSE_TOOLS = ("squashfuse_ll", "squashfuse")
_APT = "apt-get install squashfuse fuse3 (or dnf install squashfuse fuse3), or ask your site for them"


@dataclass(frozen=True)
class Way:
    """One way to mount an image.

    Args:
        name: "squashfs-mount", "squashfuse_ll", "squashfuse", "apptainer" or "kernel".
        line: What to type.
        available: Whether it works here.
        reason: Its advantages and disadvantages, or what is missing.
        inside: Whether `mount` can use it, without a restart of the program.
    """

    name: str
    line: str
    available: bool
    reason: str
    inside: bool


def how_to_mount(image: str | os.PathLike[str]) -> list[Way]:
    """All ways to mount an image, the best first.

    Any program can read a mounted image as a folder, at the cost of a request to the kernel or to FUSE
    for each file; `SquashFS` does not need a mount.

    Args:
        image: The image.
    """
    path = Path(image).resolve()
    fuse = [_fuse(tool, path) for tool in FUSE_TOOLS]
    return [_squashfs_mount(path), *fuse, _apptainer(path), _kernel(path)]


def command(way: str, image: Path, folder: Path) -> list[str]:
    """The command that mounts an image on a folder, for the ways that `mount` can use."""
    if way == "kernel":
        return ["mount", "-t", "squashfs", "-o", "loop,ro,nosuid,nodev", str(image), str(folder)]
    # The name in the table of mounts; in a list of options, commas and backslashes are special.
    name = f"{table.MARK}{image}".replace("\\", "\\\\").replace(",", "\\,")
    return [way, "-f", "-o", f"ro,subtype={way},fsname={name}", str(image), str(folder)]


def unmount_command(kind: str, folder: Path, *, lazy: bool) -> list[str]:
    """The command that unmounts.

    Args:
        kind: Its type in the table of mounts, as "fuse.squashfuse".
        folder: Its mount point.
        lazy: Even if files are open: it disappears now, and is released with the last of them.
    """
    fuse = next((tool for tool in ("fusermount3", "fusermount") if shutil.which(tool)), None)
    if kind.startswith("fuse") and fuse:
        return [fuse, "-u", *(["-z"] if lazy else []), str(folder)]
    return ["umount", *(["-l"] if lazy else []), str(folder)]


def _squashfs_mount(image: Path) -> Way:
    where = "/user-environment"
    line = f"squashfs-mount {shlex.quote(f'{image}:{where}')} -- python train.py --data {where}"
    missing = ""
    good = "as fast as the kernel and without root; it starts your program with the image mounted"
    if ":" in str(image):
        missing = "it cannot take a path with a colon"
    elif shutil.which("squashfs-mount") is None:
        missing = "squashfs-mount is not installed (a few sites have it)"
    return Way("squashfs-mount", line, not missing, missing or good, False)


def _fuse(tool: str, image: Path) -> Way:
    line = shlex.join([tool, str(image), "FOLDER"])
    missing = _missing_for_fuse(tool)
    if missing:
        return Way(tool, line, False, missing, True)
    threads = "uses several threads" if tool == "squashfuse_ll" else "serves one request at a time"
    return Way(tool, line, True, f"needs no root; {threads}", True)


def _missing_for_fuse(tool: str) -> str:
    if shutil.which(tool) is None:
        return f"{tool} is not installed: {_APT}"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        there = Path("/dev/fuse").exists()
        return "/dev/fuse may not be opened: ask your site" if there else "this machine has no /dev/fuse"
    if os.geteuid() != 0 and not (shutil.which("fusermount3") or shutil.which("fusermount")):
        return f"fusermount3 is not installed: {_APT}"
    return ""


def _apptainer(image: Path) -> Way:
    tool = next((name for name in ("apptainer", "singularity") if shutil.which(name)), None)
    bind = shlex.quote(f"{image}:/data:image-src=/")
    line = f"{tool or 'apptainer'} exec -B {bind} CONTAINER.sif python train.py --data /data"
    if set(":,") & set(str(image)):
        return Way("apptainer", line, False, "it cannot take a path with a colon or a comma", False)
    if "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ:
        return Way("apptainer", line, False, "this is inside a container: bind it where that starts", False)
    if tool is None:
        return Way("apptainer", line, False, "neither apptainer nor singularity is installed", False)
    return Way("apptainer", line, True, "it starts your program in a container that has the image", False)


def _kernel(image: Path) -> Way:
    line = shlex.join(command("kernel", image, Path("FOLDER")))
    if os.geteuid() != 0:
        return Way("kernel", line, False, "only root may", True)
    if shutil.which("mount") is None or not Path("/dev/loop-control").exists():
        return Way("kernel", line, False, "this machine has no loop devices, or no mount command", True)
    return Way("kernel", line, True, "fast, but a damaged file can harm the kernel", True)
