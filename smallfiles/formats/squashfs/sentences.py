"""Errors of `pysquashfs`, which knows nothing of this package, as errors of this package.

The trap: an error of a library that reaches a user as its traceback tells him nothing to do. The
sentences are kept, their kind is translated. Notebook 06 breaks an image and reads one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pysquashfs.errors import DamagedImageError, MissingToolError, SquashFSError
from smallfiles.errors import DamagedFileError, FormatError, MissingPackageError, SmallfilesError


@contextmanager
def as_sentences() -> Iterator[None]:
    """Turn a SquashFSError of what is done inside into a SmallfilesError."""
    try:
        yield
    except SquashFSError as error:
        kind: type[SmallfilesError] = FormatError
        if isinstance(error, DamagedImageError):
            kind = DamagedFileError
        elif isinstance(error, MissingToolError):
            kind = MissingPackageError
        raise kind(error.got, expected=error.expected, next_step=error.next_step) from error
