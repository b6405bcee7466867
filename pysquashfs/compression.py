"""Compress and decompress one block by the name of its compressor, up to a limit.

The trap: a few hundred bytes can expand to gigabytes, and a frame may contain a wrong size. No call here
returns more than `limit` bytes (and one more, to detect it). zstd and lz4 are optional packages; they are
imported when an image needs them. Images of other makers are read with all of `NAMES`; ours are written with
gzip or zstd, since lz4 and xz are worse at either end.
"""

from __future__ import annotations

import lzma
import threading
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pysquashfs.errors import MissingToolError, SquashFSError

Buffer = bytes | bytearray | memoryview
NAMES = ("gzip", "zstd", "lz4", "xz")
MOST_TIMES, FREE_BYTES = 200, 1 << 30
"""Compressed bytes may become so many times as many, and always so many; more is a decompression bomb."""
LEVELS = {"gzip": (1, 9), "zstd": (1, 22), "xz": (0, 9)}
"""The lowest and the highest level of those that are written; xz by libsquashfs only."""
DEFAULT_LEVELS = {"gzip": 6, "zstd": 3, "xz": 6}

_PACKAGES = {"zstd": "zstandard", "lz4": "lz4.block"}
_MAX_WINDOW_BYTES = 8 << 20  # blocks have at most 1 MiB, so a larger window is wrong
_XZ_MEMORY_BYTES = 64 << 20
_of_thread = threading.local()


class BlockError(ValueError):
    """A block does not decompress correctly; the caller adds which block of which image."""


def most_bytes(stored: int) -> int:
    """Return how many bytes `stored` compressed bytes may become; what claims more is refused."""
    return max(FREE_BYTES, MOST_TIMES * stored)


def require(name: str, path: object = "") -> None:
    """Make sure that `name` can be used.

    Args:
        name: A compressor, one of `NAMES`.
        path: The image that needs it, for the message.

    Raises:
        MissingToolError: Its package is not installed; the sentence has the line that installs it.
        SquashFSError: There is no such compressor, or it is not supported.
    """
    where = f"{path}: " if path else ""
    if name not in NAMES:
        raise SquashFSError(
            f"{where}the compressor {name!r} is not supported",
            expected=f"one of {', '.join(NAMES)}",
            next_step="Unpack it with unsquashfs, and pack it again with one of them",
        )
    package = _PACKAGES.get(name)
    if package is None:
        return
    try:
        import_module(package)
    except ImportError as error:
        package = package.partition(".")[0]
        raise MissingToolError(
            f"{where}the Python package {package} is not installed",
            expected=f"it for squashfs images compressed with {name}",
            next_step=f"Run: python -m pip install {package}",
        ) from error


def decompress(name: str, data: Buffer, limit: int) -> bytes:
    """One block, decompressed to at most `limit` bytes.

    Args:
        name: The compressor.
        data: The block as stored.
        limit: The most bytes that it may have; more is an error, not a large allocation.

    Raises:
        BlockError: The block is damaged, cut off, or larger than `limit`.
    """
    try:
        return _DECOMPRESSORS[name](data, limit)
    except BlockError:
        raise
    except Exception as error:  # each library has its own; lz4 raises RuntimeError, zstandard ZstdError
        raise BlockError(f"{type(error).__name__}: {error}") from error


def compress(name: str, data: Buffer, level: int | None = None) -> bytes:
    """One block, compressed so that the kernel can read it. Equal input gives equal bytes.

    Args:
        name: One of `LEVELS`.
        data: The block.
        level: None for the default.
    """
    if name == "gzip":
        return zlib.compress(data, DEFAULT_LEVELS[name] if level is None else level)
    compressor = import_module("zstandard").ZstdCompressor(
        level=DEFAULT_LEVELS[name] if level is None else level
    )
    found: bytes = compressor.compress(data)
    return found


def _gunzip(data: Buffer, limit: int) -> bytes:
    stream = zlib.decompressobj()
    return _whole(stream.decompress(data, limit + 1), stream.eof, limit)


def _unxz(data: Buffer, limit: int) -> bytes:
    stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    return _whole(stream.decompress(data, limit + 1), stream.eof, limit)


def _unzstd(data: Buffer, limit: int) -> bytes:
    zstandard, stream = _zstd_of_thread()
    claimed = zstandard.frame_content_size(data)
    if claimed == 0:
        return b""
    if claimed > limit:
        raise BlockError(f"it claims {claimed:,} bytes, more than {limit:,}")
    return _whole(stream.decompress(data, max_output_size=limit), True, limit)


def _zstd_of_thread() -> tuple[Any, Any]:
    # A decompressor may serve one thread at a time, and making one costs more than a small block.
    try:
        return _of_thread.zstd  # type: ignore[no-any-return]
    except AttributeError:
        zstandard = import_module("zstandard")
        _of_thread.zstd = zstandard, zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        return _of_thread.zstd  # type: ignore[no-any-return]


def _unlz4(data: Buffer, limit: int) -> bytes:
    block = import_module("lz4.block")
    return _whole(block.decompress(data, uncompressed_size=limit), True, limit)


def _whole(found: bytes, ended: bool, limit: int) -> bytes:
    if len(found) > limit:
        raise BlockError(f"it expands to more than {limit:,} bytes")
    if not ended:
        raise BlockError("it is cut off")
    return found


_DECOMPRESSORS: dict[str, Callable[[Buffer, int], bytes]] = {
    "gzip": _gunzip,
    "xz": _unxz,
    "zstd": _unzstd,
    "lz4": _unlz4,
}
