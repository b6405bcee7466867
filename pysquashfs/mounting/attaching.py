"""Run the commands that mount and unmount, and make sure that a mount ends with this program.

A small shell process waits for the end of this one and then unmounts, whether this one exits or is killed by
SIGTERM or SIGKILL. No signal handler is changed. (If a scheduler kills every process of a job, a dead mount
is left; the next `mount` of the image removes it.)

The trap: a mount is not there yet when its server has started, and is still busy just after the last file
was closed. Both are waited for. Notebook 06 mounts an image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pysquashfs.errors import SquashFSError
from pysquashfs.mounting import table
from pysquashfs.mounting.ways import command, unmount_command

_BUSY_S = 2.0  # time for open files to close before a mount is only detached
_COMMAND_S = 30.0
_PAUSE_S = 0.02
# Reads a line if this process unmounted by itself; the end of the pipe if this process ended before.
_WATCH = 'read -r _ && exit; folder=$1; made=$2; shift 2; "$@"; [ -z "$made" ] || rmdir -- "$folder"'


class MountError(SquashFSError):
    """An image could not be mounted or unmounted."""


@dataclass(frozen=True)
class Attached:
    """A mount of this process."""

    folder: Path
    server: subprocess.Popen[bytes] | None  # of FUSE; the kernel needs none
    watcher: subprocess.Popen[bytes]
    owner: int  # process id

    def detach(self) -> None:
        """Unmount; in a forked child this does nothing.

        Raises:
            MountError: It cannot be unmounted.
        """
        if os.getpid() != self.owner:
            return
        busy = unmount(self.folder)
        self.watcher.communicate(b"done\n")
        _end(self.server, busy=busy)


def attach(way: str, image: Path, folder: Path, *, made: bool) -> Attached | str:
    """Mount an image and wait until the folder can be read.

    Args:
        way: As in `Way.name`.
        image: The image, resolved.
        folder: The mount point, resolved; empty.
        made: Whether the mount point was made for this, and is removed with the mount.

    Returns:
        The mount, or why there is none.
    """
    watcher = _watch("squashfs" if way == "kernel" else "fuse", folder, made=made)
    attached, words = Attached(folder, None, watcher, os.getpid()), command(way, image, folder)
    with contextlib.ExitStack() as unless_attached, tempfile.TemporaryFile() as output:
        unless_attached.callback(lambda: attached.detach())
        if way != "kernel":
            # In a session of its own, so that Ctrl-C reaches only the program, which then unmounts.
            server = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            attached = replace(attached, server=server)
        fault = _run(words) if way == "kernel" else ""
        fault = fault or _wait(folder, attached.server, output)
        if not fault:
            unless_attached.pop_all()
    return fault or attached


def unmount(folder: Path) -> bool:
    """Unmount; a mount in use disappears now, and is released with its last open file.

    Returns:
        Whether it was in use.

    Raises:
        MountError: It cannot be unmounted.
    """
    deadline, busy = time.monotonic() + _BUSY_S, False
    while (mounted := table.at(folder)) is not None:
        lazy = time.monotonic() > deadline
        fault = _run(unmount_command(mounted.kind, folder, lazy=lazy))
        if not fault and lazy:
            busy = True
            warnings.warn(
                f"{folder} was still in use: it is detached now, and goes with the last open file",
                stacklevel=2,
            )
        elif fault and lazy:
            raise MountError(
                f"{folder} cannot be unmounted ({fault})",
                expected="a mount that may be taken away",
                next_step=f"See who uses it with: fuser -vm {folder}",
            )
        elif fault:
            time.sleep(_PAUSE_S)
    return busy


def _wait(folder: Path, server: subprocess.Popen[bytes] | None, output: IO[bytes]) -> str:
    """Wait until a mount is there and can be read: "", or what is wrong after that time."""
    deadline, fault = time.monotonic() + _COMMAND_S, ""
    while time.monotonic() < deadline:
        fault = "nothing was mounted" if table.at(folder) is None else table.answer(folder)
        if not fault:
            return ""
        if server is not None and server.poll() is not None:
            return _text(output) or f"it ended with {server.returncode}"
        time.sleep(_PAUSE_S)
    return f"{fault} within {_COMMAND_S:g} s"


def _run(words: list[str]) -> str:
    """Run a command: "" if it worked, otherwise its output."""
    with tempfile.TemporaryFile() as output:  # not a pipe, which a process in the background would keep open
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_COMMAND_S
            )
        except subprocess.TimeoutExpired:
            return f"{words[0]} did not end within {_COMMAND_S:g} s"
        except (OSError, ValueError) as error:
            return f"{words[0]} cannot be run ({error})"
        return "" if done.returncode == 0 else _text(output) or f"{words[0]} ended with {done.returncode}"


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return " ".join(output.read(2000).decode(errors="replace").split())


def _watch(kind: str, folder: Path, *, made: bool) -> subprocess.Popen[bytes]:
    """Start a process that unmounts if this one ends without doing so."""
    shell, words = shutil.which("sh") or "/bin/sh", unmount_command(kind, folder, lazy=True)
    return subprocess.Popen(
        [shell, "-c", _WATCH, "sh", str(folder), "made" if made else "", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(server: subprocess.Popen[bytes] | None, *, busy: bool) -> None:
    """Wait for the server of a removed mount; unless files are open, end it if it does not end."""
    if server is None:
        return
    for insist in (0,) if busy else (0, signal.SIGTERM, signal.SIGKILL):
        if insist:
            server.send_signal(insist)
        try:
            server.wait(_BUSY_S)
            return
        except subprocess.TimeoutExpired:
            continue
    threading.Thread(target=server.wait, daemon=True).start()
