"""Every error is a sentence: what we got, what we expected, what to do next.

A participant who meets a traceback from a library stops. So each failure that a user can cause,
or a file system can, is raised as one of these, and the command line prints the sentence alone
and exits with code 1 (2 for a command line that makes no sense).

    SmallfilesError
    ├── UsageError            the command or the call makes no sense
    ├── MissingPackageError   an optional package is not installed
    ├── SourceError           a source tree, archive or file is not what it should be
    ├── ManifestError         a manifest is wrong
    ├── FormatError           a packed file is not what it should be
    │   ├── DamagedFileError  … because bytes are missing or changed
    │   └── ReaderClosedError … because it was closed
    ├── OutputExistsError     we would have to overwrite something
    ├── PackError             packing stopped; nothing was published
    │   └── BusyError         … because another run writes the same
    ├── ResourceError         not enough space, inodes or memory
    └── SubmitError           a job was not submitted
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from smallfiles.keys import printable

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_WAY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


class SmallfilesError(Exception):
    """A failure told as a sentence; control characters of names in it are written as escapes.

    Args:
        got: What we found, with the path; no full stop.
        expected: What should have been there.
        next_step: What the reader can do now, in the imperative.
    """

    def __init__(self, got: str, *, expected: str, next_step: str) -> None:
        self.got = printable(got).rstrip(". ")
        self.expected = printable(expected).rstrip(". ")
        self.next_step = printable(next_step).rstrip(". ")
        super().__init__(f"{self.got}; expected {self.expected}. {self.next_step}.")

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers send errors to their parent by pickle; keyword-only arguments need help there.
        return _rebuild, (type(self), self.got, self.expected, self.next_step)


def _rebuild(kind: type[SmallfilesError], got: str, expected: str, next_step: str) -> SmallfilesError:
    return kind(got, expected=expected, next_step=next_step)


class UsageError(SmallfilesError):
    """The command or the call makes no sense."""


class MissingPackageError(SmallfilesError):
    """An optional package is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingPackageError:
        """The sentence with the exact line that installs `package` (an extra of this project)."""
        return cls(
            f"the Python package {package} is not installed",
            expected=f"it for {purpose}",
            next_step=f"Run: python -m pip install -c requirements.lock -e '.[{extra}]'",
        )


class SourceError(SmallfilesError):
    """A source tree, archive or file is not what it should be."""


class ManifestError(SmallfilesError):
    """A manifest is wrong."""


class FormatError(SmallfilesError):
    """A packed file is not what it should be."""


class DamagedFileError(FormatError):
    """A packed file has missing or changed bytes."""


class ReaderClosedError(FormatError):
    """A reader was used after `close()`."""


class OutputExistsError(SmallfilesError):
    """We would have to overwrite something."""


class PackError(SmallfilesError):
    """Packing stopped; nothing was published.

    `faults` lists the samples that were the reason, where there are such.
    """

    faults: tuple[Any, ...] = ()


class BusyError(PackError):
    """Another run writes the same output."""


class ResourceError(SmallfilesError):
    """Not enough space, inodes or memory."""


class SubmitError(SmallfilesError):
    """A job was not submitted."""


@contextlib.contextmanager
def retold(caught: type[SmallfilesError], kind: type[SmallfilesError]) -> Iterator[None]:
    """Raise an error of what is done inside as one of another kind, with the same sentence."""
    try:
        yield
    except caught as error:
        raise kind(error.got, expected=error.expected, next_step=error.next_step) from error


def first_few(items: Iterable[object], total: int, limit: int = 5) -> str:
    """Name the first few of many: `a, b, c and 1,279 more`.

    A list of a million names helps nobody; the count and a few examples do.
    """
    shown = [printable(str(item)) for _, item in zip(range(limit), items, strict=False)]
    rest = total - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest > 0 else "")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing `path` into a sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> SmallfilesError:
    """The sentence for an OSError: the name is taken, no room, no such folder or permission, or worse."""
    if isinstance(error, FileExistsError) and error.filename in map(str, path.parents):
        return PackError(
            f"{path} cannot be written, since {error.filename} is a file",
            expected="folders all the way to the output",
            next_step="Choose another place for the output",
        )
    if isinstance(error, FileExistsError):
        return OutputExistsError(
            f"{path} exists already",
            expected="a name that is free",
            next_step="Choose another name, or remove it if it is not needed",
        )
    got = f"{path} cannot be written ({error.strerror or error})"
    if error.errno in _NO_ROOM:
        return ResourceError(
            got,
            expected="free blocks and free inodes, within your quota",
            next_step="Free some (df -h and df -i, or your site's quota command, tell) and run it again",
        )
    if error.errno in _NO_WAY:
        return ResourceError(
            got,
            expected="a folder that exists and that you may write to",
            next_step="Choose another place for the output",
        )
    return PackError(
        got,
        expected="a file system that takes it",
        next_step="Run it again, or choose another place for the output",
    )
