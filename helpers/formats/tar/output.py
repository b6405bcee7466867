"""Write a shard front to back with few system calls.

Headers and small samples gather in a buffer; a large sample goes out together with what waits in
front of it in one call, straight from the caller's memory. That is what brings a tar to the speed
of plain concatenation.

The trap: a header is 512 bytes, and a write of its own for each doubles the calls. Notebook 05 uses it.
"""

from __future__ import annotations

from pathlib import Path

from helpers.formats.output import OutputFile
from helpers.formats.tar import compression
from helpers.formats.tar.options import Compression
from helpers.samples import Buffer

_SMALL_BYTES = 16 << 10
_BUFFER_BYTES = 256 << 10


class Output:
    """One file that grows at its end.

    Args:
        path: File that must not exist yet.
        digest: Take the content digest while writing.
        packing: Compress in independent frames.

    Raises:
        OutputExistsError: `path` exists.
    """

    def __init__(self, path: Path, *, digest: bool, packing: Compression | None = None) -> None:
        self.path = path
        self.position = 0
        self.frames = [(0, 0)]
        self._packing = packing
        self._pending = bytearray()
        self._file = OutputFile(path, digest=digest)

    def small(self, data: bytes) -> None:
        """Append a header or another small thing."""
        self._pending += data
        self.position += len(data)
        if len(self._pending) >= _BUFFER_BYTES and self._packing is None:
            self._flush()

    def member(self, header: bytes, data: Buffer) -> int:
        """Append a member; `data` may be overwritten afterwards.

        Returns:
            Where in the tar stream its data starts.
        """
        self._pending += header
        if self._packing or len(data) < _SMALL_BYTES:
            self._pending += data
        else:
            self._flush(data)
        start = self.position + len(header)
        self.position = start + len(data)
        return start

    def sample_end(self) -> None:
        """Say that a sample is complete: a frame may end here."""
        if self._packing and len(self._pending) >= compression.FRAME_BYTES:
            self._end_frame()

    def finish(self) -> list[Path]:
        """Write what waits, close, and write the digest.

        Returns:
            The files written.
        """
        if self._packing:
            self._end_frame()
        else:
            self._flush()
        return [*self._file.finish()]

    def abandon(self) -> None:
        """Close without finishing; nothing happens if it was finished."""
        self._file.close()

    def _end_frame(self) -> None:
        assert self._packing is not None
        if self._pending:
            self._file.append([compression.compress(self._packing, self._pending)])
            self._pending.clear()
            self.frames.append((self._file.position, self.position))

    def _flush(self, data: Buffer = b"") -> None:
        self._file.append([self._pending, data])
        self._pending = bytearray()  # the views that were written may still hold the old one
