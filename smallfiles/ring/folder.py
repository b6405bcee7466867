"""The files of a ring: they connect trainer and filler, and distinguish a live ring from a leftover.

    smallfiles-ring-UID/       private to this user (0700)
      NAME.lock                held by the filler, which it names; the kernel releases it at its end
      NAME.json                what the ring holds
      NAME.position            where the trainer is: 16 bytes
      NAME.socket              where trainers connect

They take a few kilobytes; no batch is stored here. The trap: a process number alone proves nothing, since
numbers are reused and each container has its own. A lock alone proves nothing either, since each mount of a
folder may have its own locks. `smallfiles.locks` asks both. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from smallfiles import locks
from smallfiles.atomic import write_json
from smallfiles.errors import OutputExistsError, UsageError
from smallfiles.machine.nodelocal import SHARED_MEMORY
from smallfiles.ring.channel import Channel, close_in_children, connect, listen
from smallfiles.ring.state import Position

_KIND = "ring-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCK = ".lock"
_POSITION = struct.Struct("<qq")
_PROBES, _PROBE_S = 10, 0.05


def ring_name(name: str, rank: int, world_size: int) -> str:
    """The name of a rank's ring: each rank has its own."""
    return name if world_size == 1 else f"{name}.{rank}"


def names(where: Path = SHARED_MEMORY) -> list[str]:
    """The rings of this user, live or left over."""
    folder = where / locks.folder_name(_KIND)
    if not folder.is_dir():
        return []
    locks.check(folder)
    return sorted(path.name.removesuffix(_LOCK) for path in folder.glob(f"*{_LOCK}"))


def lives(name: str, where: Path = SHARED_MEMORY) -> bool:
    """Whether a process fills a ring of this name."""
    return RingFiles.of(name, where).lives()


def remove_leftover(name: str, where: Path = SHARED_MEMORY) -> bool:
    """Remove what a killed filler left; False if the ring lives."""
    files = RingFiles.of(name, where)
    if files.lives():
        return False
    try:
        files.remove(files.claim())
    except OutputExistsError:
        return False
    return True


def missing(name: str, where: Path) -> UsageError:
    """The error for a ring that does not exist."""
    others = [other for other in names(where) if other != name]
    return UsageError(
        f"there is no ring called {name} in {where}",
        expected=f"one of {', '.join(others)}" if others else "a ring, and none is there",
        next_step="Start one: smallfiles ring fill --help",
    )


@dataclass(frozen=True)
class RingFiles:
    """The files of one ring.

    Args:
        folder: Holds all rings of this user.
        name: Of the ring.
    """

    folder: Path
    name: str

    @classmethod
    def of(cls, name: str, where: Path) -> RingFiles:
        """The files of the ring `name`, whether they exist or not.

        Raises:
            UsageError: The name could lead to another folder, or is too long.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"the ring's name is {name!r}",
                expected="up to 64 letters, digits, dots, dashes and underscores, not a dot first",
                next_step="Choose another name",
            )
        return cls(where / locks.folder_name(_KIND), name)

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.name}{suffix}"

    def listen(self) -> socket.socket:
        """The filler's socket; the lock must be ours."""
        with self._socket() as address:
            return listen(address)

    def connect(self) -> Channel | None:
        """A channel to the filler of the ring; None if there is none.

        Raises:
            ResourceError: Another user could have put a socket there.
        """
        try:
            with self._socket() as address:
                return connect(address)
        except OSError:
            return None

    @contextlib.contextmanager
    def _socket(self) -> Iterator[str]:
        """The address of the filler's socket, through the open folder: a socket's path ends at 107 bytes.

        Raises:
            OSError: There is no such folder.
            ResourceError: Others may write into the folder.
        """
        locks.check(self.folder)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{self.name}.socket"
        finally:
            os.close(folder)

    def claim(self) -> FileIO:
        """Create the ring or take it over.

        Raises:
            OutputExistsError: A live process owns a ring of this name.
            ResourceError: The folder cannot be created, or is not private.
        """
        locks.private_folder(self.folder.parent, _KIND)
        for _ in range(_PROBES):
            lock = locks.try_lock(self._path(_LOCK), shared=False)
            if lock is not None:
                return close_in_children(FileIO(lock, "r+"))
            time.sleep(_PROBE_S)  # `lives` holds the lock for a moment in order to find out
        raise OutputExistsError(
            f"a ring called {self.name} is there already, filled by process {self.pid()}",
            expected="a name of its own for each ring (each rank has one)",
            next_step=f"Choose another name, or stop that one; see: smallfiles ring status {self.name}",
        )

    def remove(self, lock: FileIO) -> None:
        """Delete all files of the ring; the lock must be ours."""
        for path in self.folder.glob(f".{self.name}.json.*"):
            path.unlink(missing_ok=True)  # a description that was not finished
        for suffix in (".json", ".position", ".socket", _LOCK):
            self._path(suffix).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # succeeds only after the last ring
        locks.forget(lock.fileno())
        lock.close()

    def lives(self) -> bool:
        """Whether a process owns the ring."""
        return locks.is_held(self._path(_LOCK), shared=True)

    def describe(self, description: dict[str, Any]) -> None:
        """Record what this ring holds, atomically."""
        write_json(self._path(".json"), {"pid": os.getpid(), **description})

    def description(self) -> dict[str, Any] | None:
        """What the ring holds; None if no readable record is there."""
        try:
            record = json.loads(self._path(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def pid(self) -> int:
        """Process that fills or filled it, for messages; 0 if unknown."""
        return int((self.description() or {}).get("pid", 0))

    def keep(self, position: Position, *, create: bool = False) -> None:
        """Record where the trainer is: 16 bytes, cheap enough for each batch.

        The trainer writes it: a message to the filler is lost if both are killed before it is received.

        Args:
            position: The first batch that training has not finished.
            create: Create the file, as a starting filler does; a filler that ended normally deleted it.
        """
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with contextlib.suppress(FileNotFoundError):
            file = os.open(self._path(".position"), flags, 0o600)
            try:
                os.pwrite(file, _POSITION.pack(*position), 0)
            finally:
                os.close(file)

    def position(self) -> Position | None:
        """Where the trainer of a ring was; None if unknown."""
        try:
            data = self._path(".position").read_bytes()
        except OSError:
            return None
        return Position(*_POSITION.unpack(data)) if len(data) == _POSITION.size else None
