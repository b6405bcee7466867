"""Unpack an image into a folder of its own, and nowhere else.

The traps: an image made by somebody else may hold a link that leads out of the folder, and then a file
behind it. Here nothing is followed: the folder is new, links are made last and only when asked for, and
the names come from a reader that refuses `..`, `/` and duplicates. A symlink that leads nowhere bad by
itself can do so through another one, so a target may go up only where it starts. And a folder that is half
unpacked looks like a whole one: a killed run leaves `.NAME.extracting`, which the next run clears. Notebook
06 tries a hostile image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout
from pysquashfs.errors import SquashFSError
from pysquashfs.image import SquashFS
from pysquashfs.index import LONG_NAME, Entries, Index
from pysquashfs.pure import PureBackend
from pysquashfs.reading import spans
from pysquashfs.writer.output import written

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Extracted:
    """What was unpacked.

    Args:
        folder: Where.
        files: How many files.
        bytes: Of all of them.
        links: How many symlinks were made.
        long_names: Paths left out, since a name in them has 256 bytes.
        left_out: Symlinks that were not asked for or lead out of the folder, devices, pipes, sockets.
    """

    folder: Path
    files: int
    bytes: int
    links: int
    long_names: int
    left_out: int


def extract(
    image: Path, folder: Path, members: Iterable[str] | None = None, *, symlinks: bool = False
) -> Extracted:
    """Unpack an image, or some of it.

    It is read from its first byte to its last, so a parallel file system streams it. The folder appears
    when everything is in it. Times and owners are not restored; of the permissions only rwx.

    Args:
        image: The image.
        folder: Must not exist, or be empty.
        members: Files, and folders with all that is in them; None for everything.
        symlinks: Make those that stay in the folder, too.

    Returns:
        What was unpacked, and how much was left out.

    Raises:
        SquashFSError: The image is damaged or hostile, a member is not in it, `folder` is in use, or
            there is no room. Nothing is left behind.
    """
    folder = Path(folder)
    _refuse_existing(folder)
    with SquashFS(image, cache=False) as opened:
        chosen = _Chosen.of(opened, members)
        _check_room(opened.path, folder.absolute().parent, chosen)
        with _aside(folder) as root:
            chosen.make_folders(root)
            chosen.write_files(opened.path, root)
            links = chosen.make_links(root) if symlinks else 0
            chosen.set_modes(root)
    return Extracted(
        folder, len(chosen.files), chosen.bytes, links, chosen.long_names, len(chosen.odd) - links
    )


def _check_room(image: Path, parent: Path, chosen: _Chosen) -> None:
    """An image of kilobytes may claim petabytes."""
    with written(parent):
        while not parent.exists():
            parent = parent.parent
        room = os.statvfs(parent)
    free = room.f_bavail * room.f_frsize
    if chosen.bytes > free:
        raise SquashFSError(
            f"{image}: it would unpack to {chosen.bytes:,} bytes",
            expected=f"at most the {free:,} that are free",
            next_step="Unpack where there is room, or only some members; or read it without unpacking",
        )
    inodes = len(chosen.files) + len(chosen.folders) + len(chosen.odd)
    if room.f_files and inodes > room.f_favail:
        raise SquashFSError(
            f"{image}: it would unpack to {inodes:,} files and folders",
            expected=f"at most the {room.f_favail:,} inodes that are free",
            next_step="Read it without unpacking",
        )


@dataclass(frozen=True)
class _Chosen:
    """What of an image is to be unpacked; rows of its index."""

    index: Index
    files: Rows
    folders: Rows
    odd: Rows  # everything else
    bytes: int
    long_names: int

    @classmethod
    def of(cls, image: SquashFS, members: Iterable[str] | None) -> _Chosen:
        """What these members are; everything for None.

        Raises:
            SquashFSError: A member is not in the image.
        """
        index = image.index
        files, others = _rows(image, members)
        short_files = files[index.files.flags[files] & LONG_NAME == 0]
        short_others = others[index.others.flags[others] & LONG_NAME == 0]
        is_folder = index.others.kind[short_others] == layout.DIRECTORY
        return cls(
            index,
            short_files,
            short_others[is_folder],
            short_others[~is_folder],
            int(index.files.size[short_files].sum()),
            len(files) + len(others) - len(short_files) - len(short_others),
        )

    def make_folders(self, root: Path) -> None:
        """All folders, each after the one it is in."""
        for row in self.folders.tolist():
            (root / _path(self.index.others, row)).mkdir(parents=True, exist_ok=True)

    def write_files(self, image: Path, root: Path) -> None:
        """Write files in the order in which they are stored."""
        rows, files, source = self.files, self.index.files, PureBackend(image, self.index)
        parent = ""
        for row in rows[np.argsort(spans(self.index, rows)[0], kind="stable")].tolist():
            path = _path(files, row)
            if path.rpartition("/")[0] != parent:
                parent = path.rpartition("/")[0]
                (root / parent).mkdir(parents=True, exist_ok=True)
            mode = int(files.mode[row]) & 0o777 | 0o600
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(root / path, flags, mode), "wb", buffering=0) as file:
                for piece in source.pieces(row):
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) or 0 :]

    def make_links(self, root: Path) -> int:
        """Symlinks that cannot lead out of the folder, whatever else is in it; returns how many."""
        made, others = 0, self.index.others
        for row in self.odd.tolist():
            if others.kind[row] != layout.SYMLINK:
                continue
            first, path = int(others.target[row]), _path(others, row)
            target = others.targets[first : first + int(others.target_bytes[row])].tobytes()
            if stays_inside(path, os.fsdecode(target)):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(os.fsdecode(target))
                made += 1
        return made

    def set_modes(self, root: Path) -> None:
        """Permissions of folders, at the end: one that may not be written to could not be filled."""
        others = self.index.others
        for row in self.folders.tolist():
            (root / _path(others, row)).chmod(int(others.mode[row]) & 0o777 | 0o700)


def stays_inside(path: str, target: str) -> bool:
    """Whether a symlink at `path` cannot lead out of the root.

    `..` may stand only at the start, where what it leaves are real folders; behind a name, that name may
    itself be a link, and nobody knows what lies above its end.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = parts.count("..")
    return (
        bool(target)
        and not target.startswith("/")
        and "\0" not in target
        and all(part == ".." for part in parts[:up])
        and up <= path.count("/")
    )


def _rows(image: SquashFS, members: Iterable[str] | None) -> tuple[Rows, Rows]:
    """Rows of files, and of others, that are asked for."""
    index = image.index
    if members is None:
        return np.arange(len(index.files)), np.arange(len(index.others))
    files: set[int] = set()
    others: set[int] = set()
    for member in members:
        name = member.strip("/")
        if not name or image.stat(name).kind == "directory":
            files.update(index.files.names.below(os.fsencode(name)))
            others.update(index.others.names.below(os.fsencode(name)))
        if name:
            row = index.files.names.find(os.fsencode(name))
            files.update([row] if row >= 0 else [])
            row = index.others.names.find(os.fsencode(name))
            others.update([row] if row >= 0 else [])
    return np.array(sorted(files), np.int64), np.array(sorted(others), np.int64)


def _path(entries: Entries, row: int) -> str:
    """A path of the image, checked once more before it becomes one of the file system."""
    path = entries.names[row]
    if path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise SquashFSError(
            f"the image holds the path {path!r}",
            expected="paths that stay inside the folder",
            next_step="Do not unpack it; find out who made it",
        )
    return path


def _refuse_existing(folder: Path) -> None:
    """Raise a SquashFSError unless the name is free or an empty folder."""
    with written(folder):
        empty = not folder.is_symlink() and folder.is_dir() and not any(folder.iterdir())
        taken = os.path.lexists(folder) and not empty
    if taken:
        raise SquashFSError(
            f"{folder} exists already",
            expected="a name that is free, or an empty folder",
            next_step="Choose another name, or remove it if it is not needed",
        )


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A private folder beside the final one, which it becomes if the block ends well."""
    private = folder.absolute().parent / f".{folder.absolute().name}.extracting"
    with written(folder):
        private.parent.mkdir(parents=True, exist_ok=True)
        private.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _own(descriptor, folder)
    except SquashFSError:
        os.close(descriptor)
        raise
    try:
        with written(folder):
            os.fchmod(descriptor, 0o700)
            root = private / "root"
            shutil.rmtree(root, ignore_errors=True)  # of a run that was killed
            root.mkdir()
            yield root
            root.rename(folder)  # fails if something came there meanwhile
        private.rmdir()
    except BaseException:
        shutil.rmtree(private, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _own(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SquashFSError(
            f"another run is unpacking into {folder} at this moment",
            expected="one run for each folder",
            next_step="Wait for it, or choose another name",
        ) from None
    except OSError:
        pass  # mounted without locks: go on without
