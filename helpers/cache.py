"""The cache of synthetic data sets, shared by all notebooks and kernels.

Each data set is made once and gets its name when it is complete (`smallfiles.atomic`); a second kernel waits
for it. The trap: a folder that exists is not necessarily complete, so nothing is ever written under the
final name.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from helpers.kernel import CHECKOUT
from helpers.plans import CLASSES
from smallfiles import locks
from smallfiles.errors import BusyError, OutputExistsError, ResourceError

LOCK_WAIT_S = 900.0
_LOCK = ".lock"


def cache_folder() -> Path:
    """`COURSE_CACHE`, else `course_data/` in the checkout, or a private folder if that is read-only.

    Participants cannot write to a course that is installed for all users. They write to `COURSE_WORK`, which
    job scripts use too, or to their home.
    """
    named = os.environ.get("COURSE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    return CHECKOUT / "course_data" if os.access(CHECKOUT, os.W_OK | os.X_OK) else own_folder()


def own_folder() -> Path:
    """The participant's folder of course data outside a read-only checkout."""
    work = os.environ.get("COURSE_WORK") or "~/smallfiles_work"
    return Path(work).expanduser().absolute() / "course_data"


def find_or_make(layout: str, count: int, folder: Path) -> tuple[Path, float]:
    """The data set in the cache, made now if it is missing.

    Args:
        layout: Layout of its files.
        count: Number of images.
        folder: The cache.

    Returns:
        Its folder, and the seconds spent on making it (0 if it existed).

    Raises:
        ResourceError: The cache cannot be written to, or is full.
    """
    path = folder / f"{layout}-{count}"
    for place in places_of(path):
        if place.is_dir():  # needs no lock and no write permission: a teacher may have prepared it
            return place, 0.0
    with writable(folder):
        return _made(layout, count, path)


def _made(layout: str, count: int, path: Path) -> tuple[Path, float]:
    """Make it, or wait for another kernel that is making it."""
    from smallfiles.sources import synthetic

    give_up = time.monotonic() + LOCK_WAIT_S
    while not path.is_dir():
        try:
            return path, synthetic.make(path, layout, count=count, classes=CLASSES).seconds
        except OutputExistsError:
            break
        except BusyError as error:
            if time.monotonic() > give_up:
                raise ResourceError(
                    f"another program has been making {path} for {LOCK_WAIT_S / 60:.0f} minutes",
                    expected="it to finish",
                    next_step="Choose Kernel > Shut Down All Kernels, then run this cell again",
                ) from error
            time.sleep(0.2)
    return path, 0.0


def places_of(path: Path) -> tuple[Path, ...]:
    """Where a data set may be: here, or prepared in a course that is installed for all users."""
    return (path,) if os.environ.get("COURSE_CACHE") else (path, CHECKOUT / "course_data" / path.name)


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
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


def scratch_folder(folder: Path, notebook: str) -> Path:
    """A new folder for the output of a notebook, removed when its kernel ends.

    It is next to the data, so that packed files and small files are compared on one file system; elsewhere
    only if the folder of the data is read-only.

    Args:
        folder: The cache.
        notebook: Number of the notebook, for the name.

    Raises:
        ResourceError: It cannot be created.
    """
    readable_only = folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK)
    place = (own_folder() if readable_only else folder) / "scratch"
    with writable(place):
        _sweep(place)
        made = Path(tempfile.mkdtemp(prefix=f"{notebook}-", dir=place))
        with contextlib.suppress(ResourceError):  # without locks, leftovers of killed kernels stay
            locks.try_lock(made / _LOCK, shared=False)  # held as long as this kernel lives
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker must not remove the files of its parent
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove leftovers of killed kernels."""
    for path in place.glob(f"*/{_LOCK}"):
        with contextlib.suppress(ResourceError):
            descriptor = locks.try_lock(path, shared=False, create=False)  # None while its kernel lives
            if descriptor is not None:
                shutil.rmtree(path.parent, ignore_errors=True)
                locks.unlock(descriptor)
