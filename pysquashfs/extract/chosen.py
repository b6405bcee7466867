"""What of an image is unpacked, and how each kind of entry becomes one of the file system.

The trap: a symlink that leads nowhere bad by itself can do so through another one, so a target may go up
only where it starts. See `stays_inside`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
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

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Chosen:
    """What of an image is to be unpacked; rows of its index."""

    index: Index
    files: Rows
    folders: Rows
    odd: Rows  # everything else
    bytes: int
    long_names: int

    @classmethod
    def of(cls, image: SquashFS, members: Iterable[str] | None) -> Chosen:
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
