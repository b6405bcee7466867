"""What staging is asked to do, and what it did; the request prints its own command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from smallfiles.errors import UsageError

Shards = Literal["all", "rank"]


@dataclass(frozen=True)
class StageConfig:
    """How to stage.

    Args:
        leave_bytes: Room that must stay free behind the copy, for workers and their batches; None
            leaves 1 GiB and half a GiB a CPU in memory (a quarter of the limit at most), little on disk.
        readers: Blocks copied at once; None takes more where each read waits for a server.
        shards: All shards of a folder, or every n-th, as this rank reads them.
        rank: This rank; None asks torchrun or SLURM.
        world_size: Number of ranks; None asks likewise.
        wait_s: How long to wait for another process that copies the same.
    """

    leave_bytes: int | None = None
    readers: int | None = None
    shards: Shards = "all"
    rank: int | None = None
    world_size: int | None = None
    wait_s: float = 3600.0

    def __post_init__(self) -> None:
        if (self.leave_bytes or 0) < 0 or (self.readers is not None and self.readers < 1) or self.wait_s < 0:
            raise UsageError(
                f"{self.leave_bytes} bytes to leave, {self.readers} readers, {self.wait_s} s to wait",
                expected="no negative number, and at least one reader",
                next_step="Correct the numbers, or leave them out",
            )
        if self.shards not in ("all", "rank"):
            raise UsageError(
                f"the shards {self.shards!r} were asked for", expected="all or rank", next_step="Choose one"
            )
        if (self.rank is None) != (self.world_size is None):
            raise UsageError(
                f"rank {self.rank} of {self.world_size} was given",
                expected="both numbers, or none",
                next_step="Give rank and world_size",
            )

    def to_cli(self, src: Path, where: str = "auto", to: Path | None = None) -> str:
        """The command that does the same."""
        words = ["smallfiles", "stage", str(src)]
        words += ["--to", str(to)] if to is not None else []
        words += ["--where", where] if where != "auto" else []
        words += ["--leave-bytes", str(self.leave_bytes)] if self.leave_bytes is not None else []
        words += ["--readers", str(self.readers)] if self.readers is not None else []
        words += ["--shards", self.shards] if self.shards != "all" else []
        if self.rank is not None and self.world_size is not None:
            words += ["--rank", f"{self.rank}/{self.world_size}"]
        words += ["--wait-s", f"{self.wait_s:g}"] if self.wait_s != StageConfig.wait_s else []
        return shlex.join(words)


@dataclass(frozen=True)
class Staged:
    """A copy that may be read.

    Args:
        path: Where it is: give this to `smallfiles.formats.open`.
        bytes: Its size, small files beside it included.
        reused: Whether it was there already, copied by another rank or an earlier job.
        seconds: How long staging took, waiting included.
        rate: Bytes per second of the copy; 0 if it was reused.
        files: Number of files.
        verified: Whether every block was compared with the digest taken while packing.
        notes: Why this place, and what else should be known; sentences.
    """

    path: Path
    bytes: int
    reused: bool
    seconds: float
    rate: float
    files: int = 1
    verified: bool = True
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "path": str(self.path),
            "files": self.files,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "reused": self.reused,
            "verified": self.verified,
            "bytes_per_s": round(self.rate),
            "notes": list(self.notes),
        }
