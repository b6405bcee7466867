"""The ring's folder: where a trainer finds its filler, and what tells a live ring from a leftover.

It holds a socket, a description and the trainer's position, a few kilobytes; no batch lies here. It is
private (0700, owned by this user, no symbolic link), and its owner holds a lock on it that the kernel
releases when the owner ends, in whatever way.

The trap: a process number alone proves nothing, since numbers are used again and containers count their
own. So the lock decides, and the number only stands in messages. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import struct
import time
from pathlib import Path
from typing import Any

from smallfiles.errors import OutputExistsError, ResourceError, UsageError
from smallfiles.ring.book import Position
from smallfiles.ring.forksafe import close_in_children

SHARED_MEMORY = Path("/dev/shm")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DESCRIPTION, _POSITION = "ring.json", "position"
_POSITION_FORMAT = struct.Struct("<qq")
_PROBES, _PROBE_S = 10, 0.05


def base(where: Path) -> Path:
    """The folder that holds all rings of this user."""
    return where / f"smallfiles-ring-{os.geteuid()}"


def path_of(where: Path, name: str) -> Path:
    """The folder of the ring called `name`.

    Raises:
        UsageError: The name could lead elsewhere, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the ring's name is {name!r}",
            expected="up to 64 letters, digits, dots, dashes and underscores, not a dot first",
            next_step="Choose another name",
        )
    return base(where) / name


def names(where: Path) -> list[str]:
    """The rings of this user, live or left over."""
    if not base(where).is_dir():
        return []
    check_private(base(where))
    return sorted(entry.name for entry in base(where).iterdir() if _NAME.fullmatch(entry.name))


def check_private(path: Path) -> None:
    """Refuse a folder that is not ours alone: whoever may write there could feed the training.

    Raises:
        ResourceError: It is a link, belongs to somebody else or is open to others.
    """
    found = path.lstat()
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if not private:
        raise ResourceError(
            f"{path} is not a private folder of this user",
            expected="a folder (no link) owned by you with mode 0700",
            next_step="Remove it if it is yours; otherwise choose another place (--where)",
        )


class RingFolder:
    """A ring's folder, owned by this process until `remove` or its end.

    Args:
        path: The folder.
        fd: The open folder, locked.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self._owner = os.getpid()
        self._position_fd = -1
        close_in_children(self)

    @classmethod
    def claim(cls, where: Path, name: str) -> RingFolder:
        """Make or take over the folder of a ring.

        Raises:
            OutputExistsError: A live process owns a ring of this name.
            ResourceError: The folder cannot be made, or is not private.
        """
        path = path_of(where, name)
        for _ in range(_PROBES):
            _make(path)
            fd = _open(path)
            if fd is not None and _locked(fd, path):
                return cls(path, fd)
            if fd is not None:
                os.close(fd)
            time.sleep(_PROBE_S)  # whoever only asks whether the ring lives holds the lock for a moment
        raise OutputExistsError(
            f"a ring called {name} is there already, {owner_of(path)}",
            expected="a name of its own for each ring (each rank has one)",
            next_step=f"Choose another name, or stop that one; see: smallfiles ring status {name}",
        )

    def describe(self, description: dict[str, Any]) -> None:
        """Write what this ring is, whole or not at all."""
        record = {"pid": os.getpid(), "start": start_of(os.getpid()), **description}
        temporary = self.path / f"{_DESCRIPTION}.new"
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
        temporary.replace(self.path / _DESCRIPTION)

    def keep(self, position: Position) -> None:
        """Write down where a trainer begins; from then on it does so itself (`keep_position`)."""
        if self._position_fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._position_fd = os.open(_POSITION, flags, 0o600, dir_fd=self.fd)
        os.pwrite(self._position_fd, _POSITION_FORMAT.pack(*position), 0)

    def remove(self) -> None:
        """Leave nothing behind; only the process that claimed it may."""
        if self.fd >= 0 and os.getpid() == self._owner:
            _empty(self.fd)
            with contextlib.suppress(OSError):
                self.path.rmdir()
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()  # fails while another ring is there
        self.close()

    def close(self) -> None:
        """Let go of the lock and leave the files."""
        for fd in (self._position_fd, self.fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._position_fd = self.fd = -1


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        check_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        check_private(path)
    except FileNotFoundError:
        if path.parent.parent.is_dir():
            return  # another ring removed the common folder at this moment; the caller tries again
        raise ResourceError(
            f"{path.parent.parent} is not there",
            expected="a folder in memory, such as /dev/shm",
            next_step="Choose another place (--where)",
        ) from None
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be made: {error.strerror}",
            expected="a folder in memory that may be written to",
            next_step="Check its permissions and free space (df -h), or choose another place (--where)",
        ) from None


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None


def _locked(fd: int, path: Path) -> bool:
    """Take the lock; True if it is ours and the folder is still the one that has this name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _empty(fd: int) -> None:
    for entry in os.listdir(fd):
        with contextlib.suppress(OSError):
            os.unlink(entry, dir_fd=fd)


def lives(path: Path) -> bool:
    """Whether a process owns the ring in this folder."""
    fd = _open(path)
    if fd is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def description_of(path: Path) -> dict[str, Any] | None:
    """What the ring in this folder says it is; None if nothing that can be read."""
    try:
        record = json.loads((path / _DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def position_of(path: Path) -> Position | None:
    """Where the trainer of a ring was; None if it never got anywhere."""
    try:
        data = (path / _POSITION).read_bytes()
    except OSError:
        return None
    return Position(*_POSITION_FORMAT.unpack(data)) if len(data) == _POSITION_FORMAT.size else None


def keep_position(path: Path, position: Position) -> None:
    """Write down where the trainer is: 16 bytes, so it may be done for each batch.

    It does so itself: what it has told its filler is lost if both are killed before the filler listens.
    """
    with contextlib.suppress(FileNotFoundError):  # the filler has ended in order
        fd = os.open(path / _POSITION, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(fd, _POSITION_FORMAT.pack(*position), 0)
        finally:
            os.close(fd)


def remove_leftover(where: Path, name: str) -> bool:
    """Remove what a killed owner left; False if the ring lives."""
    if lives(path_of(where, name)):
        return False
    try:
        RingFolder.claim(where, name).remove()
    except OutputExistsError:
        return False
    return True


def start_of(pid: int) -> int | None:
    """When a process began, in ticks since boot: with its number, this names it for good."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def owner_of(path: Path) -> str:
    """The owner in words, for messages."""
    record = description_of(path) or {}
    pid = record.get("pid")
    if isinstance(pid, int) and start_of(pid) == record.get("start"):
        return f"owned by process {pid}"
    return "owned by a process of this node"
