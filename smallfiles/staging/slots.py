"""One staged copy: where it lies, whether it is finished, who uses it, and when it is removed.

    smallfiles-UID/            private to this user (0700)
      KEY.lock                 exclusive: a process makes or removes the copy; shared: processes use it
      KEY/copying/NAME         an unfinished copy
      KEY/data/NAME            finished, renamed from `copying`
      KEY/done.json            the marker: sizes and times of all files; written last
      KEY/owner.json           the process that made it
      KEY/leases/*.json        jobs for which it is kept while no process has it open

A copy with neither a lock nor the lease of a running job is a leftover, which the next process removes.
The trap: a finished and an unfinished copy look alike; only the marker, written after the rename,
distinguishes them. Notebook 07.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smallfiles import locks
from smallfiles.atomic import write_json
from smallfiles.errors import writing
from smallfiles.processes import Owner, this_process

LOCK_SUFFIX = ".lock"
TRIES, _PAUSE_S = 10, 0.01


class Slot:
    """The place of one copy.

    Args:
        folder: The private folder on some node-local storage.
        key: Identifies the content.

    Attributes:
        lock: The lock file.
        home: Everything but the lock.
        copying: The unfinished copy.
        data: The finished copy.
        leases: The jobs that keep it.
        marker: Written last.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        self.lock, self.home = folder / f"{key}{LOCK_SUFFIX}", folder / key
        self.copying, self.data = self.home / "copying", self.home / "data"
        self.leases, self.marker = self.home / "leases", self.home / "done.json"

    def begin(self) -> None:
        """Remove what an ended process left and start anew; needs the exclusive lock."""
        with writing(self.home):
            self.clear()
            self.copying.mkdir(mode=0o700, parents=True)
            self.leases.mkdir(mode=0o700)
            write_json(self.home / "owner.json", asdict(this_process()))

    def publish(self, names: Sequence[str], facts: dict[str, Any]) -> None:
        """Rename the complete copy and write the marker; needs the exclusive lock.

        Args:
            names: Relative names of all files.
            facts: Further content of the marker.
        """
        with writing(self.home):
            files = {}
            for name in names:
                path = self.copying / name
                path.chmod(0o400)
                found = path.stat()
                files[name] = [found.st_size, found.st_mtime_ns]
            self.copying.rename(self.data)
            now = {"files": files, "boot": this_process().boot, "time_s": time.time()}
            write_json(self.marker, {**facts, **now})

    def facts(self) -> dict[str, Any] | None:
        """Return the content of the marker, if the copy is finished and its files have not changed since."""
        try:
            record = json.loads(self.marker.read_text(encoding="utf-8"))
            if record["boot"] != this_process().boot:
                return None  # from before a reboot: copies are never synced, so it may be empty
            for name, (size, mtime_ns) in record["files"].items():
                found = (self.data / name).lstat()
                if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
                    return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return dict(record)

    def owner(self) -> Owner | None:
        """Return the process that makes or made the copy, or None if it is unknown."""
        return _owner(self.home / "owner.json")

    def acquire(self, owner: Owner) -> None:
        """Keep the copy for a job; needs the shared lock, so that no process removes it now."""
        with writing(self.leases):
            write_json(self.leases / _lease_name(owner), asdict(owner))

    def release(self, owner: Owner) -> None:
        """End the lease of a job, if there is one."""
        with contextlib.suppress(OSError):
            (self.leases / _lease_name(owner)).unlink()

    def holders(self) -> list[Owner]:
        """Running jobs with a lease on the copy."""
        found: list[Owner | None] = []
        with contextlib.suppress(OSError):  # removed in this moment
            found = [_owner(path) for path in sorted(self.leases.glob("*.json"))]
        return [owner for owner in found if owner is not None and owner.is_alive()]

    def clear(self) -> None:
        """Remove everything but the lock; the marker first, so that the rest is never taken for finished."""
        with contextlib.suppress(FileNotFoundError):
            self.marker.unlink()
        for _ in range(TRIES):
            shutil.rmtree(self.home, ignore_errors=True)
            if not os.path.lexists(self.home):
                return
            time.sleep(_PAUSE_S)

    def remove(self, descriptor: int) -> None:
        """Remove everything and close the lock, which must be exclusive."""
        try:
            with contextlib.suppress(OSError):
                self.clear()
            with contextlib.suppress(OSError):
                self.lock.unlink()
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # only if it was the last
        finally:
            locks.unlock(descriptor)

    def leave(self, descriptor: int) -> None:
        """Stop using the copy; the last user removes it, unless a running job has a lease on it."""
        for attempt in range(TRIES):
            if locks.try_upgrade(descriptor):
                if locks.is_same_file(self.lock, descriptor) and not self.holders():
                    return self.remove(descriptor)
                break
            if attempt < TRIES - 1:
                time.sleep(_PAUSE_S)  # `listing` may hold the lock for a moment
        locks.unlock(descriptor)


def slots(folder: Path) -> Iterator[Slot]:
    """Yield all slots of a private folder, finished or not."""
    try:
        found = {path.name.removesuffix(LOCK_SUFFIX) for path in folder.iterdir()}
    except OSError:
        found = set()
    return (Slot(folder, key) for key in sorted(found))


def sweep(folder: Path, spare: str = "") -> list[str]:
    """Remove the leftovers of ended processes and jobs.

    Args:
        folder: The private folder.
        spare: A key not to remove.

    Returns:
        The removed keys.
    """
    return [slot.key for slot in slots(folder) if slot.key != spare and remove_unused(slot)]


def remove_unused(slot: Slot, tries: int = 1) -> bool:
    """Remove a copy without a user and without the lease of a running job; whether it was removed."""
    for attempt in range(tries):
        descriptor = locks.try_lock(slot.lock, shared=False, create=slot.home.exists())
        if descriptor is not None:
            break
        if attempt < tries - 1:
            time.sleep(_PAUSE_S)  # `listing` may hold the lock for a moment
    else:
        return False
    if slot.holders():
        locks.unlock(descriptor)
        return False
    slot.remove(descriptor)
    return True


def _lease_name(owner: Owner) -> str:
    text = f"{owner.kind} {owner.name} {owner.started} {owner.world if owner.kind != 'job' else ''}"
    return hashlib.sha256(text.encode()).hexdigest()[:16] + ".json"


def _owner(path: Path) -> Owner | None:
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
