"""The files of a folder as items, in the order of their names.

The trap: a link to a folder may lead to a loop, or out of the tree. Links to files are followed, since a data
set of links should become one of files; links to folders are refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pysquashfs.errors import SquashFSError


def folder_items(root: Path) -> Iterator[tuple[str, Path]]:
    """All files below a folder, with their names in an image; empty folders are omitted.

    Args:
        root: The folder.

    Raises:
        SquashFSError: It cannot be read, or has a link to a folder, a broken link, a device or a pipe.
    """
    waiting = [(root, "")]
    while waiting:
        folder, prefix = waiting.pop()
        folders = []
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                folders.append((folder / entry.name, f"{prefix}{entry.name}/"))
            elif entry.is_file():
                yield prefix + entry.name, folder / entry.name
            else:
                raise _odd(folder / entry.name)
        waiting.extend(reversed(folders))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise SquashFSError(
            f"{folder} cannot be read ({error.strerror or error})",
            expected="a folder of files",
            next_step="Check the path and its permissions",
        ) from error


def _odd(path: Path) -> SquashFSError:
    what = "a link that is broken or leads to a folder" if path.is_symlink() else "a device, pipe or socket"
    return SquashFSError(
        f"{path} is {what}",
        expected="files and folders, and links to files",
        next_step="Remove it, or pack with mksquashfs itself, which keeps it as it is",
    )
