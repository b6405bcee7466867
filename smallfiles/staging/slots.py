"""One staged copy: where it lies, whether it is finished, who uses it, and how it goes.

    smallfiles-UID/            ours alone (0700)
      KEY.lock                 exclusive: somebody makes or removes the copy; shared: somebody uses it
      KEY/copying/NAME         grows
      KEY/data/NAME            finished, renamed from `copying`
      KEY/done.json            the marker: sizes and times of all files; written last
      KEY/owner.json           who made it
      KEY/holds/*.json         jobs for which it is kept while no process has it open

Whatever has neither a lock nor a living job is a leftover, and whoever comes next removes it. The
trap: a finished copy and half a one look alike; only the marker, written after the rename, tells.
Notebook 07.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smallfiles import locks
from smallfiles.atomic import write_json
from smallfiles.formats.output import writing
from smallfiles.liveness import Owner, this_process

LOCK_SUFFIX = ".lock"
_TRIES, _PAUSE_S = 4, 0.01


@dataclass(frozen=True)
class Slot:
    """The place of one copy.

    Args:
        folder: Our private folder on some node-local storage.
        key: Names the content.
    """

    folder: Path
    key: str

    @property
    def lock(self) -> Path:
        """The file that is locked."""
        return self.folder / f"{self.key}{LOCK_SUFFIX}"

    @property
    def home(self) -> Path:
        """Everything but the lock."""
        return self.folder / self.key

    @property
    def copying(self) -> Path:
        """Where the copy grows."""
        return self.home / "copying"

    @property
    def data(self) -> Path:
        """Where the finished copy is."""
        return self.home / "data"

    @property
    def holds(self) -> Path:
        """Who keeps it."""
        return self.home / "holds"

    @property
    def marker(self) -> Path:
        """Written last."""
        return self.home / "done.json"

    def begin(self) -> None:
        """Clear what a dead owner left and start anew; the lock must be ours alone."""
        with writing(self.home):
            self.clear()
            self.copying.mkdir(mode=0o700, parents=True)
            self.holds.mkdir(mode=0o700)
            write_json(self.home / "owner.json", asdict(this_process()))

    def publish(self, names: Sequence[str], facts: dict[str, Any]) -> None:
        """Rename the complete copy and write the marker; the lock must be ours alone.

        Args:
            names: Relative names of all files.
            facts: More to keep in the marker.
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
        """What the marker says, if the copy is finished and its files are as they were then."""
        try:
            record = json.loads(self.marker.read_text(encoding="utf-8"))
            if record["boot"] != this_process().boot:
                return None  # never synced: a power cut may have emptied it
            for name, (size, mtime_ns) in record["files"].items():
                found = (self.data / name).lstat()
                if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
                    return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return dict(record)

    def owner(self) -> Owner | None:
        """Who makes or made the copy, as far as it is written."""
        return _owner(self.home / "owner.json")

    def acquire(self, owner: Owner) -> None:
        """Keep the copy for a job; the lock must be shared by us, so that nobody removes it now."""
        with writing(self.holds):
            write_json(self.holds / _hold_name(owner), asdict(owner))

    def release(self, owner: Owner) -> bool:
        """Give up the hold of a job; whether there was one."""
        try:
            (self.holds / _hold_name(owner)).unlink()
        except OSError:
            return False
        return True

    def holders(self) -> list[Owner]:
        """Living jobs that keep the copy."""
        found = [_owner(path) for path in self._hold_files()]
        return [owner for owner in found if owner is not None and owner.is_alive()]

    def _hold_files(self) -> list[Path]:
        try:
            return sorted(self.holds.glob("*.json"))
        except OSError:
            return []

    def clear(self) -> None:
        """Remove everything but the lock; the marker goes first, so that nobody trusts the rest."""
        with contextlib.suppress(FileNotFoundError):
            self.marker.unlink()
        for _ in range(_TRIES):
            shutil.rmtree(self.home, ignore_errors=True)
            if not os.path.lexists(self.home):
                return
            time.sleep(_PAUSE_S)

    def remove(self, descriptor: int) -> None:
        """Remove everything and let go of the lock, which must be ours alone."""
        try:
            with contextlib.suppress(OSError):
                self.clear()
            with contextlib.suppress(OSError):
                self.lock.unlink()
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # only if it was the last
        finally:
            os.close(descriptor)

    def leave(self, descriptor: int) -> None:
        """Stop using the copy; the last one out removes it, unless a living job keeps it."""
        for attempt in range(_TRIES):
            if locks.is_last(descriptor):
                if locks.names(self.lock, descriptor) and not self.holders():
                    return self.remove(descriptor)
                break
            if attempt < _TRIES - 1:
                time.sleep(_PAUSE_S)  # somebody may only be looking
        os.close(descriptor)


def slots(folder: Path) -> Iterator[Slot]:
    """Every slot of a private folder, finished or not."""
    try:
        found = {path.name.removesuffix(LOCK_SUFFIX) for path in folder.iterdir()}
    except OSError:
        found = set()
    return (Slot(folder, key) for key in sorted(found))


def sweep(folder: Path, spare: str = "") -> list[str]:
    """Remove what dead processes and ended jobs left.

    Args:
        folder: Our private folder.
        spare: A key to leave alone.

    Returns:
        Keys of what was removed.
    """
    return [slot.key for slot in slots(folder) if slot.key != spare and remove_unused(slot)]


def remove_unused(slot: Slot) -> bool:
    """Remove a copy that no process uses and no living job keeps; whether it was."""
    descriptor = locks.try_lock(slot.lock, shared=False, create=slot.home.exists())
    if descriptor is None:
        return False
    if slot.holders():
        os.close(descriptor)
        return False
    slot.remove(descriptor)
    return True


def _hold_name(owner: Owner) -> str:
    text = f"{owner.kind} {owner.name} {owner.started} {owner.world if owner.kind != 'job' else ''}"
    return hashlib.sha256(text.encode()).hexdigest()[:16] + ".json"


def _owner(path: Path) -> Owner | None:
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
