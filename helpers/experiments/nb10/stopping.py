"""A training on two ranks that is asked to stop, as at a time limit, and goes on in a second run.

The trap: a run that begins its epoch anew reads the first samples again, and nobody notices. So the second
run is compared with one that was never stopped. Notebook 10 shows it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.experiments.nb10 import environments

if TYPE_CHECKING:
    from helpers.experiments.nb10.pool import WorkerPool
    from smallfiles.training import TrainReport

RANKS = 2
_LIMIT_S = 60.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Stopped:
    """Two runs of one training, and a third that was not stopped.

    Args:
        first: Until it was asked to stop.
        second: From there to the end.
        whole: All at once.
    """

    first: TrainReport
    second: TrainReport
    whole: TrainReport

    @property
    def summary(self) -> list[str]:
        """What happened, a sentence each."""
        if not self.first.interrupted or self.second.resumed_at is None:
            return ["The training was done before it could be asked to stop: run this cell again."]
        epoch, step = self.second.resumed_at
        return [
            f"The first run had ended {len(self.first.epochs)} of {len(self.whole.epochs)} epochs when the "
            f"signal came, and left after step {step} of epoch {epoch + 1}.",
            f"The second went on there. {self._of_the_cut_epoch(epoch)}",
            self._of_the_loss(),
        ]

    def _of_the_loss(self) -> str:
        cut, whole = self.second.epochs[-1].loss, self.whole.epochs[-1].loss
        said = "exactly the same as" if cut == whole else f"{abs(cut - whole):.2g} away from that of"
        return f"The last loss is **{cut:.6f}**, {said} a run without a stop."

    def _of_the_cut_epoch(self, number: int) -> str:
        cut = next(epoch for epoch in self.second.epochs if epoch.epoch == number)
        here = sum(int(rank["samples"]) for rank in cut.ranks)
        return f"Of this epoch's {cut.samples:,} samples it read the {here:,} that were left."


def measure_stop(pool: WorkerPool, path: Path, folder: Path, *, epochs: int = 4) -> Stopped:
    """Train on two nodes, ask to stop in the second epoch, train again; then train at once.

    Args:
        pool: At least two processes.
        path: A packed file with labels.
        folder: For checkpoints; empty.
        epochs: Passes over the data.
    """

    def stop(processes: Sequence[int]) -> None:
        end = time.monotonic() + _LIMIT_S
        while _steps_of_second_epoch(folder / "cut") < 1 and time.monotonic() < end:
            time.sleep(_POLL_S)
        for process in processes:  # Slurm sends it to every task
            os.kill(process, signal.SIGUSR1)

    def run(name: str, meanwhile: Callable[[Sequence[int]], None] | None = None) -> TrainReport:
        from helpers.experiments.nb10.work import train

        checkpoint = str(folder / name)
        told = {"path": str(path), "checkpoint": checkpoint, "epochs": epochs}
        return pool.run(train, _places(), meanwhile=meanwhile, **told)[0]

    return Stopped(run("cut", stop), run("cut"), run("whole"))


def _steps_of_second_epoch(folder: Path) -> int:
    """How many of them the last checkpoint holds; 0 before."""
    from smallfiles.training import checkpoint

    state = checkpoint.load(folder)
    if state is None or int(state.loader["epoch"]) < 1:
        return 0
    return int(state.loader["batch"]) if int(state.loader["epoch"]) == 1 else 1


def _places() -> list[dict[str, str]]:
    """Two nodes with a rank each; they meet on this machine, since the played nodes have no address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**environments.srun(rank, nodes=RANKS, per_node=1), **meeting} for rank in range(RANKS)]
