"""Choose which of the two back ends reads an image: ours in Python, or the C library libsquashfs.

The measurement behind "auto": where the image is mapped, Python reads raw files at least as fast as the
library, because it makes no system call, and compressed files about as fast, because both spend their time in
the same zlib, zstd, lz4 and xz. Only the library decompresses lzma. So "auto" is Python, unless Python cannot
decompress the image and the library can. `python -m benchmarks squashfs` measures both.

The trap: a choice that nobody can see. So `SquashFS.info` contains the back end and the reason for it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pysquashfs import compression, parsing, superblock
from pysquashfs.errors import SquashFSError
from pysquashfs.file_reader import FileReader
from pysquashfs.image_file import ImageFile
from pysquashfs.index import Index

READING = ("auto", "python", "libsquashfs")


def choose(image: ImageFile, requested: str) -> tuple[str, str]:
    """The back end for an image, and the reason for it.

    Args:
        image: The image.
        requested: One of `READING`.

    Raises:
        SquashFSError: There is no such back end, it is not installed, or none can decompress the image.
    """
    if requested not in READING:
        raise unknown(requested, READING)
    if requested == "libsquashfs":
        from pysquashfs.libsquashfs.library import load

        return requested, f"it was requested (version {load().version})"
    if requested == "python":
        return requested, "it was requested"
    block = superblock.read(image)
    try:
        if not block.all_raw:
            compression.require(block.compressor, image.path)
    except SquashFSError as error:
        if not _library_decompresses(block.compressor, block.block_bytes):
            from pysquashfs.libsquashfs.library import INSTALL

            raise type(error)(
                error.got,
                expected=error.expected,
                next_step=f"{error.next_step}, or for libsquashfs, which decompresses it too: {INSTALL}",
            ) from error
        fault = error.got.partition(": ")[2] or error.got
        return "libsquashfs", f"{fault}, and the library can decompress it"
    return "python", "raw files are read without a system call, and compressed ones as fast as by the library"


def unknown(requested: object, known: tuple[str, ...]) -> SquashFSError:
    """The error for a back end that does not exist."""
    return SquashFSError(
        f"there is no back end {requested!r}",
        expected=f"one of {', '.join(known)}",
        next_step="Correct it, or leave it out",
    )


def _library_decompresses(compressor: str, block_bytes: int) -> bool:
    from pysquashfs.libsquashfs.library import Session

    try:
        with closing(Session("")) as session:
            session.compressor(compressor, block_bytes)
        return True
    except SquashFSError:
        return False


def parse(image: ImageFile, backend: str) -> Index:
    """The index of an image, by a back end that `choose` returned."""
    if backend == "libsquashfs":
        from pysquashfs import libsquashfs

        return libsquashfs.parse(image)
    return parsing.parse(image)


def reader(path: Path, index: Index, backend: str) -> FileReader:
    """A reader for this process and thread."""
    if backend == "libsquashfs":
        from pysquashfs import libsquashfs

        return libsquashfs.LibraryReader(path, index)
    return FileReader(path, index)
