"""Write to a private folder, publish when complete: a file under its final name is always finished.

A run owns the folder `.NAME.packing` next to its output. Its files stay there until they are verified;
then they are moved to their final names, sidecars first and the data file last, so that the output is
published at the moment its data file appears. A killed run leaves only that folder: the next run of the
same output resumes from it or clears it. A run that was wrongly taken for dead publishes nothing (see
`smallfiles.locks.Lease`).

The traps: a rename silently replaces an existing file, so publication links, which fails when the name
is taken, and falls back to rename only where a file system has no hard links. And a name may reach the
disk before its bytes, so files are synced before they get their final name. Notebook 03 shows a killed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from smallfiles.digests import SIDECARS
from smallfiles.errors import BusyError, OutputExistsError, ResourceError, SmallfilesError, writing
from smallfiles.locks import Lease
from smallfiles.processes import before_interrupts
from smallfiles.progress import bytes_text, note, progress

_SYNCED_AT_ONCE = 16
"""A server or journal takes several requests to sync at the price of one."""


class Draft:
    """The private folder of one run, and the right to it.

    Args:
        out: The final name.
        lease: The right to write and publish.

    Attributes:
        folder: `.NAME.packing` next to it.
        data: Its files will be published under their own names.
        main: The data file, or the folder of shards.
        records: Records for a resuming run; never published.
        partial: Incomplete files; never used by another run.
        since: When the run began (`time.monotonic`).
    """

    def __init__(self, out: Path, lease: Lease) -> None:
        self.out, self.lease, self.folder = out, lease, folder_of(out)
        self.data, self.records = self.folder / "data", self.folder / "records"
        self.main, self.partial = self.data / out.name, self.folder / f"partial-{lease.token}"
        self.since = time.monotonic()

    def clear(self, *, keep_finished: bool = False) -> None:
        """Remove the files of an earlier run: all, or only the unfinished."""
        self.discard(keep_finished=keep_finished)
        self.make()

    def make(self) -> None:
        """Make the folders inside."""
        for part in (self.partial, self.data, self.records):
            part.mkdir(parents=True, exist_ok=True)

    def discard(self, *, keep_finished: bool = False) -> None:
        """Remove all files of the private folder, or only the unfinished."""
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
        """Move all files to their final names, the data last; sidecars of an earlier output are removed.

        Args:
            durable: Whether to sync first; not needed for output that is easily made again.

        Raises:
            OutputExistsError: Another run has published under that name.
            PackError: Another run has taken over.
        """
        if durable:
            sync(self.data.rglob("*"), f"sync {self.out.name}", self.since)
        refuse_existing(self.out)
        sidecars = sorted(path for path in self.data.iterdir() if path != self.main)
        for name in {self.out.name + suffix for suffix in SIDECARS} - {path.name for path in sidecars}:
            self.lease.check()
            self.out.with_name(name).unlink(missing_ok=True)
        for path in sidecars:
            self.lease.check()
            path.replace(self.out.with_name(path.name))
        self.lease.check()
        _move_without_replacing(self.main, self.out)
        sync([self.out.parent])

    def tidy(self) -> None:
        """Remove the incomplete files, and the folder if no run can resume from it."""
        shutil.rmtree(self.partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self.lease.is_ours():
                self.data.rmdir()  # only if nothing is left to resume from
        with contextlib.suppress(OSError):  # the storage does not answer, which is why the run failed
            if not self.data.exists():
                self.discard()


@contextlib.contextmanager
def drafted(out: Path, doing: str) -> Iterator[Draft]:
    """Own the private folder of `out` while the block runs; remove it at the end if it is empty.

    Args:
        out: The final name.
        doing: What the run does, in one word such as "packing", for the error of a second run.

    Raises:
        OutputExistsError: `out` exists.
        BusyError: Another run is writing the same output.
        ResourceError: The folder cannot be written.
    """
    refuse_existing(out)
    with _owned(folder_of(out), out, lambda who: _busy(out, doing, who)) as lease:
        ours = Draft(out, lease)
        try:
            refuse_existing(out)  # it may have appeared before we had the lock
            with writing(out):
                ours.make()
            yield ours
        except (SmallfilesError, OSError):
            with contextlib.suppress(OSError):
                lease.check()  # a lost folder causes any failure; this names the cause
            raise
        finally:
            with before_interrupts():
                ours.tidy()


@contextlib.contextmanager
def changing(out: Path, doing: str) -> Iterator[Lease]:
    """Own a file and everything beside it while the block runs, from looking at it to publishing.

    Args:
        out: A packed set whose fields are looked at, or a small file whose name must be free.
        doing: What the run does, in one word such as "annotating", for the error of a second run.

    Yields:
        The right to publish; check it before.

    Raises:
        BusyError: Another run is changing the same file, or what is beside it.
        ResourceError: The folder cannot be written.
    """
    folder = out.parent / f".{out.name}.changing"
    with _owned(folder, out.parent, lambda who: _busy(out, doing, who)) as lease:
        yield lease


@contextlib.contextmanager
def created(path: Path) -> Iterator[None]:
    """Write a small file in the block, whose name must be free; of two runs at once, one is refused.

    Args:
        path: The final name, in a folder that is made if it is missing.

    Raises:
        OutputExistsError: `path` exists.
        BusyError: Another run is writing the same file.
        ResourceError: The folder cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with changing(path, "writing"):
        refuse_existing(path)
        yield


def folder_of(out: Path) -> Path:
    """Return the folder in which a run that makes `out` writes until it is complete."""
    return out.parent / f".{out.name}.packing"


def bytes_and_files_of(out: Path) -> tuple[int, int]:
    """Count the bytes and files that an interrupted run of `out` left, which a resuming run keeps."""
    return bytes_and_files_in(folder_of(out))


def bytes_and_files_in(folder: Path) -> tuple[int, int]:
    """Count the bytes on disk and the files and folders below a folder. Both are 0 if it does not exist."""
    taken = files = 0
    for where, folders, names in os.walk(folder):  # its owner may remove files meanwhile
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                taken, files = taken + Path(where, name).lstat().st_blocks * 512, files + 1
    return taken, files


def check_room(out: Path, need_bytes: int, need_files: int, instead: str = "") -> None:
    """Raise ResourceError if the output does not fit: now rather than after an hour.

    A quota that has too little room is a note: its numbers may be old, and some limits only count after days.

    Args:
        out: The final name, in a folder that exists.
        need_bytes: What will be written.
        need_files: How many files and folders.
        instead: How to need fewer files, for the message.
    """
    from smallfiles.machine import filesystem, quota_note  # not needed to read a manifest

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
    if lacking := quota_note(out.parent, need_bytes, need_files):
        note(lacking)


def refuse_existing(out: Path) -> None:
    """Raise OutputExistsError if `out` is there already (an empty folder counts too)."""
    if os.path.lexists(out):
        raise OutputExistsError(
            f"{out} exists already",
            expected="a name that is free, since finished output is never overwritten",
            next_step="Choose another name, or remove it yourself if it is not needed",
        )


def sweep(out: Path) -> None:
    """Remove the folder of a run that was killed after it had published `out`.

    Raises:
        ResourceError: There is no permission to look into the folder of `out`.
    """
    folder = folder_of(out)
    with writing(out):
        if not out.exists() or not folder.is_dir():
            return
    with contextlib.suppress(OSError, SmallfilesError):
        lease = Lease(folder, lambda who: _busy(out, "writing", who), wait=False)
        lease.take()
        Draft(out, lease).discard()
        lease.release()


@contextlib.contextmanager
def _owned(folder: Path, written: Path, busy: Callable[[str], BusyError]) -> Iterator[Lease]:
    """Own a folder, made if missing, while the block runs; `written` is named if that fails."""
    while True:
        lease = Lease(folder, busy)
        try:
            with writing(written):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                lease.take()
            except FileNotFoundError:
                continue  # its last owner has just removed it
            yield lease
            return
        finally:
            with before_interrupts():
                lease.release()


def _busy(out: Path, doing: str, who: str) -> BusyError:
    return BusyError(
        f"another run is {doing} {out} at this moment ({who})",
        expected="one run at a time",
        next_step="Wait until it has ended and run this again if it is still needed, or choose another name",
    )


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name; it replaces `path` if the block succeeds.

    The file is synced before it is renamed. Nothing is left if the block fails.

    Args:
        path: The final name.

    Yields:
        The temporary name, which no other process uses.
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
    """Write a small JSON file, complete or not at all, also after a power cut."""
    with replaced(path) as partial:
        partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def sync(paths: Iterable[Path], what: str | None = None, since: float | None = None) -> None:
    """Sync files and folders to stable storage before they are published.

    Args:
        paths: Files, and folders for the names in them.
        what: Text of the progress bar.
        since: Start of the work of which this is the last step.
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
        # Some network file systems refuse this for folders, and do not need it.
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_without_replacing(source: Path, out: Path) -> None:
    if source.is_dir():
        refuse_existing(out)
        source.rename(out)  # fails on a folder that is not empty
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
