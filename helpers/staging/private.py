"""A folder that is ours alone, in a place where everybody may write.

`/dev/shm` is open to all users of a node. Whoever guesses the name of our folder may have made it
before us, or put a link there that leads our bytes (or our deletions) elsewhere. So the folder is
made with mode 0700 and used only if it is a folder, no link, owned by us, closed to others, and
inside a place where others cannot rename it. The trap: looking at it with `stat` follows the link.
Notebook 07.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from helpers.errors import ResourceError
from helpers.formats.output import writing

PREFIX = "smallfiles-"


def folder_name() -> str:
    """Name of our folder in any place; it tells the administrator whose memory it is."""
    return f"{PREFIX}{os.geteuid()}"


def private_folder(place: Path) -> Path:
    """Our own folder in `place`, made if it is not there.

    Args:
        place: A directory that others may share.

    Raises:
        ResourceError: Something else has its name, others could tamper with it, or it cannot be made.
    """
    with writing(place):
        around = place.stat()
    _refuse_open_place(place, around)
    folder = place / folder_name()
    with writing(folder):
        while True:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            try:
                check(folder)
            except FileNotFoundError:
                continue  # the last one out has just removed it
            return folder


def existing_folder(place: Path) -> Path | None:
    """Our own folder in `place` if it is there and safe; nothing is made or changed."""
    folder = place / folder_name()
    try:
        _refuse_open_place(place, place.stat())
        check(folder)
    except (OSError, ResourceError):
        return None
    return folder


def check(folder: Path) -> None:
    """Raise ResourceError unless `folder` is a real folder of ours that nobody else may enter."""
    found = folder.lstat()
    problem = None
    if stat.S_ISLNK(found.st_mode):
        problem = "is a symbolic link, perhaps planted by somebody else"
    elif not stat.S_ISDIR(found.st_mode):
        problem = "is no folder"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to another user (uid {found.st_uid})"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        problem = f"is open to others (mode {stat.S_IMODE(found.st_mode):o})"
    if problem is not None:
        raise ResourceError(
            f"{folder} {problem}",
            expected="a folder of yours with mode 700, or none",
            next_step="Remove it if it is yours, tell your site if it is not, or choose another place "
            "with --where",
        )


def _refuse_open_place(place: Path, found: os.stat_result) -> None:
    """Where anybody may rename our folder away, its path would lead to theirs."""
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise ResourceError(
            f"anybody may rename what is in {place} (mode {stat.S_IMODE(found.st_mode):o})",
            expected="a place with the sticky bit, as /dev/shm has, or one of your own",
            next_step="Choose another place with --where",
        )
