"""The files of a ring: where a trainer finds its filler, and what tells a live ring from a leftover.

    smallfiles-ring-UID/       ours alone (0700)
      NAME.lock                held by the filler; the kernel lets go of it when the filler ends, however
      NAME.json                what the ring holds
      NAME.position            where the trainer is: 16 bytes
      NAME.socket              where trainers come to

A few kilobytes; no batch lies here. The trap: a process number alone proves nothing, since numbers are used
again and containers count their own. So the lock decides, and the number only stands in messages. Notebook
08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from smallfiles import locks
from smallfiles.atomic import write_json
from smallfiles.errors import OutputExistsError, ResourceError, UsageError
from smallfiles.machine.nodelocal import SHARED_MEMORY
from smallfiles.ring.channel import close_in_children
from smallfiles.ring.state import Position

_KIND = "ring-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCK = ".lock"
_POSITION = struct.Struct("<qq")
_PROBES, _PROBE_S = 10, 0.05


def ring_name(name: str, rank: int, world_size: int) -> str:
    """The name of a rank's ring: ranks have their own."""
    return name if world_size == 1 else f"{name}.{rank}"


def names(where: Path = SHARED_MEMORY) -> list[str]:
    """The rings of this user, live or left over."""
    folder = where / locks.folder_name(_KIND)
    if not folder.is_dir():
        return []
    locks.check(folder)
    return sorted(path.name.removesuffix(_LOCK) for path in folder.glob(f"*{_LOCK}"))


def lives(name: str, where: Path = SHARED_MEMORY) -> bool:
    """Whether somebody fills a ring of this name."""
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


@dataclass(frozen=True)
class RingFiles:
    """The files of one ring.

    Args:
        folder: That of all rings of this user.
        name: Of the ring.
    """

    folder: Path
    name: str

    @classmethod
    def of(cls, name: str, where: Path) -> RingFiles:
        """Those of the ring called `name`; nothing is made.

        Raises:
            UsageError: The name could lead elsewhere, or is too long.
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

    @contextlib.contextmanager
    def socket(self) -> Iterator[str]:
        """The address of the filler's socket: by the open folder, since a socket's path ends at 107 bytes.

        Raises:
            OSError: There is no such folder.
            ResourceError: Others could put theirs there, and feed the training.
        """
        locks.check(self.folder)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{self.name}.socket"
        finally:
            os.close(folder)

    def claim(self) -> FileIO:
        """Make or take over the ring; the open lock, for `remove`.

        Raises:
            OutputExistsError: A live process owns a ring of this name.
            ResourceError: The folder cannot be made, or is not private.
        """
        if not self.folder.parent.is_dir():
            raise ResourceError(
                f"{self.folder.parent} is not there",
                expected="a folder in memory, such as /dev/shm",
                next_step="Choose another place (--where)",
            )
        locks.private_folder(self.folder.parent, _KIND)
        for _ in range(_PROBES):
            lock = locks.try_lock(self._path(_LOCK), shared=False)
            if lock is not None:
                return close_in_children(FileIO(lock, "r+"))
            time.sleep(_PROBE_S)  # whoever only asks whether the ring lives holds the lock for a moment
        raise OutputExistsError(
            f"a ring called {self.name} is there already, filled by process {self.pid()}",
            expected="a name of its own for each ring (each rank has one)",
            next_step=f"Choose another name, or stop that one; see: smallfiles ring status {self.name}",
        )

    def remove(self, lock: FileIO) -> None:
        """Leave nothing behind; the lock must be ours."""
        for path in self.folder.glob(f".{self.name}.json.*"):
            path.unlink(missing_ok=True)  # half a description
        for suffix in (".json", ".position", ".socket", _LOCK):
            self._path(suffix).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # only if it was the last
        lock.close()

    def lives(self) -> bool:
        """Whether a process owns the ring."""
        return locks.is_held(self._path(_LOCK), shared=True)

    def describe(self, description: dict[str, Any]) -> None:
        """Write what this ring is, whole or not at all."""
        write_json(self._path(".json"), {"pid": os.getpid(), **description})

    def description(self) -> dict[str, Any] | None:
        """What the ring says it is; None if nothing that can be read."""
        try:
            record = json.loads(self._path(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def pid(self) -> int:
        """Process that fills or filled it, for messages; 0 if none has said."""
        return int((self.description() or {}).get("pid", 0))

    def keep(self, position: Position, *, create: bool = False) -> None:
        """Write down where the trainer is: 16 bytes, so it may be done for each batch.

        It does so itself: what it has told its filler is lost if both are killed before the filler listens.

        Args:
            position: The batch that it is not done with.
            create: Make the file, as a filler does that begins; one that has ended in order took it away.
        """
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with contextlib.suppress(FileNotFoundError):
            file = os.open(self._path(".position"), flags, 0o600)
            try:
                os.pwrite(file, _POSITION.pack(*position), 0)
            finally:
                os.close(file)

    def position(self) -> Position | None:
        """Where the trainer of a ring was; None if it never got anywhere."""
        try:
            data = self._path(".position").read_bytes()
        except OSError:
            return None
        return Position(*_POSITION.unpack(data)) if len(data) == _POSITION.size else None
