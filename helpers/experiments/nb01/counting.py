"""How many inodes and blocks a tree takes: what a quota counts, and what `ls -l` does not show.

The trap: a file's size is not what it takes. Space comes in blocks, so the last one is half empty on
average, and a tree of tiny files is mostly air. Files that share an inode (hard links, as some
package installers make) are one. Notebook 01 counts the demo set and its own environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smallfiles import machine
from smallfiles.errors import SourceError, UsageError
from smallfiles.measure.neighbour import allowance
from smallfiles.sources import Source

_ALLOCATION_UNIT_BYTES = 512  # of st_blocks, whatever the file system's own block
_EVERYTHING = 1 << 40


@dataclass(frozen=True)
class TreeCount:
    """What a tree takes.

    Args:
        files: Regular files and links, each inode once.
        folders: Folders, the root included.
        sizes: Size of each regular file in bytes.
        allocated_bytes: What the file system set aside for the files.
        block_bytes: Its unit of allocation.
        filesystem: Its kind.
        complete: False if counting stopped at the cap of a shared file system.
    """

    files: int
    folders: int
    sizes: np.ndarray
    allocated_bytes: int
    block_bytes: int
    filesystem: str
    complete: bool = True

    @property
    def inodes(self) -> int:
        """What a quota of inodes counts."""
        return self.files + self.folders

    @property
    def bytes(self) -> int:
        """Sum of the sizes."""
        return int(self.sizes.sum())

    @property
    def median_bytes(self) -> float:
        """Half of the files are smaller than this."""
        return float(np.median(self.sizes)) if len(self.sizes) else 0.0

    @property
    def allocated_share(self) -> float:
        """Bytes set aside for each byte stored."""
        return self.allocated_bytes / max(1, self.bytes)

    def rounded_up(self, block_bytes: int) -> int:
        """Bytes that the files would take in whole blocks of this size.

        A computation, not a measurement: some file systems keep tiny files within the inode, or
        compress.
        """
        return int((-(-self.sizes // block_bytes) * block_bytes).sum())

    def taken_share(self, block_bytes: int) -> float:
        """Bytes that blocks of this size would take for each byte stored."""
        return self.rounded_up(block_bytes) / max(1, self.bytes)


def folder_of(source: Source) -> Path:
    """The folder whose small files are to be measured.

    Raises:
        UsageError: The samples are not files of their own, as in an archive.
    """
    root = getattr(source.store, "root", None)
    if root is None:
        raise UsageError(
            f"the samples lie in {source.store.describe()}",
            expected="files of their own, which is what is measured here",
            next_step="Name a folder of images in COURSE_DATA, or unset it (%env COURSE_DATA=)",
        )
    return Path(root)


def count_tree(root: Path, *, cap: bool = True) -> TreeCount:
    """Count the inodes and blocks below a folder.

    Each entry costs a request for its metadata, so on a shared file system counting ends at the
    cap and says so; ask the file system for the whole number there (`lfs quota`, `mmlsquota`).

    Args:
        root: The folder.
        cap: False counts everything, also where others wait.

    Raises:
        SourceError: It cannot be listed.
    """
    place = machine.filesystem(root)
    most = allowance([root], _EVERYTHING, 1, cap=cap).samples
    sizes: list[int] = []
    seen: set[tuple[int, int]] = set()
    folders, allocated, looked_at = 1, 0, 0
    for entry, is_folder in _entries(root):
        looked_at += 1
        if looked_at > most:
            break
        if is_folder:
            folders += 1
            continue
        about = entry.stat(follow_symlinks=False)
        if (about.st_dev, about.st_ino) not in seen:
            seen.add((about.st_dev, about.st_ino))
            sizes.append(about.st_size)
            allocated += about.st_blocks * _ALLOCATION_UNIT_BYTES
    counted = np.array(sizes, np.int64)
    return TreeCount(
        len(sizes), folders, counted, allocated, place.block_bytes, place.kind, looked_at <= most
    )


def _entries(root: Path) -> Iterator[tuple[os.DirEntry[str], bool]]:
    """Everything below a folder, and whether it is a folder; links are not followed."""
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if is_folder:
                        waiting.append(entry.path)
                    yield entry, is_folder
        except OSError as error:
            raise SourceError(
                f"{folder} cannot be listed ({error.strerror or error})",
                expected="a folder that you may read",
                next_step="Check the path and its rights (ls -ld)",
            ) from error
