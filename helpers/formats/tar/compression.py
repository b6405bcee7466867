"""Compressed tar streams that can still be read at random.

A stream is written as many independent gzip members or zstd frames of about 1 MiB, each ending at a
sample's end. Both formats allow concatenation, so any gzip or zstd reads the file as one stream,
while a reader that knows where the frames start unpacks only what it needs.

The trap: JPEG files do not shrink, they only get slower. Text, JSON and raw pixels do. Notebook 05
measures it.

Sources: RFC 1952 (2.2, concatenated members), RFC 8878 (3, concatenated frames).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from helpers.errors import MissingPackageError
from helpers.formats.tar.options import Compression
from helpers.samples import Buffer

FRAME_BYTES = 1 << 20
_MAGIC: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_MAX_RATIO = {"gzip": 1_100, "zstd": 40_000}  # what the formats can reach on zeros, rounded up
_FEED_BYTES = {"gzip": 1 << 16, "zstd": 1 << 11}  # so that one step makes at most about 80 MB
_GZIP = 16 + zlib.MAX_WBITS


class BadFrameError(ValueError):
    """Compressed bytes that do not unpack to what they should."""


def kind_of(head: bytes) -> Compression | None:
    """The compression of a stream by its first bytes."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def compress(kind: Compression, data: Buffer) -> bytes:
    """One independent frame; no time and no name in it."""
    if kind == "gzip":
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        return packer.compress(data) + packer.flush()
    packed: bytes = _zstandard().ZstdCompressor(level=3, write_checksum=True).compress(data)
    return packed


def decompress(kind: Compression, data: Buffer, raw_bytes: int) -> bytes:
    """Unpack one frame of known size.

    Raises:
        BadFrameError: Damaged, or of another size.
    """
    if not 0 <= raw_bytes <= len(data) * _MAX_RATIO[kind]:
        raise BadFrameError(f"{len(data)} bytes cannot hold {raw_bytes}")
    pieces, room = [], raw_bytes
    for piece, _ in _steps(kind, memoryview(data), 0):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            break
    if room:
        raise BadFrameError(f"the frame has not the {raw_bytes} bytes that it should")
    return b"".join(pieces)


def frame_lengths(kind: Compression, data: memoryview) -> Iterator[tuple[int, int]]:
    """Find the frames of a stream by unpacking all of it, keeping nothing.

    Yields:
        (compressed bytes, raw bytes) of each frame.

    Raises:
        BadFrameError: The stream is damaged or cut.
    """
    position = 0
    while position < len(data):
        raw_bytes, stop = 0, position
        for piece, end in _steps(kind, data, position):
            raw_bytes, stop = raw_bytes + len(piece), end
        yield stop - position, raw_bytes
        position = stop


def _steps(kind: Compression, data: memoryview, start: int) -> Iterator[tuple[bytes, int]]:
    """Unpack the frame at `start` step by step; with each piece goes where its input ended."""
    unpacker = _unpacker(kind)
    feed = _FEED_BYTES[kind]
    for position in range(start, len(data), feed):
        chunk = data[position : position + feed]
        try:
            piece = unpacker.decompress(chunk)
        except Exception as error:  # zlib.error, ZstdError or MemoryError: all say that it is damaged
            raise BadFrameError(str(error)) from error
        yield piece, position + len(chunk) - len(unpacker.unused_data)
        if unpacker.eof:
            return
    raise BadFrameError(f"the frame at byte {start} is cut")


def _unpacker(kind: Compression) -> Any:
    return zlib.decompressobj(_GZIP) if kind == "gzip" else _zstandard().ZstdDecompressor().decompressobj()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackageError.of("zstandard", "formats", "tar shards compressed with zstd") from error
    return zstandard
