"""The folder while it fills: private, and beside its final name, which it gets when it is complete.

The trap: a folder that is half unpacked looks like a whole one. So a killed run leaves `.NAME.extracting`,
which the next run clears.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pysquashfs.errors import SquashFSError


def refuse_existing(folder: Path) -> None:
    """Raise a SquashFSError unless the name is free or an empty folder."""
    with told(folder):
        empty = not folder.is_symlink() and folder.is_dir() and not any(folder.iterdir())
        taken = os.path.lexists(folder) and not empty
    if taken:
        raise SquashFSError(
            f"{folder} exists already",
            expected="a name that is free, or an empty folder",
            next_step="Choose another name, or remove it if it is not needed",
        )


@contextlib.contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A private folder beside the final one, which it becomes if the block ends well."""
    private = folder.absolute().parent / f".{folder.absolute().name}.extracting"
    with told(folder):
        private.parent.mkdir(parents=True, exist_ok=True)
        private.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _own(descriptor, folder)
    except SquashFSError:
        os.close(descriptor)
        raise
    try:
        with told(folder):
            os.fchmod(descriptor, 0o700)
            root = private / "root"
            shutil.rmtree(root, ignore_errors=True)  # of a run that was killed
            root.mkdir()
            yield root
            root.rename(folder)  # fails if something came there meanwhile
        private.rmdir()
    except BaseException:
        shutil.rmtree(private, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _own(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SquashFSError(
            f"another run is unpacking into {folder} at this moment",
            expected="one run for each folder",
            next_step="Wait for it, or choose another name",
        ) from None
    except OSError:
        pass  # mounted without locks: go on without


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn an OSError of writing below `path` into a sentence."""
    try:
        yield
    except OSError as error:
        no_room = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SquashFSError(
            f"{error.filename or path} cannot be written ({error.strerror or error})",
            expected="free blocks and inodes within your quota" if no_room else "a place you may write to",
            next_step="Free some space (df -h and df -i tell)" if no_room else "Choose another folder",
        ) from error
