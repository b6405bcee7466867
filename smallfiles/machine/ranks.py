"""Rank, world size and rendezvous address of this process, from torchrun or SLURM.

The trap: a script run by `sbatch` also has SLURM_NTASKS=8 and SLURM_PROCID=0, though it is one process. A
training started there without `srun` would read an eighth of the data and wait for seven others. So the
variables of SLURM are used only inside a step, which `srun` starts. And SLURM provides no rendezvous
address: its node list is compressed (`n[01-03,7],gpu2`), and `scontrol` may be missing in a container; so
the first name is parsed from the list. The port depends on the job number, since two jobs may share a node.
Notebook 10 teaches it.

Source: torchrun, "Environment Variables" (it sets MASTER_ADDR and MASTER_PORT itself); srun(1) and
sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from smallfiles.errors import UsageError

_FIRST_PORT, _PORTS = 20_000, 12_000  # below the range that Linux gives to outgoing connections


@dataclass(frozen=True)
class Ranks:
    """The rank of this process.

    Args:
        rank: Its number, from 0.
        world_size: Number of ranks.
        local_rank: Its number on this node, from 0: the number of its GPU.
        local_world_size: Number of ranks on this node, which share its CPUs.
        node: Number of this node, from 0.
        nodes: Number of nodes.
        source: Where the numbers come from.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    nodes: int = 1
    source: Literal["alone", "torchrun", "slurm"] = "alone"

    def __post_init__(self) -> None:
        for name, number, count in (
            ("rank", self.rank, self.world_size),
            ("local rank", self.local_rank, self.local_world_size),
            ("node", self.node, self.nodes),
        ):
            if not 0 <= number < count:
                raise UsageError(
                    f"{self.source} says that this is {name} {number} of {count}",
                    expected=f"a {name} from 0 to {count - 1}",
                    next_step="Start all ranks in one way: srun or torchrun, and set none of these by hand",
                )


def ranks(env: Mapping[str, str] | None = None) -> Ranks:
    """The ranks from torchrun, or else from a step of SLURM, or else of a single process.

    Every rank reads its own part of the data, so wrong numbers lose or repeat samples.

    Args:
        env: Environment variables; those of this process if None.

    Raises:
        UsageError: The variables contradict each other or are no numbers.
    """
    env = os.environ if env is None else env
    if "RANK" in env and "WORLD_SIZE" in env:
        return _torchrun(env)
    step = any(name.startswith("SLURM_STEP") for name in env)
    if "SLURM_PROCID" in env and (step or env["SLURM_PROCID"] != "0"):
        return _slurm(env)
    return Ranks()


def _torchrun(env: Mapping[str, str]) -> Ranks:
    world_size = _number(env, "WORLD_SIZE", 1)
    local = _number(env, "LOCAL_WORLD_SIZE", 0)
    if not local:  # from another launcher with the variables of torchrun
        local = world_size if "LOCAL_RANK" not in env else _number(env, "LOCAL_RANK", 0) + 1
    return Ranks(
        rank=_number(env, "RANK", 0),
        world_size=world_size,
        local_rank=_number(env, "LOCAL_RANK", _number(env, "RANK", 0) % local),
        local_world_size=local,
        node=_number(env, "GROUP_RANK", _number(env, "RANK", 0) // local),
        nodes=_number(env, "GROUP_WORLD_SIZE", -(-world_size // local)),
        source="torchrun",
    )


def _slurm(env: Mapping[str, str]) -> Ranks:
    rank = _number(env, "SLURM_PROCID", 0)
    world_size = _number(env, "SLURM_STEP_NUM_TASKS", _number(env, "SLURM_NTASKS", 1))
    node = _number(env, "SLURM_NODEID", 0)
    nodes = _number(env, "SLURM_STEP_NUM_NODES", _number(env, "SLURM_NNODES", node + 1))
    local_rank = _number(env, "SLURM_LOCALID", 0)
    on_nodes = _tasks(env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "")
    here = on_nodes[node] if node < len(on_nodes) else max(-(-world_size // nodes), local_rank + 1)
    return Ranks(rank, world_size, local_rank, here, node, nodes, "slurm")


def _tasks(text: str) -> list[int]:
    """Tasks on each node from `2(x3),1`; empty for any other text."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"the environment variable {name} is {text!r}",
            expected="a whole number, 0 or more",
            next_step=f"Unset it, or let srun or torchrun set it: unset {name}",
        )
    return int(text)


def rendezvous(env: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Address and port of rank 0.

    Args:
        env: Environment variables; those of this process if None.

    Raises:
        UsageError: A node list that cannot be read.
    """
    env = os.environ if env is None else env
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    address = env.get("MASTER_ADDR") or (first_node(nodes) if nodes else "127.0.0.1")
    port = env.get("MASTER_PORT", "")
    if port.isdigit():
        return address, int(port)
    job, step = (env.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    number = 17 * int(job if job.isdigit() else 0) + int(step if step.isdigit() else 0)
    return address, _FIRST_PORT + number % _PORTS


def first_node(nodes: str) -> str:
    """The first name of a compressed node list.

    Args:
        nodes: As SLURM writes it, such as `n[01-03,7],gpu2`.

    Raises:
        UsageError: It is not of this form.
    """
    match = re.match(r"([\w.-]*)(?:\[(\w+)[^\]]*\]([\w.-]*))?(?:,|$)", nodes)
    name = "".join(part or "" for part in match.groups()) if match else ""
    if not name:
        raise UsageError(
            f"the node list is {nodes!r}",
            expected="names such as n[01-03,7],gpu2",
            next_step="Set MASTER_ADDR to the name of the first node",
        )
    return name
