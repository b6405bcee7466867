"""Exercise 10: the place of a process among many, and a job script that survives its time limit.

    arithmetic    rank, number of ranks and local rank, from what a launcher tells
    directives    what the script asks Slurm for
    playing       the script runs: real bash, played Slurm (`player.py` stands for srun, scontrol, python)
    running       what it did there

The script is judged by what it does, not by how it is written. The traps it teaches: numbers of the job are
not numbers of the process; `srun` does not take over the CPUs; a script that stops at code 75 never asks to
be queued again. Notebook 10 sends participants here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from exercises.checks.attempt import Attempt
from exercises.checks.check import check
from exercises.checks.ex10_run_it_on_many_nodes import arithmetic, directives, running

__all__ = ["job", "place", "script"]

_ROOT = Path(__file__).resolve().parents[3]
_NAME = "10_run_it_on_many_nodes.sbatch"


def script(folder: str) -> Path:
    """The job script of this exercise: beside the notebook, or in the checkout if it is not there.

    Args:
        folder: `exercises` or `solutions`.
    """
    beside = Path.cwd() / _NAME
    return beside if beside.is_file() else _ROOT / folder / _NAME


@check(buys="Your program finds its share of the data under srun, under torchrun, and on your laptop.")
def place(attempt: Attempt) -> None:
    """`place(env)` gives rank, number of ranks and local rank."""
    for case in arithmetic.CASES:
        case(attempt)


@check(
    buys="A training of three days now runs where a day is the limit, and on any number of nodes.",
    limit_s=90.0,
)
def job(attempt: Attempt) -> None:
    """A job script that trains on two nodes and goes on after its time limit."""
    path = directives.started(attempt)
    for asks in directives.CASES:
        asks(attempt, path)
    for case in running.CASES:
        with tempfile.TemporaryDirectory(prefix="smallfiles-job-") as folder:
            case(attempt, path, Path(folder))
