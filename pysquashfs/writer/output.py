"""The image while it is written, under a temporary name until it is complete and on disk.

The trap: a file under its final name looks finished, even if only half of it is there. So it is written as
`.NAME.packing`, and a killed run leaves only that, which the next run overwrites.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pysquashfs.compression import Buffer
from pysquashfs.errors import SquashFSError

_WRITTEN_AT_ONCE = 4 << 20
_PIECES_AT_ONCE = 512  # the kernel takes 1,024 (IOV_MAX)
_NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


class Output:
    """Append to an open file in another thread: files are read while earlier ones are written.

    Args:
        descriptor: Open for writing, at its start.
        path: For messages.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._held: list[Buffer] = []
        self._pool = ThreadPoolExecutor(1, "squash-write")
        self._writing: Future[None] | None = None
        self.bytes = self._handed = 0

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Write all pieces, in order and in the background; a piece that may change is copied."""
        self._held += [piece if type(memoryview(piece).obj) is bytes else bytes(piece) for piece in pieces]
        self.bytes += sum(map(len, pieces))
        if self.bytes - self._handed >= _WRITTEN_AT_ONCE or len(self._held) >= _PIECES_AT_ONCE:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._writing is not None:
            self._writing.result()
        self._writing = self._pool.submit(self._write, self._held)
        self._held, self._handed = [], self.bytes

    def _write(self, pieces: list[Buffer]) -> None:
        rest = [memoryview(piece) for piece in pieces]
        with write_errors(self._path):
            while rest:
                count = os.writev(self._descriptor, rest[:_PIECES_AT_ONCE])
                while rest and count >= len(rest[0]):
                    count -= len(rest.pop(0))
                if count:
                    rest[0] = rest[0][count:]

    def finish(self, superblock: bytes) -> None:
        """Write what is left, put the superblock at the start, and sync the file to disk."""
        self._hand_over()
        self.close()
        if self._writing is not None:
            self._writing.result()
        with write_errors(self._path):
            os.pwrite(self._descriptor, superblock, 0)
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Wait for what is being written."""
        self._pool.shutdown()


@contextlib.contextmanager
def publishing(out: Path, *, overwrite: bool) -> Iterator[int]:
    """Lock `.NAME.packing` while the block runs; give it its final name if the block succeeds.

    Args:
        out: The final name.
        overwrite: Whether an image of that name may be replaced.

    Yields:
        A descriptor of the empty file.

    Raises:
        SquashFSError: The name exists, another run is writing it, or the file system refuses.
    """
    _refuse_existing(out, overwrite)
    path = out.with_name(f".{out.name}.packing")
    with write_errors(out):
        descriptor = _own(path, out)
    try:
        with write_errors(out):
            os.ftruncate(descriptor, 0)
        yield descriptor
        with write_errors(out):
            _publish(path, out, overwrite)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _own(path: Path, out: Path) -> int:
    """Open the file and lock it; the kernel releases the lock when its owner ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        still_there = path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino
    except OSError as error:
        still_there = error.errno in _NO_FLOCK  # mounted without locks
    if not still_there:
        os.close(descriptor)
        raise SquashFSError(
            f"another run is writing {out} at this moment",
            expected="one run for each image",
            next_step="Wait for it, or choose another name",
        )
    return descriptor


def _publish(path: Path, out: Path, overwrite: bool) -> None:
    if overwrite:
        path.replace(out)
    else:
        try:
            os.link(path, out)  # fails if the name is taken, which a rename does not
        except FileExistsError:
            _refuse_existing(out, overwrite)
        except OSError:  # a file system without hard links
            _refuse_existing(out, overwrite)
            path.rename(out)
        else:
            path.unlink()
    with contextlib.suppress(OSError):  # some network file systems refuse this, and do not need it
        folder = os.open(out.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _refuse_existing(out: Path, overwrite: bool) -> None:
    if os.path.lexists(out) and not (overwrite and out.is_file()):
        raise SquashFSError(
            f"{out} exists already",
            expected="a name that does not exist; with overwrite, a file may be there",
            next_step="Choose another name, or remove it if it is not needed",
        )


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into a sentence."""
    try:
        yield
    except OSError as error:
        no_room = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SquashFSError(
            f"{path} cannot be written ({error.strerror or error})",
            expected="free blocks and inodes within your quota" if no_room else "a folder you may write to",
            next_step="Free some space (df -h and df -i tell) and run it again"
            if no_room
            else "Choose another place for the image",
        ) from error
