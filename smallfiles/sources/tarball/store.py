"""Read the files of an indexed tar: at random where they stand, or in order from a compressed stream.

The trap: two workers that share one file offset read each other's bytes. Every read here names its
position (`preadv`), so a descriptor may be inherited over `fork` and used by many threads.
Notebook 05 compares this with unpacking.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from smallfiles.digests import name_hashes
from smallfiles.errors import FormatError, SourceError
from smallfiles.formats.tar.archive import Archive
from smallfiles.formats.tar.streams import ForwardFile, PlainFile


@contextmanager
def as_source() -> Iterator[None]:
    """Tell what is wrong with a tar that is read as a source as a SourceError."""
    try:
        yield
    except FormatError as error:
        raise SourceError(error.got, expected=error.expected, next_step=error.next_step) from error


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
        self._rows = order.data

    def row(self, name: str) -> int:
        """Row of a name; -1 if there is none."""
        wanted = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
        place = bisect_left(self._hashes, wanted)
        while place < len(self._hashes) and self._hashes[place] == wanted:
            row: int = self._rows[place]
            if self._names[row].as_py() == name:
                return row
            place += 1
        return -1


class _Store:
    """What both stores share: the index, and messages."""

    def __init__(self, archive: Archive) -> None:
        self.path: Path = archive.path.absolute()
        self._archive = archive
        self._lookup: Lookup | None = None

    def size(self, path: str) -> int:
        """Bytes of one sample, from the index."""
        return int(self._archive.sizes[self._row(path)])

    def _row(self, path: str) -> int:
        lookup = self._lookup
        if lookup is None:
            lookup = self._lookup = Lookup(self._archive.names)
        row = lookup.row(path)
        if row < 0:
            raise SourceError(
                f"{path} is missing in {self.describe()}",
                expected="every file that the manifest names",
                next_step="Make the manifest again from this archive",
            )
        return row

    def describe(self) -> str:
        """`tar /data/train.tar`."""
        return f"tar {self.path}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lookup": None}

    def _cut(self, path: str, got: int, size: int) -> SourceError:
        return SourceError(
            f"{path} in {self.describe()} ends after {got:,} of {size:,} bytes",
            expected="a whole archive",
            next_step="Copy or download it again",
        )


class TarStore(_Store):
    """Random access to the files of a plain tar, from threads and forked workers alike.

    Args:
        archive: The index; must not be compressed.
    """

    sequential = False

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive)
        self._file: PlainFile | None = None

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one file into the start of `buffer`; see `ByteStore.read_into`."""
        row = self._row(path)
        size = int(self._archive.sizes[row])
        if size > len(buffer):
            return size
        file = self._file
        if file is None:
            with as_source():
                file = self._file = PlainFile(self.path, self._archive.file_bytes)
        try:
            got = file.read_into(buffer[:size], int(self._archive.offsets[row]))
        except OSError as error:
            raise self._cut(path, 0, size) from error
        if got != size:
            raise self._cut(path, got, size)
        return size

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_file": None}


class StreamStore(_Store):
    """The files of a compressed tar, in the archive's order only; a new pass starts at the first again.

    Args:
        archive: The index of a compressed tar.
    """

    sequential = True

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive)
        self._lock = threading.Lock()
        self._stream: ForwardFile | None = None
        self._first_row = -1

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read the next file into the start of `buffer`; files in between are passed over."""
        row = self._row(path)
        size, offset = int(self._archive.sizes[row]), int(self._archive.offsets[row])
        if size > len(buffer):
            return size  # the stream stays where it is, for the call with a larger buffer
        with self._lock, as_source():
            data = self._stream_at(row, offset, path).read(offset, size)
        if len(data) != size:
            raise self._cut(path, len(data), size)
        buffer[:size] = data
        return size

    def _stream_at(self, row: int, offset: int, path: str) -> ForwardFile:
        stream = self._stream
        if stream is not None and stream.position <= offset:
            return stream
        if stream is not None and row != self._first_row:
            raise SourceError(
                f"{path} was asked of {self.describe()} after a later file; it is compressed",
                expected="files in the archive's order, since a compressed stream has no way back",
                next_step=f"Decompress it once: gunzip -k {self.path.name}",
            )
        if stream is not None:
            stream.close()
        self._first_row = row
        self._stream = ForwardFile(self.path, self._archive.compression or "")
        return self._stream

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stream": None, "_lock": None, "_first_row": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def open_store(archive: Archive) -> TarStore | StreamStore:
    """The store that fits an archive."""
    return StreamStore(archive) if archive.compression else TarStore(archive)
