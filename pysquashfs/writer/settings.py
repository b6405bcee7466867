"""How an image is written, checked before the first byte.

The trap: many tools notice an impossible block size or level only at the end of an hour.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pysquashfs import compression
from pysquashfs.errors import SquashFSError

DEFAULT_BLOCK_BYTES = 131072


@dataclass(frozen=True)
class Settings:
    """How to write an image.

    Args:
        compression: "none" (right for JPEG and other compressed data), "gzip", "zstd", "lz4" or "xz". Blocks
            that do not become smaller are stored raw.
        level: Of the compressor; None for its default.
        block_bytes: 4,096 to 1,048,576, a power of two. Files stored raw are always contiguous.
        fragments: Store the ends of files in shared blocks: smaller, and slow at random.
        threads: Number of threads that compress; None for all CPUs of this process.
    """

    compression: str = "none"
    level: int | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    fragments: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        compression.require(self.compression)
        allowed = [1 << power for power in range(12, 21)]
        if self.block_bytes not in allowed:
            raise refused(f"the block size is {self.block_bytes!r}", "a power of two from 4,096 to 1,048,576")
        if self.threads is not None and self.threads < 1:
            raise refused(f"the number of threads is {self.threads!r}", "1 or more")
        if self.level is None:
            return
        low, high = compression.LEVELS.get(self.compression, (0, 0))
        if self.compression == "none" or not low <= self.level <= high:
            raise refused(
                f"the level of {self.compression} is {self.level!r}",
                "no level" if self.compression == "none" else f"one from {low} to {high}",
            )

    @property
    def raw(self) -> bool:
        """Whether data is stored as it is."""
        return self.compression == "none"

    @property
    def image_compressor(self) -> str:
        """The compressor in the superblock, which compresses names and inodes even if data is raw."""
        return "gzip" if self.raw else self.compression

    @property
    def usable_threads(self) -> int:
        """Number of threads that compress."""
        if hasattr(os, "sched_getaffinity"):  # not on macOS
            return self.threads or len(os.sched_getaffinity(0))
        return self.threads or os.cpu_count() or 1


def refused(got: str, expected: str) -> SquashFSError:
    """The error for a senseless setting."""
    return SquashFSError(
        got, expected=expected, next_step="Correct it; the defaults are right for photographs"
    )
