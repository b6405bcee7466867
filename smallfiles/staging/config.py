"""What staging is asked to do, and what it did; the request prints its own command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from smallfiles.options import Settings, option

Shards = Literal["all", "rank"]


@dataclass(frozen=True)
class StageConfig(Settings):
    """How to stage.

    Args:
        leave_bytes: Room that must stay free behind the copy, for workers and their batches; None
            leaves 1 GiB and half a GiB a CPU in memory (a quarter of the limit at most), little on disk.
        shards: All shards of a folder, or every n-th, as this rank reads them.
    """

    leave_bytes: int | None = option(None, "room to leave for workers and their batches", least=0)
    shards: Shards = option("all", "all shards, or those of this rank")

    def to_cli(self, src: Path, where: str = "auto", to: Path | None = None) -> str:
        """The command that does the same."""
        more = ["--to", str(to)] if to is not None else []
        more += ["--where", where] if where != "auto" else []
        return self.command("stage", str(src), *more)


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
        record = asdict(self) | {"path": str(self.path), "seconds": round(self.seconds, 3)}
        return record | {"bytes_per_s": round(record.pop("rate"))}
