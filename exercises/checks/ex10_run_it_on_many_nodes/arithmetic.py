"""Rank, number of ranks, local rank: what srun, torchrun, a job script and a laptop tell.

The trap: on even nodes many wrong formulas are right, so nodes here are uneven too. Exercise 10.
"""

from __future__ import annotations

from collections.abc import Callable

from exercises.checks.attempt import Attempt, diagnose
from helpers.experiments.nb10 import environments

TEXT = "environment variables are text: make numbers of them with int()"
LAPTOP = "on a laptop nobody sets these variables: the process is alone, which is rank 0 of 1"
SCRIPT = (
    "this is the job script itself: it sees SLURM_NTASKS, but it is one process. Only what srun starts has "
    "SLURM_STEP_ID"
)
FIRST_TASK = (
    "task 0 of a step is not alone, though its SLURM_PROCID is 0 as in the job script; SLURM_STEP_ID tells"
)
LOCAL_FOR_RANK = (
    "SLURM_LOCALID counts from 0 on each node, so both nodes would read the same; the rank is SLURM_PROCID"
)
NODES_FOR_RANKS = "SLURM_NNODES counts nodes; ranks are tasks: SLURM_NTASKS"
NODE_FOR_RANK = "SLURM_NODEID is the number of the node; the rank is SLURM_PROCID"
COMPUTED_LOCAL = "nodes may have unequally many tasks: do not compute the local rank, take SLURM_LOCALID"
TORCHRUN = "torchrun tells RANK, WORLD_SIZE and LOCAL_RANK"
TORCHRUN_FIRST = (
    "torchrun was started by srun, a task a node: torchrun's numbers are those of this process, srun's those "
    "of its parent"
)
OWN_ENVIRONMENT = "read the dictionary that is given, not os.environ: then it can be tested"
ODD = "the three numbers are others here"


def _is(
    attempt: Attempt, what: str, env: dict[str, str], right: tuple[int, int, int], *mistakes: object
) -> None:
    """Call the answer; a wrong one is told by the first mistake that gives it."""
    got = attempt(env, _shown=what)
    if isinstance(got, list):
        got = tuple(got)
    texts = tuple(str(number) for number in right)
    known = [(texts, TEXT), *zip(mistakes[::2], mistakes[1::2], strict=True)]
    attempt.expect(right, got, because=diagnose(got, *known, otherwise=ODD))  # type: ignore[arg-type]


def on_a_laptop(attempt: Attempt) -> None:
    """No launcher."""
    try:
        _is(attempt, "the environment of a laptop", {"HOME": "somewhere"}, (0, 1, 0))
    except Exception as wrong:
        if "KeyError" in str(getattr(wrong, "got", "")):
            raise attempt.wrong(wrong.got, "(0, 1, 0)", LAPTOP) from None  # type: ignore[attr-defined]
        raise


def tasks_of_srun(attempt: Attempt) -> None:
    """Two nodes with three tasks and one."""
    for rank, node, local in ((3, 1, 0), (2, 0, 2), (0, 0, 0), (1, 0, 1)):
        env = {
            **environments.srun(rank),
            "SLURM_NODEID": str(node),
            "SLURM_LOCALID": str(local),
            "SLURM_TASKS_PER_NODE": "3,1",
            "SLURM_STEP_TASKS_PER_NODE": "3,1",
        }
        _is(
            attempt,
            f"srun, task {rank} of 4, on node {node}",
            env,
            (rank, 4, local),
            *((0, 1, 0), FIRST_TASK if rank == 0 else OWN_ENVIRONMENT),
            *((local, 4, local), LOCAL_FOR_RANK),
            *((node, 4, local), NODE_FOR_RANK),
            *((rank, 2, local), NODES_FOR_RANKS),
            *((rank, 4, rank % 2), COMPUTED_LOCAL),
            *((rank, 4, rank % 3), COMPUTED_LOCAL),
        )


def the_script_itself(attempt: Attempt) -> None:
    """One process, in spite of all that it is told."""
    _is(
        attempt,
        "the job script of two nodes with two tasks each",
        environments.script(),
        (0, 1, 0),
        *((0, 4, 0), SCRIPT),
        *((0, 2, 0), SCRIPT),
    )


def torchrun(attempt: Attempt) -> None:
    """By hand, and below srun."""
    for rank in (0, 3):
        told = environments.torchrun(rank)
        _is(
            attempt,
            f"torchrun, process {rank} of 4",
            told,
            (rank, 4, rank % 2),
            *((0, 1, 0), TORCHRUN),
            *((rank % 2, 4, rank % 2), "LOCAL_RANK counts from 0 on each node; the rank is RANK"),
        )
    below = {**environments.srun(1, per_node=1), **environments.torchrun(3)}
    _is(
        attempt,
        "srun, which started torchrun on each node",
        below,
        (3, 4, 1),
        *((1, 2, 0), TORCHRUN_FIRST),
        *((0, 1, 0), TORCHRUN),
    )


CASES: tuple[Callable[[Attempt], None], ...] = (on_a_laptop, tasks_of_srun, the_script_itself, torchrun)
