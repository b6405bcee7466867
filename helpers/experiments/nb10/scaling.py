"""Weak scaling: as many samples for each rank, more and more ranks, on one storage or on the nodes' own.

Training is imitated by waiting, so that ranks on one machine do not take each other's CPUs; what is shared is
the storage, as on a cluster. The trap: efficiency of one rank is 100 % by definition, so a slow rank scales
well. Notebook 10 draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from helpers.experiments.nb10 import environments
from smallfiles import formats
from smallfiles.slowfs import SlowConfig, open_slow

if TYPE_CHECKING:
    from helpers.experiments.nb10.pool import WorkerPool

SHARED, OWN = "one storage for all", "a copy on each node"
RANKS = (1, 2, 4)
BATCH, BATCHES = 10, 6
STEP_S = 0.03


@dataclass(frozen=True)
class Scaling:
    """Samples per second of all ranks together, each run.

    Args:
        runs: By where they read, then by the number of ranks.
        each: Samples of a rank.
        step_s: Of an imitated training step.
        batch: Samples in a batch.
        storage: How slow the shared one was, in words; empty where it could not be made slow.
    """

    runs: dict[str, dict[int, tuple[float, ...]]]
    each: int
    step_s: float
    batch: int
    storage: str

    def efficiency(self, where: str, ranks: int) -> float:
        """Share of what so many single ranks would read."""
        return median(self.runs[where][ranks]) / (ranks * median(self.runs[where][1]))

    def summary(self, ranks: int) -> str:
        """How close so many ranks come to the ideal."""
        shares = [f"{self.efficiency(where, ranks):.0%} with {where}" for where in self.runs]
        return f"{ranks} ranks reach {' and '.join(shares)}, of {ranks} times what one rank reads"

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        if not self.storage:
            return "Nothing could be mounted here that is slow, so all ranks read from this disk"
        most = max(self.runs[SHARED])
        shared, own = (self.efficiency(where, most) for where in (SHARED, OWN))
        return f"{most} ranks are worth {most * shared:.1f} on one storage, and {most * own:.1f} with copies"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = "; ".join(
            f"{where}, {ranks} ranks: {median(runs):,.0f}"
            for where, line in self.runs.items()
            for ranks, runs in line.items()
        )
        return f"Lines of samples per second against ranks. {self.finding}. Medians: {told}."


def measure_scaling(
    pool: WorkerPool, path: Path, storage: SlowConfig | None = None, *, rounds: int = 3
) -> Scaling:
    """Read with 1, 2 and 4 ranks, a node each, through a slow storage and without it.

    Args:
        pool: At least four processes.
        path: A packed file.
        storage: How slow the shared storage shall be.
        rounds: How often.
    """
    from helpers.experiments.nb10.work import read

    storage = storage or SlowConfig(latency_s=0.002, bandwidth_bytes_s=50e6)
    reader = formats.open(path)
    each = min(BATCH * BATCHES, len(reader) // max(RANKS))
    reader.close()
    found: dict[str, dict[int, list[float]]] = {w: {n: [] for n in RANKS} for w in (SHARED, OWN)}
    with open_slow(path.parent, storage) as slow:
        seen = {SHARED: slow / path.name if slow.how == "fuse" else path, OWN: path}
        for _ in range(rounds):
            for where, line in found.items():
                for ranks, runs in line.items():
                    shares = pool.run(
                        read,
                        [environments.srun(rank, nodes=ranks, per_node=1) for rank in range(ranks)],
                        path=str(seen[where]),
                        count=each * ranks,
                        batch=BATCH,
                        workers=1,
                        imitated_step_s=STEP_S,
                    )
                    runs.append(each * ranks / max(share.seconds for share in shares))
        told = storage.summary() if slow.how == "fuse" else ""
    frozen = {where: {n: tuple(runs) for n, runs in line.items()} for where, line in found.items()}
    return Scaling(frozen, each, STEP_S, BATCH, told)
