"""Pack items into an image, in order; the files of a folder as items.

The trap: a link to a folder may lead to a loop, or out of the tree. Links to files are followed, since a data
set of links should become one of files; links to folders are refused by name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pysquashfs import text
from pysquashfs.errors import SquashFSError
from pysquashfs.writer.image import ImageWriter
from pysquashfs.writer.output import Output, publishing
from pysquashfs.writer.settings import DEFAULT_BLOCK_BYTES, Settings
from pysquashfs.writer.sources import Item, pieces, read_ahead

if TYPE_CHECKING:
    from pysquashfs.libsquashfs.writing import LibraryWriter


@dataclass(frozen=True)
class PackedImage:
    """What was written.

    Args:
        path: The image.
        files: How many files are in it.
        bytes: Of all of them together.
        image_bytes: Of the image.
    """

    path: Path
    files: int
    bytes: int
    image_bytes: int


def pack(
    out: Path,
    items: Iterable[Item],
    *,
    compression: str = "none",
    level: int | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    fragments: bool = False,
    overwrite: bool = False,
    backend: str = "python",
) -> PackedImage:
    """Pack many small files into one image, in the order of `items`.

    On a parallel file system one open and long reads replace one open per file. Data is stored in the given
    order, so if items are shuffled here, they are later read at full speed in that shuffled order. Equal
    items and settings give equal bytes (times, users and permissions are not stored).

    Memory is needed for the tables after the data: see `ImageWriter`. The 1.28 million files of ImageNet
    need about 120 MB (300 MB if all are in one folder).

    Args:
        out: The image; it appears when it is complete.
        items: (name, bytes or path of a file) pairs; names are relative with `/`. Iterated once.
        compression: "none", "gzip" or "zstd"; with the library also "xz".
        level: Of the compressor.
        block_bytes: A power of two from 4,096 to 1,048,576.
        fragments: Store the ends of files in shared blocks: smaller, and slow to read at random.
        overwrite: Whether an image of that name may be replaced.
        backend: "python", or "libsquashfs", the C library of squashfs-tools-ng from version 1.2 on. Only
            Python gives equal bytes on every machine.

    Returns:
        What was written.

    Raises:
        SquashFSError: A name is not possible in an image or comes twice, a file vanished or changed while it
            was read, `out` exists, there is no room, or the library is missing. Nothing is left behind.

    Example:
        >>> pack(Path("x.sqfs"), [("a/1.txt", b"one"), ("2.jpg", Path("photo.jpg"))])  # doctest: +SKIP
        PackedImage(path=PosixPath('x.sqfs'), files=2, bytes=48213, image_bytes=53248)
    """
    settings = Settings(compression, level, block_bytes, fragments, backend)
    out = Path(out)
    with contextlib.ExitStack() as stack:
        descriptor = stack.enter_context(publishing(out, overwrite=overwrite))
        output = stack.enter_context(contextlib.closing(Output(descriptor, out)))
        writer: ImageWriter | LibraryWriter
        if backend == "libsquashfs":
            from pysquashfs.libsquashfs.writing import LibraryWriter

            writer = LibraryWriter(descriptor, out, settings)
        else:
            writer = ImageWriter(output.append, settings)
        stack.callback(writer.abandon)
        for name, source in stack.enter_context(contextlib.closing(read_ahead(items))):
            writer.add_pieces(name, pieces(source) if isinstance(source, Path) else [source])
        output.finish(writer.close())
        size = os.fstat(descriptor).st_size
    return PackedImage(out, writer.files, writer.bytes, size)


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
                folders.append((folder / entry.name, f"{prefix}{text.of_listing(entry.name)}/"))
            elif entry.is_file():
                yield prefix + text.of_listing(entry.name), folder / entry.name
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
