"""Write aside, publish when complete: nothing that looks finished ever was not.

A run owns the folder `.NAME.packing` beside its output. What it writes stays in there until it has
been verified; then it is moved to its final name, sidecars first and the data file last, so that
the data file's appearance is the moment of publication. A killed run leaves only that folder: the
next run of the same output resumes from it or clears it.

The trap: a rename replaces what is there without asking. Publication therefore links (which fails
when the name is taken) and falls back to rename only where a file system has no hard links.
Notebook 03 shows a killed run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import HelpersError, OutputExistsError, PackError
from helpers.formats.output import writing

STALE_AFTER_S = 600.0


@dataclass(frozen=True)
class Aside:
    """The private folder of one run.

    Args:
        out: The final name.
        folder: `.NAME.packing` beside it.
    """

    out: Path
    folder: Path

    @property
    def data(self) -> Path:
        """What is here will be published under its own name."""
        return self.folder / "data"

    @property
    def main(self) -> Path:
        """Where the data file (or the folder of shards) grows."""
        return self.data / self.out.name

    @property
    def records(self) -> Path:
        """Notes for a run that resumes; never published."""
        return self.folder / "records"

    @property
    def partial(self) -> Path:
        """What is being written at this moment; never used by a later run."""
        return self.folder / "partial"

    def clear(self, *, keep_finished: bool = False) -> None:
        """Forget what an earlier run left: all of it, or only what it had not finished."""
        for part in (self.partial,) if keep_finished else (self.partial, self.data, self.records):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True, exist_ok=True)

    def discard(self) -> None:
        """Remove everything that was written aside."""
        for part in (self.partial, self.data, self.records):
            shutil.rmtree(part, ignore_errors=True)

    def publish(self) -> None:
        """Move everything to its final name, the data itself last.

        Raises:
            OutputExistsError: Somebody else published under that name meanwhile.
        """
        for path in sorted(self.data.iterdir(), key=lambda p: p == self.main):
            _sync(path)
            if path != self.main:
                path.replace(self.out.with_name(path.name))
        _move_without_replacing(self.main, self.out)
        _sync_folder(self.out.parent)


def refuse_existing(out: Path) -> None:
    """Raise OutputExistsError if `out` is there already (an empty folder counts too)."""
    if os.path.lexists(out):
        raise OutputExistsError(
            f"{out} exists already",
            expected="a name that is free, since finished output is never overwritten",
            next_step="Choose another name, or remove it yourself if it is not needed",
        )


def sweep(out: Path) -> None:
    """Remove what a run left that was killed after it had published `out`."""
    place = Aside(out, _folder_of(out))
    if not out.exists() or not place.folder.is_dir():
        return
    with contextlib.suppress(OSError, HelpersError), (place.folder / "lock").open("a+") as lock:
        _own(lock.fileno(), place)
        shutil.rmtree(place.folder, ignore_errors=True)


def _folder_of(out: Path) -> Path:
    return out.parent / f".{out.name}.packing"


@contextlib.contextmanager
def aside(out: Path) -> Iterator[Aside]:
    """Own the private folder of `out` while the block runs; remove it at the end if it is empty.

    Raises:
        OutputExistsError: `out` exists.
        PackError: Another live run is writing the same output.
        ResourceError: The folder cannot be written.
    """
    refuse_existing(out)
    place = Aside(out, _folder_of(out))
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        place.folder.mkdir(exist_ok=True)
        for part in (place.partial, place.data, place.records):
            part.mkdir(exist_ok=True)
        lock = (place.folder / "lock").open("a+")
    with lock:
        _own(lock.fileno(), place)
        try:
            _sign(place)
            refuse_existing(out)  # it may have appeared while we came for the lock
            yield place
        finally:
            _tidy(place)


def _own(descriptor: int, place: Aside) -> None:
    """Take the lock, which the kernel lets go when its owner dies, kill -9 included."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(place) from None
    except OSError:  # a file system mounted without flock: fall back to who said so last
        _own_by_record(place)
    if not _still_there(descriptor, place.folder / "lock"):
        raise _busy(place)  # its last owner has just finished and removed the folder


def _sign(place: Aside) -> None:
    """Say who owns the folder, for file systems without locks."""
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "time_s": time.time()}
    with writing(place.out):
        (place.folder / "owner.json").write_text(json.dumps(owner), encoding="utf-8")


def _still_there(descriptor: int, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _own_by_record(place: Aside) -> None:
    try:
        owner = json.loads((place.folder / "owner.json").read_text(encoding="utf-8"))
        here = owner["host"] == socket.gethostname()
        alive = _is_alive(int(owner["pid"])) if here else time.time() - owner["time_s"] < STALE_AFTER_S
    except (OSError, ValueError, KeyError, TypeError):
        return
    if alive and not (here and int(owner["pid"]) == os.getpid()):
        raise _busy(place)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _busy(place: Aside) -> PackError:
    return PackError(
        f"another run is packing {place.out} at this moment",
        expected="one run for each output",
        next_step=f"Wait for it, or choose another name (its files are in {place.folder.name})",
    )


def _tidy(place: Aside) -> None:
    shutil.rmtree(place.partial, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.data.rmdir()  # only if nothing is left to resume from
    if not place.data.exists():
        shutil.rmtree(place.folder, ignore_errors=True)


def _sync(path: Path) -> None:
    """Have a file, or all files of a folder, on stable storage before its name says "complete"."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some network file systems refuse this, and need it not
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_without_replacing(source: Path, out: Path) -> None:
    if source.is_dir():
        refuse_existing(out)
        source.rename(out)  # fails by itself on a folder that holds something
        return
    try:
        os.link(source, out)
    except FileExistsError:
        refuse_existing(out)
    except OSError:
        refuse_existing(out)
        source.rename(out)
    else:
        source.unlink()
