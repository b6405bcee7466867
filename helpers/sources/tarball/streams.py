"""Read a tar by position: plain files anywhere, compressed ones forward only.

A compressed stream has no positions: to reach byte n, everything before it is decompressed. So a
tar.gz can be packed in its own order, or decompressed once onto scratch (`spool`) and read at random.

The trap: `gzip` on a JPEG archive saves nothing and forbids random access. Notebook 05 measures it.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from pathlib import Path
from typing import IO, Any

import xxhash

from helpers.errors import ResourceError, SourceError

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_OPENERS: dict[str, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_STEP_BYTES = 1 << 20
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, OSError)


def compression_of(path: Path) -> str | None:
    """`gzip`, `bzip2`, `xz`, `zstd` or None, by the first bytes and not by the name.

    Raises:
        SourceError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(6)
    except OSError as error:
        raise cannot_read(path, error) from error
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def cannot_read(path: Path, error: OSError) -> SourceError:
    """The sentence for an archive that the file system does not give."""
    return SourceError(
        f"{path} cannot be read ({os.strerror(error.errno) if error.errno else error})",
        expected="a tar file that you may read",
        next_step="Check the path and its permissions (ls -l)",
    )


class PlainFile:
    """A plain tar, read by position: nothing moves, so threads and forked workers may share it.

    Args:
        path: The file.
        expected_bytes: Size it must still have, if known.
    """

    def __init__(self, path: Path, expected_bytes: int | None = None) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise cannot_read(path, error) from error
        if expected_bytes is not None and self.size != expected_bytes:
            raise SourceError(
                f"{path} has {self.size:,} bytes",
                expected=f"the {expected_bytes:,} bytes it had when it was indexed",
                next_step="Index it again, since it was changed",
            )

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def expect_short_reads(self) -> None:
        """Turn read-ahead off: it would fetch the whole archive while only its headers are wanted."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from a position; fewer at the end."""
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise cannot_read(self.path, error) from error

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from a position; return how many bytes there were."""
        filled = os.preadv(self._descriptor, (buffer,), offset)
        while 0 < filled < len(buffer):  # one call reads 2 GiB at most
            more = os.preadv(self._descriptor, (buffer[filled:],), offset + filled)
            if more == 0:
                break
            filled += more
        return filled


class ForwardFile:
    """A compressed tar, read forward only.

    Args:
        path: The file.
        compression: What `compression_of` said.
    """

    def __init__(self, path: Path, compression: str) -> None:
        if compression not in _OPENERS:
            raise SourceError(
                f"{path} is compressed with {compression}",
                expected="tar, tar.gz, tar.bz2 or tar.xz",
                next_step=f"Decompress it first: {compression} -d {path.name}",
            )
        self.path = path
        self.position = 0
        try:
            self._file: IO[bytes] = _OPENERS[compression](path, "rb")
        except OSError as error:
            raise cannot_read(path, error) from error

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from a position at or after the last one; fewer at the end.

        Raises:
            SourceError: The stream is damaged or cut.
        """
        assert offset >= self.position, "a stream cannot go back"
        while offset > self.position:
            if not self._next(min(_STEP_BYTES, offset - self.position)):
                return b""
        pieces = []
        while size > 0 and (piece := self._next(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _next(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except _BROKEN as error:
            raise _broken(self.path, error) from error
        self.position += len(data)
        return data


def _broken(path: Path, error: Exception) -> SourceError:
    return SourceError(
        f"{path} cannot be decompressed ({error})",
        expected="a whole compressed file",
        next_step="Check it (gzip -t), and copy or download it again",
    )


def spool(path: Path, folder: Path) -> Path:
    """Decompress a tar once, onto scratch, so that it can be read at random.

    Args:
        path: A compressed tar.
        folder: Where the plain one goes; made if missing. One of the same archive is used again.

    Returns:
        The plain tar.

    Raises:
        SourceError: The stream is damaged or cut; nothing is left behind.
        ResourceError: It cannot be written there.
    """
    compression = compression_of(path)
    if compression is None:
        return path
    about = path.stat()
    mark = xxhash.xxh3_64_hexdigest(f"{path.absolute()}\0{about.st_size}\0{about.st_mtime_ns}".encode())
    out = folder / f"{path.name.partition('.')[0]}-{mark}.tar"
    if out.exists():
        return out
    aside = folder / f".{out.name}.{os.getpid()}"
    source = ForwardFile(path, compression)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            while data := source.read(source.position, _STEP_BYTES):
                file.write(data)
        aside.replace(out)
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be decompressed into {folder} ({error})",
            expected="a folder with room for the plain archive",
            next_step="Choose a scratch folder with more room",
        ) from error
    finally:
        source.close()
        aside.unlink(missing_ok=True)
    return out
