"""The errors of this package: a sentence with what was found, what was expected, and what to do.

The trap: if reading a damaged image ends in `struct.error` or `MemoryError` five calls deep, nobody knows
which file is broken. Notebook 06 damages an image and reads the sentence.
"""

from __future__ import annotations

from typing import Any


class SquashFSError(Exception):
    """A failure, reported as one sentence.

    Args:
        got: What was found, with the path of the image; no full stop.
        expected: What should have been there.
        next_step: What the reader can do now, in the imperative.
    """

    def __init__(self, got: str, *, expected: str, next_step: str) -> None:
        self.got = got.rstrip(". ")
        self.expected = expected.rstrip(". ")
        self.next_step = next_step.rstrip(". ")
        super().__init__(f"{self.got}; expected {self.expected}. {self.next_step}.")

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers send errors to their parent by pickle; keyword-only arguments need help there.
        return _rebuild, (type(self), self.got, self.expected, self.next_step)


def _rebuild(kind: type[SquashFSError], got: str, expected: str, next_step: str) -> SquashFSError:
    return kind(got, expected=expected, next_step=next_step)


class DamagedImageError(SquashFSError):
    """The image is cut off, changed, or was never a squashfs image."""

    @classmethod
    def of(cls, path: object, fault: str, expected: str) -> DamagedImageError:
        """The error for an image that cannot be trusted."""
        return cls(f"{path}: {fault}", expected=expected, next_step="Copy or pack the image again")


class NotFoundError(SquashFSError, KeyError):
    """A path or an index is not in the image; also a KeyError, so that lookups behave as in a dict."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it in quotes


class ImageIndexError(SquashFSError, IndexError):
    """A number beyond the files of an image; also an IndexError, so that iteration protocols end."""


class ClosedError(SquashFSError):
    """The image was used after `close()`."""


class MissingToolError(SquashFSError):
    """An optional package, library or command is not installed."""
