"""How an image is written, checked before the first byte.

The trap: many tools notice an impossible block size or level only at the end of an hour.
"""

from __future__ import annotations

from dataclasses import dataclass

from pysquashfs import compression
from pysquashfs.errors import SquashFSError

DEFAULT_BLOCK_BYTES = 131072


@dataclass(frozen=True)
class Settings:
    """How to write an image.

    Args:
        compression: "none" (right for JPEG and other compressed data), "gzip" or "zstd". Blocks that do not
            become smaller are stored raw.
        level: Of the compressor; None for its default.
        block_bytes: 4,096 to 1,048,576, a power of two. Files stored raw are always contiguous.
        fragments: Store the ends of files in shared blocks: smaller, and slow at random.
    """

    compression: str = "none"
    level: int | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    fragments: bool = False

    def __post_init__(self) -> None:
        if not self.raw and self.compression not in compression.LEVELS:
            raise refused(f"the compression is {self.compression!r}", "none, gzip or zstd")
        if self.block_bytes not in [1 << power for power in range(12, 21)]:
            raise refused(f"the block size is {self.block_bytes!r}", "a power of two from 4,096 to 1,048,576")
        if self.raw:
            if self.level is not None:
                raise refused(f"the level of none is {self.level!r}", "no level")
            return
        compression.require(self.compression)
        low, high = compression.LEVELS[self.compression]
        if self.level is not None and not low <= self.level <= high:
            raise refused(f"the level of {self.compression} is {self.level!r}", f"one from {low} to {high}")

    @property
    def raw(self) -> bool:
        """Whether data is stored as it is."""
        return self.compression == "none"

    @property
    def image_compressor(self) -> str:
        """The compressor in the superblock, which compresses names and inodes even if data is raw."""
        return "gzip" if self.raw else self.compression


def refused(got: str, expected: str) -> SquashFSError:
    """The error for a senseless setting."""
    return SquashFSError(
        got, expected=expected, next_step="Correct it; the defaults are right for photographs"
    )
