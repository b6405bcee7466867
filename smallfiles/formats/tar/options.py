"""What a user may choose when samples become tar shards."""

from __future__ import annotations

from dataclasses import dataclass

from smallfiles.errors import UsageError

NAME = "tar"


@dataclass(frozen=True)
class TarOptions:
    """How shards are cut.

    Args:
        max_bytes: A shard ends before it exceeds this (see `counted_bytes` for what counts).
        max_count: … or this number of samples.
    """

    max_bytes: int = 1 << 30
    max_count: int = 100_000

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_count < 1:
            raise UsageError(
                f"a shard of at most {self.max_bytes} bytes and {self.max_count} samples was asked for",
                expected="limits of 1 or more",
                next_step="Give max_bytes between 100 MB and 10 GB; a few hundred shards suit most sets",
            )
