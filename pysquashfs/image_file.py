"""An open image that is read by position, without a moving offset.

The trap: if forked workers share a descriptor and use `seek` and `read`, they get bytes of one another's
samples (1,129 wrong samples of 6,000 with two workers). `pread` names its position in every
call, so processes and threads may share it. Notebook 06 shows both.

A mapped page that is in memory costs no system call, which gives twice the reads per second of `pread`. On
a network or parallel file system each touched page may become a request of its own, and if the server goes
away the process is killed (SIGBUS), whereas `pread` reports an error. So only images on local disks are
mapped; unknown file systems count as remote, and a container's overlay as a disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from functools import lru_cache
from pathlib import Path

from pysquashfs.errors import DamagedImageError, SquashFSError
from pysquashfs.mounts import read_mounts

LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


class ImageFile:
    """The file of an image, opened for reading by position.

    It closes when nothing uses it any more: if it were closed while a thread reads, the kernel could
    give its number to another file.

    Args:
        path: The image.

    Raises:
        SquashFSError: It cannot be opened, or is not a file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file() and not path.is_block_device():  # opening a pipe would wait for ever
                raise _no_image(path, "it is no file" if path.exists() else "it does not exist")
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise _no_image(path, f"it cannot be opened ({error})") from error
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        status = os.fstat(self.descriptor)
        self.size = status.st_size or os.lseek(self.descriptor, 0, os.SEEK_END)  # 0 for a block device
        self.mtime_ns = status.st_mtime_ns
        self._mapping: mmap.mmap | None = None

    def mapped(self) -> mmap.mmap | None:
        """The file as memory if that is the faster way; None if `read` is.

        Call `is_whole` before taking bytes from it: touching a part that was truncated kills the process.
        """
        if self._mapping is None and is_local(self.descriptor):
            with contextlib.suppress(OSError, ValueError):  # a limit of address space, an empty file
                self._mapping = mmap.mmap(self.descriptor, self.size, access=mmap.ACCESS_READ)
        return self._mapping

    def is_whole(self) -> bool:
        """Whether the file is still as long as it was when it was opened."""
        return os.lseek(self.descriptor, 0, os.SEEK_END) >= self.size  # a third of the time of fstat

    def read(self, start: int, count: int, what: str = "data") -> bytes:
        """Exactly `count` bytes from `start`.

        Raises:
            DamagedImageError: They are not all there, or reading failed.
        """
        if not 0 <= start <= start + count <= self.size:
            raise DamagedImageError.of(
                self.path,
                f"{what} at bytes {start:,} to {start + count:,} lies outside of its {self.size:,} bytes",
                "everything inside",
            )
        try:
            data = os.pread(self.descriptor, count, start)
            while len(data) < count:  # Linux reads at most 2 GiB at once
                more = os.pread(self.descriptor, count - len(data), start + len(data))
                if not more:
                    break
                data += more
        except (OSError, MemoryError) as error:
            raise DamagedImageError.of(
                self.path, f"reading {what} failed ({error})", "a file that can be read"
            ) from error
        if len(data) != count:
            raise DamagedImageError.of(
                self.path,
                f"{what} at byte {start:,} ends after {len(data):,} bytes",
                f"{count:,} bytes; the file became shorter",
            )
        return data

    def prefetch(self, start: int, count: int) -> None:
        """Ask the kernel to fetch these bytes in the background, because they will be read soon."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError, OverflowError):  # only advice: reading works without it
                os.posix_fadvise(self.descriptor, start, count, os.POSIX_FADV_WILLNEED)


_shared: weakref.WeakValueDictionary[tuple[Path, int, int, int], ImageFile] = weakref.WeakValueDictionary()


def shared(path: Path) -> ImageFile:
    """The open image of this process, so that all its threads use one mapping.

    Raises:
        SquashFSError: It cannot be opened, or is not a file.
    """
    opened = ImageFile(path)
    status = os.fstat(opened.descriptor)
    return _shared.setdefault((path, status.st_dev, status.st_ino, status.st_mtime_ns), opened)


def is_local(descriptor: int) -> bool:
    """Whether the open file is on a file system of this machine."""
    device = os.fstat(descriptor).st_dev
    return _kind(f"{os.major(device)}:{os.minor(device)}") in LOCAL


@lru_cache(maxsize=64)
def _kind(device: str) -> str:
    """Type of the file system with this device number, or "" if it is unknown."""
    return next((mount.kind for mount in read_mounts(_MOUNTS) if mount.device == device), "")


def _no_image(path: Path, fault: str) -> SquashFSError:
    return SquashFSError(f"{path}: {fault}", expected="a squashfs image", next_step="Check the path")
