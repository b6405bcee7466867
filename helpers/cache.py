"""Where synthetic data sets are kept between notebooks, and how two kernels share them.

Each data set is made once, under a lock, and appears under its name when it is complete; a second
kernel waits and then finds it. The trap: a folder that exists and a folder that is complete are not
the same thing, which is why nothing is ever written under the final name.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from helpers.kernel import CHECKOUT
from helpers.plans import CLASSES, Wanted
from smallfiles.errors import OutputExistsError, ResourceError

LOCK_WAIT_S = 900.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def cache_folder() -> Path:
    """`COURSE_CACHE`, else `course_data/` in the checkout; in that of others a folder of one's own.

    A course that is installed once for all cannot be written to by its participants. They write to
    `COURSE_WORK`, which job scripts use too, or to their home.
    """
    told = os.environ.get("COURSE_CACHE")
    if told:
        return Path(told).expanduser().absolute()
    return CHECKOUT / "course_data" if os.access(CHECKOUT, os.W_OK | os.X_OK) else _own_folder()


def _own_folder() -> Path:
    work = os.environ.get("COURSE_WORK") or "~/smallfiles_work"
    return Path(work).expanduser().absolute() / "course_data"


def find_or_make(wanted: Wanted, count: int, folder: Path) -> tuple[Path, float]:
    """The data set in the cache, made now if it is not there yet.

    Args:
        wanted: Which one.
        count: How many images.
        folder: The cache.

    Returns:
        Its folder, and the seconds that making it took (0 if it was there).

    Raises:
        ResourceError: The cache cannot be written to, or there is no room.
    """
    path = folder / wanted.folder_name(count)
    for place in _places(path):
        if place.is_dir():  # needs no lock and no right to write: a teacher may have prepared it
            return place, 0.0
    with _writable(folder), _locked(folder / f".{path.name}.lock"):
        if path.is_dir():
            return path, 0.0
        from smallfiles.sources import synthetic

        try:
            made = synthetic.make(path, wanted.layout, count=count, classes=CLASSES, odd=wanted.odd)
        except OutputExistsError:  # where locks do not work, another kernel may have been faster
            return path, 0.0
        return path, made.seconds


def _places(path: Path) -> tuple[Path, ...]:
    """Where a data set may lie: here, or prepared in a course that is installed once for all."""
    return (path,) if os.environ.get("COURSE_CACHE") else (path, CHECKOUT / "course_data" / path.name)


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Make the folder; failures of the file system become a sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        yield
    except OSError as error:
        raise ResourceError(
            f"the course's data cannot be written to {folder} ({error.strerror or error})",
            expected="a folder that you may write to, with space and inodes left",
            next_step="Name one in a cell above this one, on a scratch file system if there is one: "
            "%env COURSE_CACHE=/path/to/folder; then run this cell again",
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel lets go if we die; none where the file system has no locks."""
    with path.open("a") as file:
        give_up = time.monotonic() + LOCK_WAIT_S
        while not _try_lock(file):
            if time.monotonic() > give_up:
                raise ResourceError(
                    f"another program has held {path} for {LOCK_WAIT_S / 60:.0f} minutes",
                    expected="it to finish making the data set",
                    next_step="Choose Kernel > Shut Down All Kernels, then run this cell again",
                )
            time.sleep(0.2)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def scratch_folder(folder: Path, notebook: str) -> Path:
    """A new folder for what a notebook writes, gone when its kernel ends.

    It lies beside the data, so that packed files and small files are compared on one file system; elsewhere
    only if the data is a teacher's, and its folder not to be written to.

    Args:
        folder: The cache.
        notebook: Number of the notebook, for the name.

    Raises:
        ResourceError: It cannot be made.
    """
    readable_only = folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK)
    place = (_own_folder() if readable_only else folder) / "scratch"
    with _writable(place):
        _sweep(place)
        made = Path(tempfile.mkdtemp(prefix=f"{notebook}-", dir=place))
        holder = (made / ".lock").open("w")  # open as long as this kernel lives
        _try_lock(holder)
    atexit.register(_remove, made, os.getpid(), holder)
    return made


def _remove(folder: Path, owner: int, holder: IO[str]) -> None:
    if os.getpid() == owner:  # a forked worker that ends must not take its parent's files with it
        holder.close()
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove what killed kernels left behind."""
    for lock in place.glob("*/.lock"):
        with contextlib.suppress(OSError), lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its kernel lives
            shutil.rmtree(lock.parent, ignore_errors=True)
