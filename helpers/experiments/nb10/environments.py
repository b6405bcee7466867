"""What srun, torchrun, `sbatch` and a laptop tell a process about its place.

With them one machine plays several nodes: a process that is given the variables of rank 3 on node 1 does what
it would do there. The trap: the job script sees SLURM_NTASKS too, though it is one process. Notebook 10 shows
them.

Source: recorded in jobs of the local cluster (slurm/local); torchrun, "Environment Variables".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict

from smallfiles.machine.ranks import Ranks, ranks

_PREFIXES = ("SLURM", "SRUN", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "ROLE_", "TORCHELASTIC")
_SHOWN = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID",
          "RANK", "WORLD_SIZE", "LOCAL_RANK")  # fmt: skip


def script(nodes: int = 2, per_node: int = 2, cpus: int = 2) -> dict[str, str]:
    """The job script itself: one process, on the first node.

    Args:
        nodes: Nodes of the job.
        per_node: Tasks a node.
        cpus: CPUs a task.
    """
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": f"n[1-{nodes}]" if nodes > 1 else "n1",
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_TASKS_PER_NODE": f"{per_node}(x{nodes})" if nodes > 1 else str(per_node),
        "SLURM_CPUS_PER_TASK": str(cpus),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": "n1",
    }


def srun(rank: int, nodes: int = 2, per_node: int = 2, cpus: int = 2) -> dict[str, str]:
    """A task that `srun` started.

    Args:
        rank: Its number.
        nodes: Nodes of the job.
        per_node: Tasks a node.
        cpus: CPUs a task.
    """
    around = script(nodes, per_node, cpus)
    node, local = divmod(rank, per_node)
    return {
        **around,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": f"n{node + 1}",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": around["SLURM_JOB_NODELIST"],
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_STEP_TASKS_PER_NODE": around["SLURM_TASKS_PER_NODE"],
    }


def torchrun(rank: int, nodes: int = 2, per_node: int = 2) -> dict[str, str]:
    """A process that `torchrun` started.

    Args:
        rank: Its number.
        nodes: How many times torchrun was started.
        per_node: Processes a node.
    """
    node, local = divmod(rank, per_node)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes * per_node),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
    }


def become(told: Mapping[str, str]) -> None:
    """Give this process these variables, and none of another launcher.

    Args:
        told: What a launcher tells.
    """
    for name in list(os.environ):
        if name.startswith(_PREFIXES):
            del os.environ[name]
    os.environ.update(told)


def table(launched: Mapping[str, Mapping[str, str]]) -> str:
    """What each process is told, and what `ranks` makes of it.

    Args:
        launched: Environments by how the process was started.
    """
    names = [name for name in _SHOWN if any(name in told for told in launched.values())]
    first = max(len("world size"), *map(len, names)) + 2
    widths = [max(len(how), 9) + 2 for how in launched]
    rows = [["", *launched]]
    rows += [[name, *(told.get(name, "-") for told in launched.values())] for name in names]
    answers = [_summary(ranks(told)) for told in launched.values()]
    rows += [[""] * (1 + len(launched))]
    rows += [[name, *(answer[name] for answer in answers)] for name in answers[0]]
    return "\n".join(_line(row, first, widths).rstrip() for row in rows)


def _line(row: list[str], first: int, widths: list[int]) -> str:
    return row[0].ljust(first) + "".join(
        cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True)
    )


def _summary(where: Ranks) -> dict[str, str]:
    known = asdict(where)
    names = {"rank": "rank", "of": "world_size", "local rank": "local_rank", "node": "node"}
    return {shown: str(known[name]) for shown, name in names.items()}
