"""Stores that read the files of a source: whole files of a folder, or parts of one file by their names.

The trap: a path of a table or manifest may lead out of its folder through a link, even one that was made
after the folder was listed. So each read looks again. Notebook 01 times these reads.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from smallfiles.digests import name_hashes
from smallfiles.errors import SourceError, refuse_shortage
from smallfiles.links import Boundary
from smallfiles.manifest.listing import HEAD_BYTES
from smallfiles.samples import Buffer
from smallfiles.storage import answered, remember

# Without O_NONBLOCK a named pipe in the tree would block the run for ever.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class FolderStore:
    """Reads whole files of a folder: one open, one read, one close.

    Each open is a round trip on a parallel file system. The size is checked after the read, when the client
    already has it.

    Args:
        root: What paths are relative to.
        follow_links: Allow links that lead out of it.
    """

    sequential = False

    def __init__(self, root: Path, *, follow_links: bool = False) -> None:
        self.root = Path(root).absolute()
        self._prefix = str(self.root).rstrip("/") + "/"
        remember(self.root)
        self._boundary = Boundary(self.root, follow_links=follow_links)
        self._flags = _FLAGS if follow_links else _FLAGS | os.O_NOFOLLOW

    def size(self, path: str) -> int:
        """Bytes of one file."""
        try:
            return answered(self._prefix + path, self._boundary.stat, path).st_size
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read a whole file into the start of `buffer`; see `ByteStore.read_into`."""
        try:
            return answered(self._prefix + path, self._read_into, path, buffer)
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def _read_into(self, path: str, buffer: memoryview) -> int:
        self._boundary.check_folder_of(path)
        descriptor = self._opened(path)
        try:
            got = os.readv(descriptor, (buffer,))
            about = os.fstat(descriptor)
            if about.st_size != got or not S_ISREG(about.st_mode):
                got = self._rest(path, descriptor, buffer, got)
            return got
        finally:
            os.close(descriptor)

    def _opened(self, path: str) -> int:
        try:
            return os.open(self._prefix + path, self._flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        descriptor = os.open(self._prefix + path, _FLAGS)  # a link
        try:
            self._boundary.check(path)
        except SourceError:
            os.close(descriptor)
            raise
        return descriptor

    def head(self, path: str) -> bytes:
        """The first bytes of a file: enough for the header of a picture."""

        def read() -> bytes:
            with (self.root / path).open("rb") as file:
                return file.read(HEAD_BYTES)

        return answered(self._prefix + path, read)

    def describe(self) -> str:
        """`folder /data/imagenet`."""
        return f"folder {self.root}"

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def _rest(self, path: str, descriptor: int, buffer: memoryview, got: int) -> int:
        """Complete a short read, or return the size of a file larger than the buffer."""
        about = os.fstat(descriptor)
        if not S_ISREG(about.st_mode):
            raise self._bad(path, "is no regular file", "a file that can be read to its end")
        while got < len(buffer):
            more = os.readv(descriptor, (buffer[got:],))
            if more == 0:
                return got
            got += more
        return max(got, about.st_size)

    def _unreadable(self, path: str, error: OSError | ValueError) -> SourceError:
        refuse_shortage(error, self._prefix + path)
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ENOENT:
            return self._bad(path, "is missing", "every file that the manifest names")
        if number == errno.EISDIR:
            return self._bad(path, "is a folder", "a file")
        reason = os.strerror(number) if number else str(error)
        return self._bad(path, f"cannot be read ({reason})", "a file that you may read")

    def _bad(self, path: str, what: str, expected: str) -> SourceError:
        return SourceError(
            f"{self._prefix}{path} {what}",
            expected=expected,
            next_step="Check the file (ls -l), or make the manifest again if the data changed",
        )


class NamedStore:
    """Base of stores that read from one file: finds the row of a name.

    Args:
        path: The file.
    """

    kind, made_from, sequential = "file", "this file", False
    of_process: tuple[str, ...] = ("_lookup",)
    """What each process has of its own, from `_begin`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._state = self._state_of_file()
        self._begin()

    def _begin(self) -> None:
        self._lookup: Lookup | None = None

    def _names(self) -> pa.StringArray:
        raise NotImplementedError

    def _bytes(self, path: str) -> Buffer:
        raise NotImplementedError

    def size(self, path: str) -> int:
        """Bytes of one file."""
        return len(self._bytes(path))

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read a file into the start of `buffer`; see `ByteStore.read_into`."""
        data = self._bytes(path)
        if len(data) <= len(buffer):
            buffer[: len(data)] = data
        return len(data)

    def _row(self, path: str) -> int:
        lookup = self._lookup
        if lookup is None:
            lookup = self._lookup = Lookup(self._names())
        row = lookup.row(path)
        if row < 0:
            raise self._missing(path)
        return row

    def _missing(self, path: str) -> SourceError:
        return SourceError(
            f"{path} is missing in {self.describe()}",
            expected="every sample of the manifest",
            next_step=f"Make the manifest again from {self.made_from}",
        )

    def check_unchanged(self) -> None:
        """Refuse a file that was written again since it was looked at: its samples may lie elsewhere now.

        Raises:
            SourceError: Its size or its time of modification is another.
        """
        if self._state_of_file() != self._state:
            raise SourceError(
                f"{self.path} was changed while it was read",
                expected="the file that it was in the beginning",
                next_step="Run it again when nothing writes to it",
            )

    def _state_of_file(self) -> tuple[int, int] | None:
        try:
            status = answered(self.path, self.path.stat)
        except OSError:
            return None  # reading says why
        return None if S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)

    def describe(self) -> str:
        """`tar /data/train.tar`."""
        return f"{self.kind} {self.path}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.of_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class Lookup:
    """Row of a name among millions, without a dict: sorted 64-bit hashes, then the name itself.

    Args:
        names: Unique names.
    """

    def __init__(self, names: pa.StringArray) -> None:
        self._names = names
        hashes = name_hashes(names)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order].data
        self._rows = order.astype(np.uint32).data

    def row(self, name: str) -> int:
        """Row of a name; -1 if there is none."""
        wanted = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
        at = bisect_left(self._hashes, wanted)
        while at < len(self._hashes) and self._hashes[at] == wanted:
            row: int = self._rows[at]
            if self._names[row].as_py() == name:
                return row
            at += 1
        return -1
