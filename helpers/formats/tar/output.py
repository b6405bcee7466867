"""Write a shard front to back with few system calls, hashing on the way.

Headers and small samples gather in a buffer; a large sample goes out together with what waits in
front of it in one `writev`, straight from the caller's memory. That is what brings a tar to the
speed of plain concatenation.

The trap: `writev` may write less than it was given (a full disk, 2 GiB a call). Notebook 05 uses it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from helpers.digests import BlockHasher, sidecar
from helpers.errors import HelpersError, OutputExistsError, PackError, ResourceError
from helpers.formats.tar import compression
from helpers.formats.tar.options import Compression
from helpers.samples import Buffer

_SMALL_BYTES = 16 << 10
_BUFFER_BYTES = 256 << 10


class Output:
    """One file that grows at its end.

    Args:
        path: File that must not exist yet.
        digest: Take the content digest while writing.
        packing: Compress in independent frames.

    Raises:
        OutputExistsError: `path` exists.
    """

    def __init__(self, path: Path, *, digest: bool, packing: Compression | None = None) -> None:
        self.path = path
        self.position = 0
        self.frames = [(0, 0)]
        self._packing = packing
        self._written = 0
        self._pending = bytearray()
        self._hasher = BlockHasher() if digest else None
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise failure(path, error) from error

    def small(self, data: bytes) -> None:
        """Append a header or another small thing."""
        self._pending += data
        self.position += len(data)
        if len(self._pending) >= _BUFFER_BYTES and self._packing is None:
            self._flush()

    def member(self, header: bytes, data: Buffer) -> int:
        """Append a member; `data` may be overwritten afterwards.

        Returns:
            Where in the tar stream its data starts.
        """
        self._pending += header
        if self._packing or len(data) < _SMALL_BYTES:
            self._pending += data
        else:
            self._flush(data)
        start = self.position + len(header)
        self.position = start + len(data)
        return start

    def sample_end(self) -> None:
        """Say that a sample is complete: a frame may end here."""
        if self._packing and len(self._pending) >= compression.FRAME_BYTES:
            self._end_frame()

    def finish(self) -> list[Path]:
        """Write what waits, close, and write the digest.

        Returns:
            The files written.
        """
        if self._packing:
            self._end_frame()
        else:
            self._flush()
        try:
            os.close(self._descriptor)
            self._descriptor = -1
            return [self.path, *save_digest(self._hasher, self.path)]
        except OSError as error:
            raise failure(self.path, error) from error

    def abandon(self) -> None:
        """Close without finishing; nothing happens if it was finished."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _end_frame(self) -> None:
        assert self._packing is not None
        if self._pending:
            packed = compression.compress(self._packing, self._pending)
            self._pending.clear()
            self._write(packed, b"")
            self.frames.append((self._written, self.position))

    def _flush(self, data: Buffer = b"") -> None:
        self._write(self._pending, data)
        self._pending.clear()

    def _write(self, first: Buffer, second: Buffer) -> None:
        total = len(first) + len(second)
        try:
            written = os.writev(self._descriptor, (first, second))
            if written != total:
                self._write_rest(b"".join((first, second)), written)
        except OSError as error:
            raise failure(self.path, error) from error
        self._written += total
        if self._hasher is not None:
            self._hasher.update(first)
            self._hasher.update(second)

    def _write_rest(self, whole: bytes, written: int) -> None:
        rest = memoryview(whole)[written:]
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


def save_digest(hasher: BlockHasher | None, path: Path) -> list[Path]:
    """Write the sidecar of `path` if a digest was taken; return the files written."""
    if hasher is None:
        return []
    hasher.finish(path).save(sidecar(path))
    return [sidecar(path)]


def failure(path: Path, error: OSError) -> HelpersError:
    """The sentence for an error of the operating system while writing `path`."""
    if isinstance(error, FileExistsError):
        return OutputExistsError(
            f"{path} exists", expected="a new name", next_step="Delete it or choose another output"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(
            f"{path} could not grow ({error.strerror})",
            expected="free space, free inodes and quota for the whole output",
            next_step="See what is left with: python -m helpers doctor",
        )
    return PackError(
        f"{path} could not be written ({error.strerror or error})",
        expected="a folder that exists and that you may write to",
        next_step="Check the path and your permissions",
    )
