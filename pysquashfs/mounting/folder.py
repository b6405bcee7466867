"""Mount an image for as long as a block of code needs it, and leave nothing behind.

The trap: unmounting while another program still reads. So the block that mounted an image unmounts it,
mounts of other programs are never used, and a busy mount is only detached. Notebook 06 mounts an image.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pysquashfs import superblock
from pysquashfs.image_file import ImageFile
from pysquashfs.mounting import table
from pysquashfs.mounting.attaching import Attached, MountError, attach, unmount
from pysquashfs.mounting.ways import how_to_mount


@contextlib.contextmanager
def mount(
    image: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    way: str | None = None,
) -> Iterator[Path]:
    """Show an image as a folder while the block runs.

    For programs that can only read files. One file is opened on the parallel file system; this node then
    provides its folders and names.

    Args:
        image: The image.
        where: An empty or new folder; None for a private one, which is removed afterwards.
        way: One of `how_to_mount`; None for the first that works.

    Yields:
        The folder.

    Raises:
        MountError: No way works here; the sentence has the command to use instead.
        SquashFSError: It is no image.

    Example:
        >>> with mount("train.sqfs") as folder:  # doctest: +SKIP
        ...     subprocess.run(["ls", folder])
    """
    superblock.read(ImageFile(Path(image)))
    path = Path(image).resolve()
    target = None if where is None else Path(os.path.realpath(where))
    _clear_stale(path, target)
    with _mount_point(target) as (folder, made):
        attached = _mount(path, folder, way, made=made)
        try:
            yield folder
        finally:
            attached.detach()


def _clear_stale(image: Path, target: Path | None) -> None:
    """Remove mounts of this image, or at the target, whose server was killed, with their folders."""
    for mounted in table.mounts():
        ours = mounted.source == f"{table.MARK}{image}" or mounted.folder == target
        if ours and table.answer(mounted.folder) == "its server is gone":
            with contextlib.suppress(MountError):  # of another user
                unmount(mounted.folder)
                if mounted.folder.name.startswith(table.PREFIX):
                    _remove(mounted.folder)


@contextlib.contextmanager
def _mount_point(target: Path | None) -> Iterator[tuple[Path, bool]]:
    """A folder to mount on, and whether it was made for this."""
    owner, made, fault = os.getpid(), target is None, ""
    folder = target or Path(os.path.realpath(tempfile.mkdtemp(prefix=table.PREFIX)))  # 0700
    try:
        made = made or not folder.exists()
        folder.mkdir(mode=0o700, exist_ok=True)
        if any(folder.iterdir()):
            fault = "is not empty"
    except OSError as error:
        fault = f"cannot be used ({error.strerror})"
    if fault:
        raise MountError(f"{folder} {fault}", expected="an empty or new folder", next_step="Give another one")
    try:
        yield folder, made
    finally:
        if made and os.getpid() == owner:
            _remove(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _mount(image: Path, folder: Path, name: str | None, *, made: bool) -> Attached:
    """Mount by the first way that works, or by the one of this name."""
    ways, faults = how_to_mount(image), []
    for way in ways:
        if name in (None, way.name):
            usable = way.available and way.inside
            found = attach(way.name, image, folder, made=made) if usable else way.reason
            if isinstance(found, Attached):
                return found
            faults.append(f"{way.name}: {found}")
    line = next((way.line for way in ways if way.available and not way.inside), None)
    raise MountError(
        f"{image} cannot be mounted here ({'; '.join(faults) or f'there is no way {name!r}'})",
        expected="squashfuse and fusermount3, or root",
        next_step=f"Start your program with: {line}" if line else "Read it without a mount: SquashFS(path)",
    )
