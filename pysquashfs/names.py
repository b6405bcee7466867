"""Many paths in two arrays, searched without a dictionary.

A dictionary of 1.28 million paths takes 200 MB in every worker, and reference counts copy its pages
after a fork. Two arrays stay shared.

The trap: paths sort as bytes here ("a-b" before "a/b" before "ab"), not folder by folder.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from pysquashfs import text

Array = npt.NDArray[Any]
STEP = 64  # one of so many paths is kept as an object: a landmark for the search


def view(column: Array) -> memoryview[Any]:
    """A column for access to single items, which takes a third of the time that numpy needs."""
    return memoryview(column)  # type: ignore[arg-type]


class Names(Sequence[str]):
    r"""Sorted paths, each followed by a NUL.

    Args:
        blob: A NUL, then the paths, each followed by a NUL (uint8).
        offsets: Where each path starts in `blob`, and the length of `blob` (int64).
    """

    def __init__(self, blob: Array, offsets: Array) -> None:
        self.blob = blob
        self.offsets = offsets

    @classmethod
    def of(cls, paths: Sequence[bytes]) -> Names:
        """From paths that are sorted and free of NUL."""
        blob = np.frombuffer(b"\0".join([b"", *paths, b""]) if paths else b"\0", np.uint8)
        lengths = np.fromiter(map(len, paths), np.int64, len(paths))
        return cls(blob, np.concatenate([[0], np.cumsum(lengths + 1)]) + 1)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"path {index} of {len(self)}")
        return text.decode(self.raw(index % len(self)))

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            yield text.decode(self.raw(index))

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.find(text.encode(path)) >= 0

    def raw(self, index: int) -> bytes:
        """One path as the bytes in the image."""
        starts = self._starts
        return bytes(self._bytes[starts[index] : starts[index + 1] - 1])

    def find(self, path: bytes) -> int:
        """Index of a path, or -1. About 2 µs among a million."""
        low = (bisect_right(self._landmarks, path) - 1) * STEP
        if low < 0:
            return -1
        high, starts = min(low + STEP, len(self)), self._starts
        first = starts[low] - 1
        at = bytes(self._bytes[first : starts[high]]).find(b"\0%b\0" % path)
        if at < 0:
            return -1
        found = bisect_left(starts, first + at + 1, low, high)
        return found if self.raw(found) == path else -1  # the requested path may contain a NUL

    def below(self, folder: bytes) -> range:
        """The indices of all paths inside a folder; all for an empty one."""
        if not folder:
            return range(len(self))
        return range(self._place(folder + b"/"), self._place(folder + b"0"))  # "0" follows "/"

    def _place(self, path: bytes) -> int:
        low = max(bisect_right(self._landmarks, path) - 1, 0) * STEP
        return bisect_left(range(len(self)), path, low, min(low + STEP, len(self)), key=self.raw)

    @cached_property
    def _starts(self) -> memoryview[Any]:
        return view(self.offsets)

    @cached_property
    def _bytes(self) -> memoryview[Any]:
        return view(self.blob)

    @cached_property
    def _landmarks(self) -> list[bytes]:
        return [self.raw(index) for index in range(0, len(self), STEP)]

    def __getstate__(self) -> dict[str, Any]:
        return {"blob": self.blob, "offsets": self.offsets}
