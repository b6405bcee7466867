"""Mount points: check, mount and unmount them without root, and remove dead ones.

A user mounts through `fusermount3`, a small privileged program that returns the open channel to the
kernel. The trap: a mount whose process was killed stays in the table of mounts, and each call on it fails
with "Transport endpoint is not connected"; `repair` unmounts it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import subprocess
from pathlib import Path

from pysquashfs.mounts import read_mounts
from smallfiles.errors import ResourceError, UsageError
from smallfiles.machine.filesystems import mount_of

SUBTYPE = "smallfiles-slowfs"
KIND = f"fuse.{SUBTYPE}"
"""The type of file system in the table of mounts."""

DEVICE = Path("/dev/fuse")
_TOOLS = ("fusermount3", "fusermount")
_OPTIONS = f"ro,nosuid,nodev,fsname=slowfs,subtype={SUBTYPE}"
_LIMIT_S = 10


def why_not(device: Path = DEVICE) -> str | None:
    """Why no folder can be mounted here; None if it is possible."""
    if not device.exists():
        return f"{device} does not exist (the kernel, or the container, has no FUSE)"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"you may not use {device}"
    if _tool() is None:
        return "the command fusermount3 is missing (package fuse3)"
    return None


def check(folder: Path, point: Path) -> None:
    """Refuse a folder or a mount point that cannot be used.

    Raises:
        UsageError: Not a folder, or nested mounts.
        ResourceError: The mount point is in use, or one of the two cannot be examined.
    """
    try:
        problem = _problem(folder, point)
        free = problem is not None or not point.exists() or (point.is_dir() and not any(point.iterdir()))
    except OSError as error:
        raise ResourceError(
            f"{error.filename} cannot be used ({error.strerror})",
            expected="a folder and a mount point that you may read",
            next_step="Check their permissions, and unmount dead mounts (fusermount3 -u)",
        ) from error
    if problem is not None:
        raise UsageError(
            problem,
            expected="a folder, and a mount point outside of it, neither on a slow mount",
            next_step="Check the paths, and use the folder behind a slow mount",
        )
    if not free:
        raise ResourceError(
            f"{point} is not an empty folder",
            expected="an empty folder, or a name that is free, to mount at",
            next_step="Choose another mount point",
        )


def _problem(folder: Path, point: Path) -> str | None:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if point.is_relative_to(folder) or folder.is_relative_to(point):
        return f"{point} and {folder} lie within each other"
    slow = next((path for path in (folder, point) if _kind(path) == KIND), None)
    return None if slow is None else f"{slow} is already on a slow mount"


def mount(point: Path) -> int:
    """Mount an empty file system at `point`.

    Returns:
        The descriptor through which the kernel sends its requests.

    Raises:
        ResourceError: It is not possible here; the message has the reason.
    """
    reason, tool = why_not(), _tool()
    if reason is None and tool is not None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            done = subprocess.run(
                [tool, "-o", _OPTIONS, "--", str(point)],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
            theirs.close()
            if done.returncode == 0:
                _, descriptors, *_ = socket.recv_fds(ours, 1, 1)
                return descriptors[0]
        reason = done.stderr.decode(errors="replace").strip() or f"{tool} failed"
    raise impossible(f"{point} cannot be mounted: {reason}")


def impossible(got: str) -> ResourceError:
    """The error where mounting is not possible."""
    return ResourceError(
        got,
        expected="FUSE, which lets users mount folders",
        next_step="Use slowfs.open_slow, which delays reads in this process instead",
    )


def unmount(point: Path) -> None:
    """Unmount a slow mount, also if it is in use or dead; does nothing if there is none."""
    tool = _tool()
    if tool is not None and is_mounted(point):
        command = [tool, "-u", "-z", "-q", "--", str(point)]
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
            )


def is_mounted(point: Path) -> bool:
    """Whether the table of mounts has a slow mount at this point; sends no request to the mount."""
    return any(found.kind == KIND and found.point == str(point) for found in read_mounts())


def repair(point: Path) -> None:
    """Unmount a slow mount at `point` whose process is dead."""
    if is_mounted(point) and _is_dead(point):
        unmount(point)


def sweep(parent: Path, prefix: str) -> None:
    """Unmount and remove the mounts of killed processes in `parent`."""
    for found in read_mounts():
        point = Path(found.point)
        ours = found.kind == KIND and point.parent == parent and point.name.startswith(prefix)
        if ours and _is_dead(point):
            unmount(point)
            with contextlib.suppress(OSError):  # of another user
                point.rmdir()


def _is_dead(point: Path) -> bool:
    try:
        os.stat(point)  # noqa: PTH116 - Path.stat would be the same call
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _kind(path: Path) -> str:
    found = mount_of(os.path.realpath(path), read_mounts())
    return found.kind if found else ""


def _tool() -> str | None:
    return next(filter(None, map(shutil.which, _TOOLS)), None)
