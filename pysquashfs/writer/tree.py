"""The names of an image while it is written, as columns: about 20 bytes per file and its name.

The format needs every name until the end, since a folder is listed in order of its names, while items come
in order of the data. A million `str` would take four times the memory.

The trap: with a name such as `../x`, or one that is both a file and a folder, an image unpacks to the wrong
place. Such names are refused; equal names are found when they are sorted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout, text
from pysquashfs.errors import SquashFSError

Array = npt.NDArray[Any]
MAX_PATH_BYTES = 4095  # PATH_MAX of Linux, less the NUL
_BAD_PARTS = (b"", b".", b"..")


class Tree:
    """Folders and files by number; 0 is the root, and a parent has a lower number than its children."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {b"": 0}
        self._folder_names: list[bytes] = [b""]
        self._parents = array("I", [0])
        self._blob = bytearray()
        self._ends = array("Q")
        self._folder_of = array("I")

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self._ends)

    @property
    def folders(self) -> int:
        """Number of folders, including the root."""
        return len(self._folder_names)

    def add(self, name: str) -> int:
        """Add the name of the next file; returns its number.

        Raises:
            SquashFSError: It is not a relative path, or too long.
        """
        try:
            path = text.encode(name)
        except (UnicodeEncodeError, TypeError, AttributeError) as error:
            raise _refused(name, f"cannot be encoded ({error})") from error
        folder, _, last = path.rpartition(b"/")
        number = self._numbers.get(folder)
        if number is None or path[:1] == b"/":
            number = self._new_folder(path, folder, name)
        if last in _BAD_PARTS or len(last) > layout.LINUX_NAME_BYTES or b"\0" in last:
            raise _refused(name, _fault(path))
        if len(path) > MAX_PATH_BYTES:
            raise _refused(name, f"has {len(path):,} bytes")
        self._blob += last
        self._ends.append(len(self._blob))
        self._folder_of.append(number)
        return len(self._ends) - 1

    def _new_folder(self, path: bytes, folder: bytes, name: str) -> int:
        fault = _fault(path)
        if fault:
            raise _refused(name, fault)
        parts = folder.split(b"/")
        number = 0
        for depth, part in enumerate(parts):
            above = b"/".join(parts[: depth + 1])
            found = self._numbers.get(above)
            if found is None:
                found = self._numbers[above] = len(self._folder_names)
                self._folder_names.append(part)
                self._parents.append(number)
            number = found
        return number

    def file_name(self, number: int) -> bytes:
        """The last part of the path of a file."""
        start = self._ends[number - 1] if number else 0
        return bytes(self._blob[start : self._ends[number]])

    def folder_path(self, number: int) -> str:
        """The path of a folder, for messages; it ends in a slash, and is empty for the root."""
        parts: list[bytes] = []
        while number:
            parts.append(self._folder_names[number])
            number = self._parents[number]
        return "".join(text.decode(part) + "/" for part in reversed(parts))

    def counts(self) -> Array:
        """How many files each folder has."""
        return np.bincount(np.array(self._folder_of, np.uint32), minlength=self.folders)

    def from_last_to_first(self) -> Iterator[tuple[int, int, list[int], list[int]]]:
        """Each folder, before the folder that it is in.

        Yields:
            Its number, the number of its parent (the root is its own), and the numbers of the files and of
            the folders in it.
        """
        files = np.argsort(np.array(self._folder_of, np.uint32), kind="stable").astype(np.uint32)
        bounds = np.concatenate([[0], np.cumsum(self.counts())])
        parents = np.array(self._parents, np.int64)
        folders = np.argsort(parents[1:], kind="stable") + 1
        folder_bounds = np.searchsorted(parents[folders], np.arange(self.folders + 1))
        for folder in reversed(range(self.folders)):
            inside = folders[folder_bounds[folder] : folder_bounds[folder + 1]]
            rows = files[bounds[folder] : bounds[folder + 1]]
            yield folder, self._parents[folder], rows.tolist(), inside.tolist()

    def sorted_listing(
        self, folder: int, files: Sequence[int], folders: Sequence[int]
    ) -> Iterator[tuple[int, bytes]]:
        """The entries of a folder in the order of their names: row in `files` + `folders`, and name.

        Raises:
            SquashFSError: Two names are equal.
        """
        names = [self.file_name(file) for file in files] + [self._folder_names[child] for child in folders]
        previous = b""
        for row in sorted(range(len(names)), key=names.__getitem__):
            name = names[row]
            if name == previous:
                raise SquashFSError(
                    f"the name {self.folder_path(folder) + text.decode(name)!r} comes twice among the items, "
                    "or as a file and as a folder",
                    expected="each name once",
                    next_step="Give one of them another name",
                )
            previous = name
            yield row, name


def _fault(path: bytes) -> str:
    """What is wrong with a path; empty if nothing is."""
    if not path:
        return "is empty"
    if path[:1] == b"/":
        return "is absolute"
    if b"\0" in path:
        return "holds a NUL"
    parts = path.split(b"/")
    if b".." in parts:
        return "leads out of the image"
    if any(part in _BAD_PARTS for part in parts):
        return "has a part that is empty or '.'"
    longest = max(map(len, parts))
    if longest > layout.LINUX_NAME_BYTES:
        return f"has a part of {longest} bytes"
    return ""


def _refused(name: object, fault: str) -> SquashFSError:
    shown = repr(name) if len(repr(name)) <= 200 else repr(name)[:200] + "…"
    return SquashFSError(
        f"the name {shown} {fault}",
        expected="a relative path without '.', '..' and NUL, with parts of at most 255 bytes, 4,095 in all",
        next_step="Give the file another name",
    )
