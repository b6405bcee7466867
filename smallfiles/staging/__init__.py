"""Copy a packed output to storage of this node: once per node, verified, reused, cleaned up.

    copy = staging.stage("train.arrow")          # other ranks wait and use the same copy
    reader = formats.open(copy.path)             # removed when the last process that uses it ends
    with staging.staged("val.arrow") as copy: …  # or at the end of a block

A job script uses the command line; its copy belongs to the job:

    staged=$(smallfiles stage train.arrow)
    trap 'smallfiles unstage "$staged"' EXIT

The trap: inside `$(…)` that `trap` fires at the end of the subshell, before the data is used.
Notebook 07 teaches it.

Here are the options and the result of staging; the rest is imported when it is first used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles import lazy
from smallfiles.options import Settings, option
from smallfiles.storage import timeout_option

if TYPE_CHECKING:
    from smallfiles.staging.broadcast import stage_broadcast as stage_broadcast
    from smallfiles.staging.run import listing as listing
    from smallfiles.staging.run import stage as stage
    from smallfiles.staging.run import stage_for_job as stage_for_job
    from smallfiles.staging.run import stage_to as stage_to
    from smallfiles.staging.run import staged as staged
    from smallfiles.staging.run import sweep_all as sweep_all
    from smallfiles.staging.run import unstage as unstage
    from smallfiles.staging.run import unstage_all as unstage_all

__getattr__ = lazy.names(__name__)


@dataclass(frozen=True)
class StageConfig(Settings):
    """How to stage.

    Args:
        leave_bytes: Bytes that must stay free after the copy, for workers and their batches; None
            leaves 1 GiB plus half a GiB per CPU in memory (at most a quarter of the limit), little on disk.
        storage_timeout_s: How long to wait for storage that does not answer.
    """

    leave_bytes: int | None = option(None, "room to leave for workers and their batches", least=0)
    storage_timeout_s: float = timeout_option()

    def to_cli(self, src: Path, where: str = "auto", to: Path | None = None) -> str:
        """Return the equivalent command."""
        more = ["--to", str(to)] if to is not None else []
        more += ["--where", where] if where != "auto" else []
        return self.command("stage", str(src), *more)


@dataclass(frozen=True)
class Staged:
    """A finished copy.

    Args:
        path: Where it is; pass it to `smallfiles.formats.open`.
        bytes: Its size, sidecars included.
        reused: Whether another rank or an earlier job had copied it.
        seconds: Duration of staging, waiting included.
        rate: Bytes per second of the copy; 0 if it was reused.
        files: Number of files.
        verified: Whether every block was compared with the digest from packing.
        notes: Why this place was chosen, and other remarks; sentences.
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
        """Return the result as a dictionary that JSON can store."""
        record = asdict(self) | {"path": str(self.path), "seconds": round(self.seconds, 3)}
        return record | {"bytes_per_s": round(record.pop("rate"))}
