"""Write aside, publish when complete: nothing that looks finished ever was not.

A run owns the folder `.NAME.packing` beside its output. What it writes stays in there until it has been
verified; then it is moved to its final name, sidecars first and the data file last, so that the data
file's appearance is the moment of publication. A killed run leaves only that folder: the next run of the
same output resumes from it or clears it. A run that was taken for dead, and lives, publishes nothing (see
`smallfiles.locks.Lease`).

The traps: a rename replaces what is there without asking, so publication links, which fails when the name
is taken, and falls back to rename only where a file system has no hard links. And a name may reach the
disk before its bytes: what is called finished is synced first. Notebook 03 shows a killed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smallfiles.digests import BESIDE
from smallfiles.errors import BusyError, OutputExistsError, ResourceError, SmallfilesError, writing
from smallfiles.locks import Lease
from smallfiles.progress import bytes_text, progress

_SYNCED_AT_ONCE = 16
"""A server or journal takes several requests to sync at the price of one."""


@dataclass(frozen=True)
class Draft:
    """The private folder of one run, and the right to it.

    Args:
        out: The final name.
        folder: `.NAME.packing` beside it.
        claim: Who may publish.
        since: When the run began (`time.monotonic`).
    """

    out: Path
    folder: Path
    lease: Lease
    since: float = field(default_factory=time.monotonic)

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
        """What is being written at this moment; never used by another run."""
        return self.folder / f"partial-{self.lease.token}"

    def clear(self, *, keep_finished: bool = False) -> None:
        """Forget what an earlier run left: all of it, or only what it had not finished."""
        self.discard(keep_finished=keep_finished)
        self.make()

    def make(self) -> None:
        """Make the folders inside."""
        for part in (self.partial, self.data, self.records):
            part.mkdir(parents=True, exist_ok=True)

    def discard(self, *, keep_finished: bool = False) -> None:
        """Remove everything that was written aside, or only what is not finished."""
        if self.lease.is_ours():
            kept = () if keep_finished else (self.data, self.records)
            for part in (*self.folder.glob("partial*"), *kept):
                shutil.rmtree(part, ignore_errors=True)

    def finish(self, names: Iterable[str], folder: Path) -> None:
        """Move complete files from `partial` to a folder of `data`, in this order."""
        for name in names:
            self.lease.check()
            (self.partial / name).rename(folder / name)

    def publish(self, *, durable: bool = True) -> None:
        """Move everything to its final name, the data itself last; what lay beside an earlier one goes.

        Args:
            durable: Have everything on stable storage first; what can be made again need not be.

        Raises:
            OutputExistsError: Somebody else published under that name meanwhile.
            PackError: Another run took this one for dead.
        """
        if durable:
            sync(self.data.rglob("*"), f"sync {self.out.name}", self.since)
        refuse_existing(self.out)
        beside = sorted(path for path in self.data.iterdir() if path != self.main)
        for name in {self.out.name + suffix for suffix in BESIDE} - {path.name for path in beside}:
            self.lease.check()
            self.out.with_name(name).unlink(missing_ok=True)
        for path in beside:
            self.lease.check()
            path.replace(self.out.with_name(path.name))
        self.lease.check()
        _move_without_replacing(self.main, self.out)
        sync([self.out.parent])

    def tidy(self) -> None:
        """Remove what no run resumes from, and the folder if nothing is left."""
        shutil.rmtree(self.partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self.lease.is_ours():
                self.data.rmdir()  # only if nothing is left to resume from
        if not self.data.exists():
            self.discard()


@contextlib.contextmanager
def drafted(out: Path, doing: str) -> Iterator[Draft]:
    """Own the private folder of `out` while the block runs; remove it at the end if it is empty.

    Args:
        out: The final name.
        doing: What the run does, in one word such as "packing", for those that are turned away.

    Raises:
        OutputExistsError: `out` exists.
        BusyError: Another live run is writing the same output.
        ResourceError: The folder cannot be written.
    """
    ours = None
    try:
        ours = Draft(out, folder_of(out), _claimed(out, doing))
        refuse_existing(out)  # it may have appeared while we came for the lock
        with writing(out):
            ours.make()
        yield ours
    except (SmallfilesError, OSError):
        if ours is not None:
            ours.lease.check()  # whoever lost his folder fails anywhere; this says why
        raise
    finally:
        if ours is not None:
            ours.tidy()
            ours.lease.release()


def folder_of(out: Path) -> Path:
    """Where a run of `out` writes."""
    return out.parent / f".{out.name}.packing"


def bytes_and_files_of(out: Path) -> tuple[int, int]:
    """What an earlier run of `out` left on the disk: a run that resumes needs so much less."""
    return bytes_and_files_in(folder_of(out))


def bytes_and_files_in(folder: Path) -> tuple[int, int]:
    """What lies below a folder: bytes on disk, and files and folders; nothing if it is not there."""
    taken = files = 0
    for where, folders, names in os.walk(folder):  # its owner may be at work, and remove it
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                taken, files = taken + Path(where, name).lstat().st_blocks * 512, files + 1
    return taken, files


def check_room(out: Path, need_bytes: int, need_files: int, instead: str = "") -> None:
    """Raise ResourceError if the output cannot fit; better now than after an hour.

    Args:
        out: The final name, in a folder that exists.
        need_bytes: What will be written.
        need_files: How many files and folders.
        instead: What takes fewer files, for the message.
    """
    from smallfiles.machine import filesystem  # whoever only reads a manifest need not load it

    place = filesystem(out.parent)
    if need_bytes > place.free_bytes:
        raise ResourceError(
            f"{out.parent} has {bytes_text(place.free_bytes)} free",
            expected=f"about {bytes_text(need_bytes)} for {out.name}",
            next_step="Free some space or choose another place",
        )
    if place.inodes_free is not None and need_files > place.inodes_free:
        raise ResourceError(
            f"{out.parent} has {place.inodes_free:,} inodes free",
            expected=f"{need_files:,} for {out.name}",
            next_step=f"{instead or 'Delete small files'}, or choose another place",
        )


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
    folder = folder_of(out)
    if not out.exists() or not folder.is_dir():
        return
    with contextlib.suppress(OSError, SmallfilesError):
        claim = Lease(folder, lambda who: _busy(out, "writing", who), wait=False)
        Draft(out, folder, claim).discard()
        claim.release()


def _claimed(out: Path, doing: str) -> Lease:
    folder = folder_of(out)
    while True:
        refuse_existing(out)
        with writing(out):
            folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # its last owner has just removed it
            return Lease(folder, lambda who: _busy(out, doing, who))


def _busy(out: Path, doing: str, who: str) -> BusyError:
    return BusyError(
        f"another run is {doing} {out} at this moment ({who})",
        expected="one run for each output",
        next_step="Wait for it, as it publishes under this name when it is complete; or choose another",
    )


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a name to write a file under; it becomes `path`, over what is there, if the block ends well.

    The file is on stable storage before it has its name. Nothing is left if the block fails.

    Args:
        path: The final name.

    Yields:
        The name to write under, of this process alone.
    """
    partial = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        yield partial
        sync([partial])
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync([path.parent])


def write_json(path: Path, record: Any) -> None:
    """Write a small JSON file so that it is there whole or not at all, also after a power cut."""
    with replaced(path) as partial:
        partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def sync(paths: Iterable[Path], what: str | None = None, since: float | None = None) -> None:
    """Have files and folders on stable storage before a name says "complete".

    Args:
        paths: Files, and folders for the names in them.
        what: Shown while it takes long.
        since: When the work began of which this is the last step.
    """
    listed = list(paths)
    if len(listed) == 1:
        return _sync(listed[0])
    with (
        progress(
            len(listed), what or "sync", unit="files", enabled=None if what else False, since=since
        ) as bar,
        ThreadPoolExecutor(min(_SYNCED_AT_ONCE, max(1, len(listed)))) as pool,
    ):
        for _ in pool.map(_sync, listed):
            bar.advance()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems refuse this for folders, and need it not.
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
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
