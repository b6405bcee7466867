"""How an image is written, checked before the first byte.

The trap: many tools notice an impossible block size or level only at the end of an hour.
"""

from __future__ import annotations

from dataclasses import dataclass

from pysquashfs import compression
from pysquashfs.backends import unknown
from pysquashfs.errors import SquashFSError

DEFAULT_BLOCK_BYTES = 131072
WRITING = {"python": ("gzip", "zstd"), "libsquashfs": ("gzip", "zstd", "xz")}
"""The compressors that each back end writes."""


@dataclass(frozen=True)
class Settings:
    """How to write an image.

    Args:
        compression: "none" (right for JPEG and other compressed data), "gzip" or "zstd". Blocks that do not
            become smaller are stored raw.
        level: Of the compressor; None for its default.
        block_bytes: 4,096 to 1,048,576, a power of two. Files stored raw are always contiguous.
        fragments: Store the ends of files in shared blocks: smaller, and slow at random.
        backend: One of `WRITING`. Equal items give equal bytes everywhere only with Python.
    """

    compression: str = "none"
    level: int | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    fragments: bool = False
    backend: str = "python"

    def __post_init__(self) -> None:
        if self.backend not in WRITING:
            raise unknown(self.backend, tuple(WRITING))
        known = WRITING[self.backend]
        if not self.raw and self.compression not in known:
            expected = f"none, {', '.join(known[:-1])} or {known[-1]}"
            raise refused(
                f"the compression is {self.compression!r} with the back end {self.backend}", expected
            )
        if self.block_bytes not in [1 << power for power in range(12, 21)]:
            raise refused(f"the block size is {self.block_bytes!r}", "a power of two from 4,096 to 1,048,576")
        if self.raw:
            if self.level is not None:
                raise refused(f"the level of none is {self.level!r}", "no level")
            return
        if self.backend == "python":
            compression.require(self.compression)
        low, high = compression.LEVELS[self.compression]
        if self.level is not None and not low <= self.level <= high:
            raise refused(f"the level of {self.compression} is {self.level!r}", f"one from {low} to {high}")

    @property
    def raw(self) -> bool:
        """Whether data is stored as it is."""
        return self.compression == "none"

    @property
    def chosen_level(self) -> int:
        """The level of the compressor, also where none was given."""
        return compression.DEFAULT_LEVELS[self.image_compressor] if self.level is None else self.level

    @property
    def image_compressor(self) -> str:
        """The compressor in the superblock, which compresses names and inodes even if data is raw."""
        return "gzip" if self.raw else self.compression


def refused(got: str, expected: str) -> SquashFSError:
    """The error for a senseless setting."""
    return SquashFSError(
        got, expected=expected, next_step="Correct it; the defaults are right for photographs"
    )
