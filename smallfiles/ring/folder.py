"""What a ring has on its node: its slots in shared memory, and the files by which its processes meet.

    smallfiles-ring-UID/       private to this user (0700)
      NAME.lock                held by the filler, which it names; the kernel releases it at its end
      NAME.json                what the ring holds
      NAME.socket              where trainers connect

They take a few kilobytes, and tell a live ring from a leftover; no batch is stored in them. The trap: a
process number alone proves nothing, since numbers are reused and each container has its own. A lock alone
proves nothing either, since each mount of a folder may have its own locks. `smallfiles.locks` asks both. And
a file that says "batch 812" may be an hour old, so a live filler is asked for its status through its socket.
Notebook 08 teaches the ring.

The slots are an unnamed file in shared memory. Its name is removed before anything is written, and other
processes receive it through a socket. So the kernel frees it when the last process has ended, however it
ended: nothing of it can stay in `/dev/shm`.

A file in `/dev/shm` may be made larger than the free space, and the first write beyond that kills
the process with a bus error (pytorch/pytorch#5040). So all of it is allocated before it is used.
Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from smallfiles import locks
from smallfiles.atomic import write_json
from smallfiles.errors import OutputExistsError, ResourceError, UsageError
from smallfiles.machine.nodelocal import SHARED_MEMORY, node_local
from smallfiles.progress import bytes_text
from smallfiles.ring.channel import Channel, close_in_children, connect, listen
from smallfiles.ring.state import END, Position

_KIND = "ring-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCK = ".lock"
_PROBES, _PROBE_S = 10, 0.05


def ring_name(name: str, rank: int, world_size: int) -> str:
    """Return the name of the ring of a rank. Each rank has its own ring."""
    return name if world_size == 1 else f"{name}.{rank}"


def names(where: Path = SHARED_MEMORY) -> list[str]:
    """List the rings of this user, live or left over."""
    folder = where / locks.folder_name(_KIND)
    if not folder.is_dir():
        return []
    locks.check(folder)
    return sorted(path.name.removesuffix(_LOCK) for path in folder.glob(f"*{_LOCK}"))


def lives(name: str, where: Path = SHARED_MEMORY) -> bool:
    """Check whether a process fills a ring with this name."""
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
    """Return the error for a ring that does not exist."""
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
        """Return the paths of the files of the ring `name`, whether they exist or not.

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
        """Open the filler's socket. This process must own the lock."""
        with self._socket() as address:
            return listen(address)

    def connect(self) -> Channel | None:
        """Connect to the filler of the ring, or return None if there is none.

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
        """Yield the address of the filler's socket, below the descriptor of the open folder.

        The path of a socket can have only 107 bytes.

        Raises:
            OSError: The folder does not exist.
            ResourceError: Other users may write into the folder.
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
        for suffix in (".json", ".socket", _LOCK):
            self._path(suffix).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # succeeds only after the last ring
        locks.forget(lock.fileno())
        lock.close()

    def lives(self) -> bool:
        """Check whether a process owns the ring."""
        return locks.is_held(self._path(_LOCK), shared=True)

    def describe(self, description: dict[str, Any]) -> None:
        """Record the content of this ring, atomically."""
        write_json(self._path(".json"), {"pid": os.getpid(), **description})

    def description(self) -> dict[str, Any] | None:
        """Read the record of what the ring contains, or return None if there is no readable record."""
        try:
            record = json.loads(self._path(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def pid(self) -> int:
        """Process that fills or filled it, for messages; 0 if unknown."""
        return int((self.description() or {}).get("pid", 0))


State = Literal["starting", "filling", "full", "waiting for a trainer", "ending", "gone"]

_ANSWER_S = 10.0


@dataclass(frozen=True)
class RingStatus:
    """Both sides of a ring at one moment.

    Args:
        name: Of the ring.
        state: What the filler does; `starting` also if it is too busy to answer, `ending` if it no longer
            accepts connections, `gone` if it was killed.
        pid: Process of the filler.
        trainer_pid: Process of the trainer; None if there is none.
        slots: How many batches the ring holds.
        slot_bytes: Bytes of each.
        ready: Batches in the ring, including the one in training: the fill level.
        making: Batches that producers are working on.
        trainer_epoch: Epoch of the batch in training.
        trainer_batch: Its number in the epoch.
        filler_epoch: Epoch of the batch that is assigned next.
        filler_batch: Its number in the epoch.
        finished: Whether all epochs are done.
        producers: How many processes make batches.
        restarts: How many of them died and were replaced.
        made: Batches made since the filler started.
        consumed: Batches that trainers have finished since then.
        waited_s: How long trainers waited for batches since then.
        seconds: Time since the filler started.
        notes: What happened, the latest last.
    """

    name: str
    state: State
    pid: int = 0
    trainer_pid: int | None = None
    slots: int = 0
    slot_bytes: int = 0
    ready: int = 0
    making: int = 0
    trainer_epoch: int = 0
    trainer_batch: int = 0
    filler_epoch: int = 0
    filler_batch: int = 0
    finished: bool = False
    producers: int = 0
    restarts: int = 0
    made: int = 0
    consumed: int = 0
    waited_s: float = 0.0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return the status in one line."""
        if self.state == "gone":
            return f"ring {self.name}: its filler (process {self.pid}) was killed"
        if self.state in ("starting", "ending"):
            return f"ring {self.name}: its filler (process {self.pid}) is {self.state}"
        trainer = "no trainer" if self.trainer_pid is None else f"trainer (process {self.trainer_pid})"
        ahead = (
            "all made" if self.filler_epoch < 0 else f"epoch {self.filler_epoch} batch {self.filler_batch:,}"
        )
        return (
            f"ring {self.name}: {self.state}, {self.ready:,} of {self.slots:,} slots ready; "
            f"{trainer} at epoch {self.trainer_epoch} batch {self.trainer_batch:,}, "
            f"filler (process {self.pid}, {self.producers} producers, {self.restarts} restarted) next {ahead}"
        )


def status(name: str, where: Path = SHARED_MEMORY) -> RingStatus:
    """Return the status of a ring.

    Args:
        name: Name of the ring.
        where: The folder in memory that the filler uses.

    Raises:
        UsageError: There is no such ring.
    """
    files, busy = RingFiles.of(name, where), False
    try:
        answer = _query(files)
    except TimeoutError:
        answer, busy = None, True
    if answer is not None:
        return answer
    alive, described = files.lives(), files.description() is not None
    if not described and not alive:
        raise missing(name, where)
    state: State = "gone" if not alive else "ending" if described and not busy else "starting"
    return RingStatus(name, state, files.pid())


def _query(files: RingFiles) -> RingStatus | None:
    """Ask the filler for its status. Return None if there is no filler or it accepts no connections."""
    channel = files.connect()
    if channel is None:
        return None
    with contextlib.closing(channel):
        channel.send({"hello": "status"})
        answer = channel.receive(_ANSWER_S)
    return RingStatus(**{**answer, "notes": tuple(answer["notes"])}) if answer else None


def epoch_and_batch(position: Position) -> tuple[int, int]:
    """Return a position as a status shows it. The end is epoch -1."""
    return (-1, 0) if position == END else (position.epoch, position.batch)


PAGE_BYTES = 4096
FEWEST_SLOTS = 2

_SHARE_TAKEN = 4
"""The default size is one part in this many of the free memory: models need memory too."""

_MARGIN = 0.9
"""The largest share of the free memory that a ring may take."""

Block = npt.NDArray[np.uint8]


def slot_bytes(layout_bytes: int) -> int:
    """Return the size of a slot in bytes, in whole pages, so that no two slots share a page."""
    return max(1, -(-layout_bytes // PAGE_BYTES)) * PAGE_BYTES


def choose_slots(one_bytes: int, where: Path, asked: int | None, most: int) -> int:
    """Choose the number of slots of a ring.

    Args:
        one_bytes: Bytes of a slot.
        where: A directory in memory, usually /dev/shm.
        asked: The number in the configuration; None derives it from free memory.
        most: Upper bound of the default: the batches of all epochs.

    Raises:
        ResourceError: They do not fit in the free memory there, or in the job's memory limit.
    """
    free = node_local(where).free_bytes
    fits = int(free * _MARGIN) // one_bytes
    wanted = asked or max(FEWEST_SLOTS, min(free // _SHARE_TAKEN // one_bytes, most))
    if wanted > fits:
        raise ResourceError(
            f"a ring of {wanted:,} slots of {bytes_text(one_bytes)} takes {bytes_text(wanted * one_bytes)} "
            f"of {where}, where {bytes_text(free)} are free for this job",
            expected=f"at most {fits:,} slots, which leaves a margin",
            next_step=f"Ask for {fits:,} slots or fewer (--slots), or for more memory for the job"
            if fits >= FEWEST_SLOTS
            else "Lower the batch size, ask for more memory for the job, or free space there",
        )
    return wanted


class Memory:
    """The slots, mapped into one process.

    Args:
        fd: The file; this object owns it.
        slots: How many there are.
        one_bytes: Bytes of each.
    """

    def __init__(self, fd: int, slots: int, one_bytes: int) -> None:
        self.fd, self.slots, self.one_bytes = fd, slots, one_bytes
        try:
            # Never unmapped explicitly: the mapping lasts as long as the last array over it.
            self._bytes: Block = np.frombuffer(mmap.mmap(fd, slots * one_bytes), np.uint8)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def create(cls, folder: Path, slots: int, one_bytes: int) -> Memory:
        """New slots on the file system of `folder`, with all their memory allocated.

        Raises:
            ResourceError: Less memory is free than when their number was chosen.
        """
        fd, name = tempfile.mkstemp(dir=folder)
        Path(name).unlink()
        try:
            os.posix_fallocate(fd, 0, slots * one_bytes)
        except OSError as error:
            os.close(fd)
            raise ResourceError(
                f"{folder} has no room for {slots:,} slots of {bytes_text(one_bytes)} ({error.strerror})",
                expected="the memory that was free when the number of slots was chosen",
                next_step=f"Free space there (df -h {folder.parent}), or ask for fewer slots (--slots)",
            ) from error
        return cls(fd, slots, one_bytes)

    def sizes(self) -> dict[str, int]:
        """Return the sizes that another process must know to map the file."""
        return {"slots": self.slots, "slot_bytes": self.one_bytes}

    def block(self, slot: int) -> Block:
        """Return the bytes of a slot."""
        return self._bytes[slot * self.one_bytes : (slot + 1) * self.one_bytes]

    def close(self) -> None:
        """Release the memory; arrays over it stay valid, and keep it until they are gone."""
        self._bytes = np.empty(0, np.uint8)
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
        self.fd = -1
