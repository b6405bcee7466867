"""Read the files that go into an image, each through one buffer that is used again and again.

The trap: a file may vanish or grow between being listed and being read. What was announced in the image
must be what is stored, so each is read to its end and one byte further.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pysquashfs.compression import Buffer
from pysquashfs.errors import SquashFSError
from pysquashfs.writer.image import ImageWriter

_BUFFER_BYTES = 4 << 20  # a multiple of every block size; small enough to stay in the cache of a core


class FileReader:
    """Adds files of the file system to an image."""

    def __init__(self, writer: ImageWriter) -> None:
        self._writer = writer
        self._buffer = memoryview(bytearray(_BUFFER_BYTES + 1))

    def add(self, name: str, path: Path) -> None:
        """Store one file.

        Args:
            name: In the image.
            path: On disk; links are followed.

        Raises:
            SquashFSError: It is no regular file, cannot be read, or changed meanwhile.
        """
        with _reading(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with _reading(path):
                status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _unusable(path, "it is no regular file")
            size = status.st_size
            if size <= _BUFFER_BYTES:
                self._writer.add(name, self._small(descriptor, path, size))
            else:
                digest = _digest(descriptor, path) if self._writer.settings.deduplicate else None
                self._writer.add_pieces(name, self._pieces(descriptor, path, size), digest)
        finally:
            os.close(descriptor)

    def _small(self, descriptor: int, path: Path, size: int) -> Buffer:
        if self._fill(descriptor, path, size + 1, 0, enough=size) != size:
            raise _changed(path, size)
        return self._buffer[:size]

    def _pieces(self, descriptor: int, path: Path, size: int) -> Iterator[Buffer]:
        position = 0
        while position < size:
            wanted = min(_BUFFER_BYTES, size - position)
            if self._fill(descriptor, path, wanted, position, enough=wanted) != wanted:
                raise _changed(path, size)
            yield self._buffer[:wanted]
            position += wanted
        if self._fill(descriptor, path, 1, position, enough=1):
            raise _changed(path, size)

    def _fill(self, descriptor: int, path: Path, wanted: int, position: int, enough: int) -> int:
        """Ask for `wanted` bytes until `enough` are there or the file ends; usually once."""
        found = 0
        with _reading(path):
            while count := os.preadv(descriptor, [self._buffer[found:wanted]], position + found):
                found += count
                if found >= enough:
                    break
        return found


def _digest(descriptor: int, path: Path) -> bytes:
    with _reading(path), os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").digest()[:16]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unusable(path, str(getattr(error, "strerror", None) or error)) from error


def _unusable(path: Path, fault: str) -> SquashFSError:
    return SquashFSError(
        f"{path} cannot be read ({fault})",
        expected="a regular file that stays while it is packed",
        next_step="Check it, and pack again",
    )


def _changed(path: Path, size: int) -> SquashFSError:
    return SquashFSError(
        f"{path} changed its size while it was read",
        expected=f"the {size:,} bytes that it had before",
        next_step="Pack again when nothing writes to it",
    )
