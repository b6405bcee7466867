"""Write a shard front to back with few system calls.

Headers and small samples gather in a buffer; a large sample goes out together with what waits in
front of it and behind it in one call, straight from the caller's memory. That is what brings a tar to
the speed of plain concatenation.

The trap: a header is 512 bytes, and a write of its own for each doubles the calls. Notebook 05 uses it.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from smallfiles.formats.output import OutputFile
from smallfiles.formats.tar.options import Compression
from smallfiles.formats.tar.streams import zstandard
from smallfiles.samples import Buffer

_SMALL_BYTES = 16 << 10
_BUFFER_BYTES = 256 << 10


class Output:
    """One file that grows at its end.

    Args:
        path: File that must not exist yet.
        digest: Take the content digest while writing.
        packing: Compress as one gzip member or zstd frame: many readers stop at the end of the first.

    Raises:
        OutputExistsError: `path` exists.
    """

    def __init__(self, path: Path, *, digest: bool, packing: Compression | None = None) -> None:
        self.path = path
        self.position = 0
        self._packer: Any = _packer(packing) if packing else None
        self._pending = bytearray()
        self._file = OutputFile(path, digest=digest)

    def small(self, data: bytes) -> None:
        """Append a header or another small thing."""
        self._pending += data
        self.position += len(data)
        if len(self._pending) >= _BUFFER_BYTES:
            self._flush()

    def member(self, header: bytes, data: Buffer) -> int:
        """Append a member; `data` must stay as it is.

        Returns:
            Where in the tar stream its data starts.
        """
        self._pending += header
        if len(data) < _SMALL_BYTES:
            self._pending += data
        else:
            self._flush(data)
        start = self.position + len(header)
        self.position = start + len(data)
        return start

    def finish(self) -> list[Path]:
        """Write what waits, close, and write the digest.

        Returns:
            The files written.
        """
        self._flush()
        if self._packer is not None:
            self._file.append([self._packer.flush()])
        return [*self._file.finish()]

    def abandon(self) -> None:
        """Close without finishing; nothing happens if it was finished."""
        self._file.close()

    def _flush(self, data: Buffer = b"") -> None:
        pieces = [self._pending, data]
        if self._packer is not None:
            pieces = [self._packer.compress(piece) for piece in pieces]
        self._file.append(pieces)
        self._pending = bytearray()  # the views that were written may still hold the old one


def _packer(kind: Compression) -> Any:
    """One stream, with no time and no name in it."""
    if kind == "gzip":
        return zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return zstandard().ZstdCompressor(level=3, write_checksum=True).compressobj()
