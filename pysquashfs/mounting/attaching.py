"""Run what mounts and unmounts, and have a mount taken away however this program ends.

A small shell process waits for the end of this one: whether it exits, or is ended by SIGTERM or SIGKILL,
the mount goes. No handler of signals is touched for that. (A scheduler that kills every process of a
job leaves a dead mount; the next `mount` of the image clears it away.)

The trap: a mount is not there yet when its server has started, and still busy when the last file was
just closed. Both are waited for. Notebook 06 mounts an image.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pysquashfs.errors import SquashFSError
from pysquashfs.mounting import table
from pysquashfs.mounting.ways import command, unmount_command

_BUSY_S = 2.0  # how long open files may take to close before a mount is only detached
_COMMAND_S = 20.0
_PAUSE_S = 0.02
# Reads a line when this process unmounted by itself; gets nothing when this process ended without.
_WATCH = 'read -r _ && exit; folder=$1; made=$2; shift 2; "$@"; [ -z "$made" ] || rmdir -- "$folder"'


class MountError(SquashFSError):
    """An image could not be mounted, or a mount not be taken away."""


@dataclass(frozen=True)
class Attached:
    """A mount of this process."""

    folder: Path
    server: subprocess.Popen[bytes] | None  # of FUSE; the kernel needs none
    watcher: subprocess.Popen[bytes]
    owner: int  # process id

    def detach(self) -> None:
        """Take the mount away; a child that got this by a fork leaves it alone.

        Raises:
            MountError: It cannot be taken away.
        """
        if os.getpid() != self.owner:
            return
        busy = unmount(self.folder)
        self.watcher.communicate(b"done\n")
        _end(self.server, busy=busy)


def attach(way: str, image: Path, folder: Path, timeout_s: float, *, made: bool) -> Attached | str:
    """Mount an image and wait until the folder answers.

    Args:
        way: As in `Way.name`.
        image: The image, resolved.
        folder: The mount point, resolved; empty.
        timeout_s: How long that may take.
        made: Whether the mount point was made for this, and goes with the mount.

    Returns:
        The mount, or why there is none.
    """
    server, watcher = None, _watch("squashfs" if way == "kernel" else "fuse", folder, made=made)
    attached = False
    try:
        with tempfile.TemporaryFile() as said:
            words = command(way, image, folder)
            if way == "kernel":
                fault = _run(words, timeout_s)
            else:
                server, fault = _start(words, said)
            fault = fault or _wait(folder, timeout_s, server, said)
        attached = not fault
    finally:
        if not attached:
            busy = unmount(folder)
            watcher.communicate(b"done\n")
            _end(server, busy=busy)
    return fault or Attached(folder, server, watcher, os.getpid())


def unmount(folder: Path) -> bool:
    """Take a mount away; one that is in use goes from sight now, and for good with its last open file.

    Returns:
        Whether it was in use.

    Raises:
        MountError: It cannot be taken away.
    """
    deadline, busy = time.monotonic() + _BUSY_S, False
    while (mounted := table.at(folder)) is not None:
        lazy = time.monotonic() > deadline
        fault = _run(unmount_command(mounted.kind, folder, lazy=lazy), _COMMAND_S)
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


def _start(words: list[str], said: IO[bytes]) -> tuple[subprocess.Popen[bytes] | None, str]:
    """Start a FUSE server as a child, so that its end is noticed."""
    try:
        # In a session of its own: Ctrl-C is for the program, which unmounts then.
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        ), ""
    except (OSError, ValueError) as error:
        return None, f"{words[0]} cannot be run ({error})"


def _wait(folder: Path, timeout_s: float, server: subprocess.Popen[bytes] | None, said: IO[bytes]) -> str:
    """Until a mount is there and answers: "", or what is wrong after that time."""
    deadline, fault = time.monotonic() + timeout_s, "there was no time"
    while time.monotonic() < deadline:
        fault = "nothing was mounted" if table.at(folder) is None else table.answer(folder)
        if not fault:
            return ""
        if server is not None and server.poll() is not None:
            return _text(said) or f"it ended with {server.returncode}"
        time.sleep(_PAUSE_S)
    return f"{fault} within {timeout_s:g} s"


def _run(words: list[str], timeout_s: float) -> str:
    """Run a command: "" if it worked, otherwise what it said."""
    with tempfile.TemporaryFile() as said:  # not a pipe, which a process that it leaves behind keeps open
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return f"{words[0]} did not end within {timeout_s:g} s"
        except (OSError, ValueError) as error:
            return f"{words[0]} cannot be run ({error})"
        return "" if done.returncode == 0 else _text(said) or f"{words[0]} ended with {done.returncode}"


def _text(said: IO[bytes]) -> str:
    said.seek(0)
    return " ".join(said.read(2000).decode(errors="replace").split())


def _watch(kind: str, folder: Path, *, made: bool) -> subprocess.Popen[bytes]:
    """A process that takes the mount away if this one ends without doing so."""
    shell, words = shutil.which("sh") or "/bin/sh", unmount_command(kind, folder, lazy=True)
    return subprocess.Popen(
        [shell, "-c", _WATCH, "sh", str(folder), "made" if made else "", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(server: subprocess.Popen[bytes] | None, *, busy: bool) -> None:
    """Wait for a server whose mount is gone. Open files keep it a while; otherwise it gets no choice."""
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
