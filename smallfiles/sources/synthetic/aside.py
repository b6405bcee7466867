"""A folder that appears under its name only when it is complete.

The trap: a half-made data set that looks finished is found weeks later, as a model that is a little
worse. So everything is written into a hidden sibling, which is renamed at the end and removed at any
failure. Notebook 05 teaches it for packed files.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smallfiles.errors import OutputExistsError, ResourceError
from smallfiles.progress import bytes_text

_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def written_aside(out: Path, need_bytes: int, need_files: int) -> Iterator[Path]:
    """Give a hidden folder to write into; it becomes `out` if all goes well.

    Args:
        out: The folder to be; its parents are made.
        need_bytes: About how much will be written; refused at once if there is less space.
        need_files: About how many files.

    Yields:
        The hidden folder, on the same file system.

    Raises:
        OutputExistsError: `out` is there already.
        ResourceError: No space, no inodes, no permission; nothing is left behind.
    """
    refuse_existing(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _check_space(out, need_bytes, need_files)
        hidden = Path(tempfile.mkdtemp(prefix=f".{out.name[:80]}.", suffix=".partial", dir=out.parent))
    except OSError as error:
        raise _as_sentence(out, error) from error
    try:
        yield hidden
        refuse_existing(out)  # another program may have made it meanwhile; rename takes an empty folder
        hidden.chmod(0o777 & ~_umask())
        hidden.rename(out)
    except OSError as error:
        raise _as_sentence(out, error) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)  # there is nothing to remove once it was renamed


def refuse_existing(out: Path) -> None:
    """Refuse to write over anything, a dangling link included.

    Raises:
        OutputExistsError: There is something.
    """
    if os.path.lexists(out):
        raise OutputExistsError(
            f"{out} exists already",
            expected="a name that is free",
            next_step="Choose another name, or delete it if you do not need it",
        )


def _check_space(out: Path, need_bytes: int, need_files: int) -> None:
    there = os.statvfs(out.parent)
    free_bytes = there.f_bavail * there.f_frsize
    if free_bytes < need_bytes:
        raise ResourceError(
            f"{out.parent} has {bytes_text(free_bytes)} free",
            expected=f"about {bytes_text(need_bytes)}",
            next_step="Free space, choose another file system, or ask for fewer or smaller pictures",
        )
    if there.f_files and there.f_favail < need_files:  # some file systems have no inodes to count
        raise ResourceError(
            f"{out.parent} has inodes for {there.f_favail:,} more files",
            expected=f"room for {need_files:,}",
            next_step="Delete small files, choose another file system, or ask for fewer pictures",
        )


def _as_sentence(out: Path, error: OSError) -> ResourceError:
    if error.errno in _SPACE_ERRORS:
        return ResourceError(
            f"writing {out} stopped because the disk or the quota is full ({error.strerror})",
            expected="space and inodes for all pictures",
            next_step="Free some, or choose another file system; nothing was left behind",
        )
    return ResourceError(
        f"{out} cannot be written ({error.strerror or error})",
        expected="a folder that may be made here",
        next_step="Choose another place, or ask for permission",
    )


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
