"""Read a compressed tar by position, forward only.

To reach byte n of a compressed stream, everything before it must be decompressed. So a tar.gz is a source
that is read in its own order, and it is never a shard.

The trap: `gzip` saves nothing on JPEG files and makes random access impossible. Notebook 05 measures it.

Sources: RFC 1952 (2.2, concatenated members), RFC 8878 (3, concatenated frames).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shlex
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from smallfiles.errors import DamagedFileError, FormatError, MissingPackageError, refuse_shortage
from smallfiles.formats.bytefile import ByteFile, RawFile, damaged, refuse_bomb
from smallfiles.samples import Buffer
from smallfiles.storage import answered

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MODULES = {"gzip": "gzip", "bzip2": "bz2", "xz": "lzma"}
_STEP_BYTES = 1 << 20
_KEPT_BYTES = 16 << 20
_ZSTD_FEED_BYTES = 1 << 11  # zeros shrink 40,000 times: one step makes at most about 80 MB


def compression_of(path: Path) -> str | None:
    """Return the compression of a file: `gzip`, `bzip2`, `xz`, or `zstd`.

    Return None if it is not compressed.

    The first bytes of the file decide, not its name.

    Raises:
        FormatError: The file cannot be read.
    """
    try:
        head = answered(path, _first_bytes, path)
    except OSError as error:
        raise cannot_read(path, error) from error
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(6)


def _opened(path: Path) -> io.BufferedReader:
    """Open a file for a library. Its reads wait if the storage does not answer."""
    return io.BufferedReader(RawFile(ByteFile(path, "pread")), _STEP_BYTES)


def cannot_read(path: Path, error: OSError) -> FormatError:
    """Return the error for an archive that the file system cannot read."""
    refuse_shortage(error, path)
    return FormatError(
        f"{path} cannot be read ({os.strerror(error.errno) if error.errno else error})",
        expected="a tar file that you may read",
        next_step="Check the path and its permissions (ls -l)",
    )


def cannot_seek(path: Path) -> FormatError:
    """Return the error for a compressed tar from which samples would have to be read at random."""
    name = shlex.quote(path.name)
    unpack = f"unzstd --rm {name}" if path.suffix == ".zst" else f"gunzip {name}"
    return FormatError(
        f"{path} is compressed, so that no sample in it can be read at random",
        expected="an uncompressed tar",
        next_step=f"Decompress it ({unpack}), or pack it again into .tars as a source; "
        "smallfiles 0.1.0 reads the compressed shards that it packed",
    )


class _Stream(Protocol):
    def read(self, size: int, /) -> Buffer:
        """Return up to `size` bytes. At the end of the stream, return no bytes."""

    def close(self) -> None:
        """Close the file."""


class _ZstdStream:
    """A stream that decompresses the zstd frames of a file, one after the other.

    It refuses a truncated frame, which `zstandard` alone would accept as complete.
    """

    def __init__(self, path: Path) -> None:
        self._zstandard = zstandard()
        self._file = _opened(path)
        self._frame: Any = None
        self._fed = b""
        self._made = memoryview(b"")

    def read(self, size: int, /) -> Buffer:
        while not self._made:
            self._fed = self._fed or self._file.read(_ZSTD_FEED_BYTES)
            if not self._fed:
                break
            self._made = memoryview(b"")  # frees what the last step made
            self._made = memoryview(self._unpack())
        piece, self._made = self._made[:size], self._made[size:]
        if not self._fed and not piece and self._frame is not None:
            raise EOFError("it ends inside a zstd frame")
        return piece

    def _unpack(self) -> bytes:
        self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
        try:
            made: bytes = self._frame.decompress(self._fed)
        except (self._zstandard.ZstdError, MemoryError) as error:
            raise EOFError(str(error)) from error
        self._fed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return made

    def close(self) -> None:
        self._file.close()


def zstandard() -> Any:
    """Import the package for zstd, and return it. If it is missing, raise an error that names the package."""
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingPackageError.of_import(error, "tar files compressed with zstd") or error from error


class ForwardFile:
    """A compressed tar whose decompressed bytes are read in one direction.

    Args:
        path: The file.
        compression: The return value of `compression_of`.
        trusted: Whether the decompressed size is already known and accepted. Then it is not limited.
    """

    def __init__(self, path: Path, compression: str, *, trusted: bool = False) -> None:
        self.path = path
        self.position = 0
        self._stored = None if trusted else answered(path, path.stat).st_size
        self._file: _Stream
        try:
            if compression == "zstd":
                self._file = _ZstdStream(path)
            else:
                self._file = importlib.import_module(_MODULES[compression]).open(_opened(path), "rb")
        except OSError as error:
            raise cannot_read(path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            self.close()

    def fetch(self, start: int, stop: int) -> bytes:
        """Return decompressed bytes from a position at or after the last one. At the end, there may be fewer.

        Raises:
            DamagedFileError: The stream is damaged or truncated.
        """
        pieces = [*self._pieces(start, stop)]
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def fetch_into(self, start: int, buffer: memoryview) -> int:
        """Read decompressed bytes into `buffer`. Return the number of bytes that were read."""
        got = 0
        for piece in self._pieces(start, start + len(buffer)):
            buffer[got : got + len(piece)] = piece
            got += len(piece)
        return got

    def _pieces(self, start: int, stop: int) -> Iterator[Buffer]:
        assert start >= self.position, "a stream cannot go back"
        while start > self.position:
            if not self._next(start - self.position):
                return
        while self.position < stop and (piece := self._next(stop - self.position)):
            yield piece

    def _next(self, size: int) -> Buffer:
        try:
            data = self._file.read(min(size, _STEP_BYTES))  # a header may announce any size
        except Exception as error:
            if isinstance(error, EOFError | OSError | zlib.error) or "LZMA" in type(error).__name__:
                raise _broken(self.path, error) from error
            raise
        self.position += len(data)
        if self._stored is not None:
            refuse_bomb(self.path, self._stored, self.position)
        return data


def _broken(path: Path, error: Exception) -> DamagedFileError:
    what = f"it cannot be decompressed ({error})"
    return damaged(path, what, "a whole compressed file", "Check it (gzip -t), and copy or download it again")


class StreamedStore:
    """The decompressed bytes of a compressed tar, read by position.

    Positions may only grow, but the tar may be read in several passes.

    Args:
        path: The tar.
        compression: The return value of `compression_of`, which is also the name of the decompression tool.
        size: Size of the decompressed tar in bytes.
    """

    is_stored = False

    def __init__(self, path: Path, compression: str, size: int) -> None:
        self.path, self.size, self._compression = path, size, compression
        self._lock = threading.Lock()  # belongs to one process: a fork opens a store of its own
        self._stream: ForwardFile | None = None
        self._last: tuple[int, int, bytes] = (0, 0, b"")
        self._first = size

    def read(self, start: int, stop: int) -> bytes:
        """Return decompressed bytes.

        Raises:
            FormatError: The bytes lie before those of the last read, and do not begin another pass.
            DamagedFileError: The stream is damaged, or ends before `stop`.
        """
        with self._lock:
            if self._last[:2] != (start, stop):
                self._last = (start, stop, self._at(start).fetch(start, stop))
            data = self._last[2]
        if len(data) != stop - start:
            raise self._cut(start, stop)
        return data

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Read a member into a buffer. A member of more than 16 MiB needs no additional memory."""
        stop = start + len(buffer)
        if len(buffer) <= _KEPT_BYTES:
            buffer[:] = self.read(start, stop)
            return
        with self._lock:
            if self._at(start).fetch_into(start, buffer) != len(buffer):
                raise self._cut(start, stop)

    def _cut(self, start: int, stop: int) -> DamagedFileError:
        return _broken(self.path, EOFError(f"bytes {start:,} to {stop:,} are not all there"))

    def prefetch(self, start: int, stop: int) -> None:
        """Do nothing, because only the next bytes of a stream could be fetched ahead."""

    def _at(self, start: int) -> ForwardFile:
        """Return a stream whose position is at most `start`. If necessary, begin another pass."""
        if self._stream is not None and self._stream.position <= start:
            return self._stream
        if self._stream is not None:
            if start > self._first:
                raise self._no_way_back()
            self._stream.close()
        self._first = min(self._first, start)
        self._stream = ForwardFile(self.path, self._compression, trusted=True)
        return self._stream

    def _no_way_back(self) -> FormatError:
        name = shlex.quote(self.path.name)
        return FormatError(
            f"{self.path} was asked for a sample before the last one; it is compressed",
            expected="samples in stored order, since each step back would unpack it again from its start",
            next_step="Read it in stored order; to read it at random, unpack it once "
            f"({self._compression} -dk {name}) or pack it again without compression (smallfiles pack)",
        )
