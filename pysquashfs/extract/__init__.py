"""Unpack an image into a folder of its own, and nowhere else.

The trap: an image made by somebody else may hold a link that leads out of the folder, and then a file
behind it. Here nothing is followed: the folder is new, links are made last and only when asked for, and
the names come from a reader that refuses `..`, `/` and duplicates. Notebook 06 tries a hostile image.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pysquashfs.errors import SquashFSError
from pysquashfs.extract.chosen import Chosen
from pysquashfs.extract.place import aside, refuse_existing, told
from pysquashfs.image import SquashFS


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
    image: Path,
    folder: Path,
    members: Iterable[str] | None = None,
    *,
    symlinks: bool = False,
    max_bytes: int | None = None,
) -> Extracted:
    """Unpack an image, or some of it.

    It is read from its first byte to its last, so a parallel file system streams it. The folder appears
    when everything is in it. Times and owners are not restored; of the permissions only rwx.

    Args:
        image: The image.
        folder: Must not exist, or be empty.
        members: Files, and folders with all that is in them; None for everything.
        symlinks: Make those that stay in the folder, too.
        max_bytes: Refuse images that would take more; None for what is free.

    Returns:
        What was unpacked, and how much was left out.

    Raises:
        SquashFSError: The image is damaged or hostile, a member is not in it, `folder` is in use, or
            there is no room. Nothing is left behind.
    """
    folder = Path(folder)
    refuse_existing(folder)
    with SquashFS(image, cache=False) as opened:
        chosen = Chosen.of(opened, members)
        _check_room(opened.path, folder.absolute().parent, chosen, max_bytes)
        with aside(folder) as root:
            chosen.make_folders(root)
            chosen.write_files(opened.path, root)
            links = chosen.make_links(root) if symlinks else 0
            chosen.set_modes(root)
    return Extracted(
        folder, len(chosen.files), chosen.bytes, links, chosen.long_names, len(chosen.odd) - links
    )


def _check_room(image: Path, parent: Path, chosen: Chosen, max_bytes: int | None) -> None:
    """An image of kilobytes may claim petabytes."""
    with told(parent):
        while not parent.exists():
            parent = parent.parent
        room = os.statvfs(parent)
    free = room.f_bavail * room.f_frsize
    limit, why = (free, "are free") if max_bytes is None or free < max_bytes else (max_bytes, "are allowed")
    if chosen.bytes > limit:
        raise SquashFSError(
            f"{image}: it would unpack to {chosen.bytes:,} bytes",
            expected=f"at most the {limit:,} that {why}",
            next_step="Unpack where there is room, or only some members; or read it without unpacking",
        )
    inodes = len(chosen.files) + len(chosen.folders) + len(chosen.odd)
    if room.f_files and inodes > room.f_favail:
        raise SquashFSError(
            f"{image}: it would unpack to {inodes:,} files and folders",
            expected=f"at most the {room.f_favail:,} inodes that are free",
            next_step="Read it without unpacking",
        )
