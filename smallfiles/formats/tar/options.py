"""What a user may choose when samples become tar shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from smallfiles.errors import UsageError

NAME = "tar"
Compression: TypeAlias = Literal["gzip", "zstd"]
SUFFIXES: dict[Compression | None, str] = {None: ".tar", "gzip": ".tar.gz", "zstd": ".tar.zst"}


@dataclass(frozen=True)
class TarOptions:
    """How shards are cut and compressed.

    Args:
        max_bytes: A shard ends before it exceeds this (see `counted_bytes` for what counts).
        max_count: … or this number of samples.
        compression: None, `gzip` or `zstd`. JPEG files do not shrink; JSON and raw pixels do.
    """

    max_bytes: int = 1 << 30
    max_count: int = 100_000
    compression: Compression | None = None

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_count < 1:
            raise UsageError(
                f"a shard of at most {self.max_bytes} bytes and {self.max_count} samples was asked for",
                expected="limits of 1 or more",
                next_step="Give max_bytes between 100 MB and 10 GB; a few hundred shards suit most sets",
            )
        if self.compression is not None and self.compression not in get_args(Compression):
            raise UsageError(
                f"compression is {self.compression!r}",
                expected="None, gzip or zstd",
                next_step="Leave it out for JPEG files, which do not shrink",
            )


def compression_of(out: Path, options: TarOptions) -> Compression | None:
    """How the single file `out` is compressed: as its suffix says; options must not contradict it.

    Raises:
        UsageError: Suffix and options differ.
    """
    suffix: Compression | None = None
    for compression, ending in SUFFIXES.items():
        if compression and f"{ending}." in f"{out.name}.":
            suffix = compression
    if options.compression and options.compression != suffix:
        raise UsageError(
            f"{out} with compression {options.compression}",
            expected=f"a name ending in {SUFFIXES[options.compression]}, so that tools know what it is",
            next_step="Rename the output, or give a folder ending in .tars",
        )
    return suffix
