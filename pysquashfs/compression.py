"""Compress and decompress one block by the name of its compressor, up to a limit.

The trap: a few hundred bytes can expand to gigabytes, and a frame may contain a wrong size. No call here
returns more than `limit` bytes (and one more, to detect it). zstd and lz4 are optional packages; they are
imported when an image needs them.
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
NAMES = ("none", "gzip", "zstd", "lz4", "xz")
DEFAULT_LEVELS = {"gzip": 6, "zstd": 3, "lz4": 0, "xz": 6}
LEVELS = {"gzip": (1, 9), "zstd": (1, 22), "lz4": (0, 12), "xz": (0, 9)}
_PACKAGES = {"zstd": "zstandard", "lz4": "lz4.block"}
_MAX_WINDOW_BYTES = 8 << 20  # blocks have at most 1 MiB, so a larger window is wrong
_XZ_MEMORY_BYTES = 64 << 20
_of_thread = threading.local()


class BlockError(ValueError):
    """A block does not decompress correctly; the caller adds which block of which image."""


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
        return decompressor(name)(data, limit)
    except BlockError:
        raise
    except Exception as error:  # each library has its own; lz4 raises RuntimeError, zstandard ZstdError
        raise BlockError(f"{type(error).__name__}: {error}") from error


def decompressor(name: str) -> Callable[[Buffer, int], bytes]:
    """The function behind `decompress`; it may raise what its library raises."""
    return _DECOMPRESSORS[name]


def compress(name: str, data: Buffer, level: int | None = None, *, block_bytes: int = 131072) -> bytes:
    """One block, compressed so that the kernel can read it. Equal input gives equal bytes.

    Args:
        name: The compressor.
        data: The block.
        level: See `LEVELS`; None for the default.
        block_bytes: Block size of the image (xz may not use a larger dictionary).
    """
    if name == "none":
        return bytes(data)
    level = DEFAULT_LEVELS[name] if level is None else level
    return _COMPRESSORS[name](data, level, block_bytes)


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


def _to_gzip(data: Buffer, level: int, block_bytes: int) -> bytes:
    return zlib.compress(data, level)


def _to_zstd(data: Buffer, level: int, block_bytes: int) -> bytes:
    found: bytes = import_module("zstandard").ZstdCompressor(level=level).compress(data)
    return found


def _to_lz4(data: Buffer, level: int, block_bytes: int) -> bytes:
    mode = {"mode": "high_compression", "compression": level} if level else {}
    found: bytes = import_module("lz4.block").compress(data, store_size=False, **mode)
    return found


def _to_xz(data: Buffer, level: int, block_bytes: int) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": level, "dict_size": max(block_bytes, 8192)}]
    return lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=filters)


_DECOMPRESSORS: dict[str, Callable[[Buffer, int], bytes]] = {
    "none": lambda data, limit: _whole(bytes(data), True, limit),
    "gzip": _gunzip,
    "xz": _unxz,
    "zstd": _unzstd,
    "lz4": _unlz4,
}
_COMPRESSORS: dict[str, Callable[[Buffer, int, int], bytes]] = {
    "gzip": _to_gzip,
    "zstd": _to_zstd,
    "lz4": _to_lz4,
    "xz": _to_xz,
}
