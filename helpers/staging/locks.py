"""Locks that the kernel lets go when their holder dies, kill -9 included.

A lock belongs to an open file, so forked workers hold it on: what their parent staged is in use as
long as one of them lives. The trap: a lock on a file that its last owner has just removed locks
nothing; so the name is looked up again once the lock is ours. Notebook 07.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from helpers.errors import ResourceError
from helpers.formats.output import cannot_write
from helpers.staging.private import private_folder


def try_lock(path: Path, *, shared: bool, create: bool = True) -> int | None:
    """Lock the file `path` without waiting.

    Args:
        path: A file in our private folder.
        shared: For a user of a copy; otherwise for the one who makes or removes it.
        create: Whether to make what is missing.

    Returns:
        The open descriptor, or None if somebody else holds it (or it is missing and not to be made).

    Raises:
        ResourceError: The file system has no locks or takes no file.
    """
    while True:
        descriptor = _opened(path, create)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise ResourceError(
                f"{path} cannot be locked ({error.strerror or error})",
                expected="a local file system with flock, so that one process copies and others wait",
                next_step="Choose another place with --where",
            ) from error
        if names(path, descriptor):
            return descriptor
        os.close(descriptor)  # its last owner removed it: try again with a new one


def _opened(path: Path, create: bool) -> int | None:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    while True:
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            if not create:
                return None
            private_folder(path.parent.parent)  # the last one out removed the empty folder
        except OSError as error:
            raise cannot_write(path, error) from error


def names(path: Path, descriptor: int) -> bool:
    """Whether `path` is still the file that is open."""
    try:
        found, ours = path.lstat(), os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def share(descriptor: int) -> None:
    """Turn our exclusive lock into a shared one; for a moment somebody else may get between."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_last(descriptor: int) -> bool:
    """Give up our shared lock for an exclusive one; False if others share it, and ours is gone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
