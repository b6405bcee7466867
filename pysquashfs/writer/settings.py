"""How an image is written, checked before the first byte is.

The trap: a block size or level that a tool does not know is often noticed at the end of an hour.
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
        compression: "none" (right for JPEG and whatever is compressed already), "gzip", "zstd", "lz4" or
            "xz". Blocks that do not become smaller are stored raw.
        level: Of the compressor; None for its default.
        block_bytes: 4,096 to 1,048,576, a power of two. Files stored raw are contiguous whatever it is.
        fragments: Put the ends of files together in shared blocks: smaller, and slow at random.
        threads: That compress; None for as many as there are CPUs to use.
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
        """What the superblock names; it compresses names and inodes even where data is raw."""
        return "gzip" if self.raw else self.compression

    @property
    def usable_threads(self) -> int:
        """How many threads compress."""
        if hasattr(os, "sched_getaffinity"):  # what this process may use; macOS does not tell
            return self.threads or len(os.sched_getaffinity(0))
        return self.threads or os.cpu_count() or 1


def refused(got: str, expected: str) -> SquashFSError:
    """The sentence for a setting that makes no sense."""
    return SquashFSError(
        got, expected=expected, next_step="Correct it; the defaults are right for photographs"
    )
