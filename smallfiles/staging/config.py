"""What staging is asked to do, and what it did; the request prints its own command line."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from smallfiles.errors import UsageError
from smallfiles.options import check, option, words

Shards = Literal["all", "rank"]


@dataclass(frozen=True)
class StageConfig:
    """How to stage.

    Args:
        leave_bytes: Room that must stay free behind the copy, for workers and their batches; None
            leaves 1 GiB and half a GiB a CPU in memory (a quarter of the limit at most), little on disk.
        shards: All shards of a folder, or every n-th, as this rank reads them.
    """

    leave_bytes: int | None = option(None, "room to leave for workers and their batches", least=0)
    shards: Shards = option("all", "all shards, or those of this rank")

    def __post_init__(self) -> None:
        check(self)

    def to_cli(self, src: Path, where: str = "auto", to: Path | None = None) -> str:
        """The command that does the same."""
        more = ["--to", str(to)] if to is not None else []
        more += ["--where", where] if where != "auto" else []
        return shlex.join(["smallfiles", "stage", str(src), *more, *words(self)])


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


def break_even(copy_s: float, epoch_slow_s: float, epoch_staged_s: float) -> float:
    """After how many epochs staging has paid.

    An epoch that is bound by decoding is no faster from memory, and then no number of epochs pays for the
    copy: so measure an epoch, not a raw read.

    Args:
        copy_s: Seconds of staging.
        epoch_slow_s: Seconds of an epoch from where the data lies.
        epoch_staged_s: Seconds of an epoch from the copy.

    Returns:
        Epochs, with a fraction; infinite if the staged epoch is not shorter.

    Raises:
        UsageError: A duration is negative or no number.

    Example:
        >>> break_even(30.0, 20.0, 5.0)
        2.0
    """
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (copy_s, epoch_slow_s, epoch_staged_s)):
        raise UsageError(
            f"durations of {copy_s}, {epoch_slow_s} and {epoch_staged_s} s were given",
            expected="three finite durations, none negative",
            next_step="Measure them again",
        )
    saved_s = epoch_slow_s - epoch_staged_s
    if copy_s == 0:
        return 0.0
    return copy_s / saved_s if saved_s > 0 else math.inf
