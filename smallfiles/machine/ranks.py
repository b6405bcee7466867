"""Which rank is this process, of how many? Asked here, and nowhere else.

`torch.distributed` is asked first, if the program has initialised it. Then come the variables of the
launchers: torchrun, Open MPI, MVAPICH2, launchers with PMI (MPICH, Intel MPI, Cray), and a step of Slurm.
Wrong numbers lose or repeat samples, so variables that are incomplete or contradict each other are refused.

The trap: variables are inherited. A script run by `sbatch` has SLURM_NTASKS=8 and SLURM_PROCID=0, though it
is one process. The shell of `srun --ntasks=4 --pty bash` has the variables of a step of four tasks, and what
`srun` starts from that shell has SLURM_PTY_PORT too. A job that was submitted from a step has the variables
of that step. A training that believed them would read an eighth of the data and wait forever for seven
others. And Slurm provides no rendezvous address: its node list is compressed (`n[01-03,7],gpu2`), and
`scontrol` may be missing in a container; so the first name is parsed from the list. The port depends on the
job number, since two jobs may share a node. Notebook 10 teaches it.

Source: torchrun, "Environment Variables" (it sets MASTER_ADDR and MASTER_PORT itself); srun(1) and sbatch(1),
"OUTPUT ENVIRONMENT VARIABLES"; Open MPI 5, "Environment variables set for MPI applications"; Intel MPI
Library Developer Reference, "Environment Variables Not Propagated by Hydra". DeepSpeed's launcher and LAMMPS
read the variables of MVAPICH2 in the same way. Slurm 22.05 and Open MPI 4.1 were also tried.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from smallfiles.errors import UsageError

Source = Literal[
    "alone", "torchrun", "Open MPI", "MVAPICH2", "PMI", "Flux", "jsrun", "slurm", "torch.distributed"
]


class _Variables(NamedTuple):
    """The variables in which a launcher gives a process its place."""

    launcher: Source
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_MPI: tuple[Source, ...] = ("Open MPI", "MVAPICH2", "jsrun")
_PREFIXES = ("OMPI_COMM_WORLD", "MV2_COMM_WORLD", "JSM_NAMESPACE")
_LAUNCHERS = (
    _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *(
        _Variables(launcher, *(f"{prefix}_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
        for launcher, prefix in zip(_MPI, _PREFIXES, strict=True)
    ),
    _Variables("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Variables("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
)
"""Launchers, the innermost first: torchrun may run below mpirun, and mpirun below srun."""

_WITHOUT_SIZE = ("PMIX_RANK", "PALS_RANKID")
"""Launchers set these, and the number of ranks is found by a call of their library only."""

_EXPLICIT = "or give both rank and world_size (--rank and --world-size)"
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
    source: Source = "alone"

    @property
    def launcher(self) -> str:
        """The name of the source in messages."""
        return "srun" if self.source == "slurm" else self.source

    def __post_init__(self) -> None:
        for name, number, count in (
            ("rank", self.rank, self.world_size),
            ("local rank", self.local_rank, self.local_world_size),
            ("node", self.node, self.nodes),
        ):
            if not 0 <= number < count:
                raise UsageError(
                    f"{self.launcher} says that this is {name} {number} of {count}",
                    expected=f"a {name} from 0 to {count - 1}",
                    next_step=f"Start all ranks in one way, and set none of these by hand, {_EXPLICIT}",
                )


def ranks(env: Mapping[str, str] | None = None) -> Ranks:
    """Return the place of this process among the ranks.

    It comes from `torch.distributed` if that is initialised, or else from the launcher. A process that nobody
    started as one of several is rank 0 of 1.

    Args:
        env: Environment variables; those of this process, and `torch.distributed`, if None.

    Raises:
        UsageError: The variables of a launcher are incomplete, or two sources contradict each other.
    """
    started = _started(os.environ if env is None else env)
    group = process_group() if env is None else None
    return started if group is None else _in_group(started, *group)


def process_group() -> tuple[int, int] | None:
    """Return the rank and world size of `torch.distributed`; None if the program has not initialised it.

    It never imports torch: a program that has no process group has not imported `torch.distributed` either.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if not (getattr(dist, "is_available", bool)() and getattr(dist, "is_initialized", bool)()):
        return None
    return dist.get_rank(), dist.get_world_size()


def check_process_group(rank: int, world_size: int) -> None:
    """Refuse to go on as a rank that `torch.distributed` has meanwhile numbered otherwise.

    Args:
        rank: The rank for which something was made.
        world_size: The number of ranks for which it was made.

    Raises:
        UsageError: The process group has been initialised since, with other numbers.
    """
    now = process_group()
    if now is not None and now != (rank, world_size):
        raise UsageError(
            f"this loader was made for rank {rank} of {world_size}, but torch.distributed now says that this "
            f"is rank {now[0]} of {now[1]}",
            expected="a loader that is made when the number of ranks is known",
            next_step="Call torch.distributed.init_process_group before make_loader, or give the loader rank "
            "and world_size",
        )


def _in_group(started: Ranks, rank: int, world_size: int) -> Ranks:
    """Return the place of a process in a process group, given the place that its launcher gave it.

    Each started process may have spawned several ranks, as in `mp.spawn` below srun.
    """
    if (rank, world_size) == (started.rank, started.world_size):
        return started
    if world_size < started.world_size:
        raise UsageError(
            f"torch.distributed says that this is rank {rank} of {world_size}, but {started.launcher} "
            f"started {started.world_size} processes, so samples would be read more than once",
            expected="a process group of all started processes",
            next_step=f"Give init_process_group the numbers of the launcher, {_EXPLICIT}",
        )
    spawned = world_size // started.world_size
    if spawned * started.world_size != world_size or rank // spawned != started.rank:
        warnings.warn(
            f"torch.distributed says that this is rank {rank} of {world_size}, and {started.launcher} says "
            f"rank {started.rank} of {started.world_size}: the loader uses the numbers of torch.distributed",
            stacklevel=3,
        )
        return Ranks(rank, world_size, source="torch.distributed")
    local_rank = started.local_rank * spawned + rank % spawned
    here = started.local_world_size * spawned
    return Ranks(rank, world_size, local_rank, here, started.node, started.nodes, "torch.distributed")


def _started(env: Mapping[str, str]) -> Ranks:
    """Return the place that the launchers gave this process. The innermost launcher decides."""
    complete = [each for each in _LAUNCHERS if _is_complete(env, each) and not _is_of_slurm(env, each)]
    places = [_torchrun(env) if each.launcher == "torchrun" else _launched(env, each) for each in complete]
    if env.get("SLURM_PROCID"):
        places += filter(None, [_slurm(env)])
    if not places:
        if not env.get("SLURM_PROCID"):
            _refuse_unknown_sizes(env)
        return Ranks()
    for outer in places[1:]:
        _compare(env, places[0], outer)
    return places[0]


def _is_complete(env: Mapping[str, str], names: _Variables) -> bool:
    """Check whether a launcher has set its two variables. Refuse a launcher that set only one."""
    is_set = [bool(env.get(name)) for name in (names.rank, names.world_size)]
    if all(is_set) or not any(is_set):
        return all(is_set)
    if not is_set[0] and _number(env, names.world_size, 0) == 1:
        return False
    if not is_set[0] and "SLURM_PROCID" in env and any(name.startswith("SLURM_STEP") for name in env):
        return False  # a job script exported the number of ranks, and srun numbers them
    got, missing = (names.rank, names.world_size) if is_set[0] else (names.world_size, names.rank)
    raise UsageError(
        f"the environment variable {got} is {env[got]!r}, but {missing} is not set",
        expected="both or neither, since each rank reads its own part of the data",
        next_step=f"Let the launcher set both, or remove it (unset {got}), {_EXPLICIT}",
    )


def _is_of_slurm(env: Mapping[str, str], names: _Variables) -> bool:
    """Check whether srun set the variables of PMI. Then the variables of its step say more."""
    place = env.get(names.rank), env.get(names.world_size)
    step = env.get("SLURM_PROCID"), env.get("SLURM_STEP_NUM_TASKS")
    return names.launcher == "PMI" and place == step and not env.get(names.local_rank)


def _refuse_unknown_sizes(env: Mapping[str, str]) -> None:
    for name in _WITHOUT_SIZE:
        if env.get(name):
            raise UsageError(
                f"the environment variable {name} says that this is rank {env[name]}, but not of how many",
                expected="RANK and WORLD_SIZE, or a launcher that sets the number of ranks",
                next_step=f"Start it by mpirun of Open MPI, srun or torchrun, {_EXPLICIT}",
            )


def _compare(env: Mapping[str, str], inner: Ranks, outer: Ranks) -> None:
    """Refuse, or report, that the innermost launcher does not know of everything that another one started."""
    by_torchrun = inner.source == "torchrun" and any(name.startswith("TORCHELASTIC") for name in env)
    is_by_hand = inner.source == "torchrun" and not by_torchrun
    known = inner.nodes if by_torchrun else inner.world_size  # one torchrun on each node
    same_rank = (inner.rank, inner.world_size) == (outer.rank, outer.world_size)
    if same_rank or known > outer.world_size or (known == outer.world_size and not is_by_hand):
        return
    got = (
        f"{'RANK and WORLD_SIZE say' if is_by_hand else f'{inner.launcher} says'} that this is rank "
        f"{inner.rank} of {inner.world_size}, but {outer.launcher} started this process as rank {outer.rank} "
        f"of {outer.world_size}"
    )
    if is_by_hand:
        raise UsageError(
            f"{got}, so samples would be lost or read more than once",
            expected="variables that number all started processes",
            next_step=f"Remove the variables (unset RANK WORLD_SIZE), {_EXPLICIT}",
        )
    warnings.warn(f"{got}: the loader uses the numbers of {inner.launcher}", stacklevel=4)


def _launched(env: Mapping[str, str], names: _Variables) -> Ranks:
    """Return the place from a launcher that does not number nodes."""
    rank, world_size = _number(env, names.rank, 0), _number(env, names.world_size, 1)
    local = _number(env, names.local_world_size, 0) or world_size
    nodes = max(1, -(-world_size // local))
    local_rank, node = _number(env, names.local_rank, rank % local), min(rank // local, nodes - 1)
    return Ranks(rank, world_size, local_rank, local, node, nodes, names.launcher)


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


def _slurm(env: Mapping[str, str]) -> Ranks | None:
    """Return the place in a step of Slurm, or None if this process is not a task of a step."""
    rank = _number(env, "SLURM_PROCID", 0)
    step = any(name.startswith("SLURM_STEP") for name in env)
    if not step and not rank:
        return None  # the script of sbatch, which sees the tasks that it may start
    world_size = _number(env, "SLURM_STEP_NUM_TASKS", _number(env, "SLURM_NTASKS", 0))
    if not world_size:
        raise UsageError(
            f"the environment variable SLURM_PROCID is {rank}, but SLURM_STEP_NUM_TASKS is not set",
            expected="both, as srun sets them",
            next_step=f"Pass all variables of Slurm on to the program, {_EXPLICIT}",
        )
    node = _number(env, "SLURM_NODEID", 0)
    nodes = _number(env, "SLURM_STEP_NUM_NODES", _number(env, "SLURM_NNODES", node + 1))
    local_rank = _number(env, "SLURM_LOCALID", 0)
    on_nodes = _tasks(env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "")
    here = on_nodes[node] if node < len(on_nodes) else max(-(-world_size // nodes), local_rank + 1)
    if rank == 0 and world_size > 1 and env.get("SLURM_GTIDS") == "0" and here > 1:
        return None  # a script whose job was submitted from a step: the number of its tasks was inherited
    if rank == 0 and world_size > 1 and _is_interactive(env):
        warnings.warn(
            f"this program was started in the interactive shell of a step of {world_size} tasks (srun --pty)"
            ", so it is a single rank and reads all samples; srun or torchrun starts several from that shell",
            stacklevel=4,
        )
        return None
    return Ranks(rank, world_size, local_rank, here, node, nodes, "slurm")


def _is_interactive(env: Mapping[str, str]) -> bool:
    """Check whether a user started this program in the shell of `srun --pty`, and not srun itself.

    Steps that are started from that shell inherit SLURM_PTY_PORT. But srun makes each task the head of a
    process group, in which everything stays that no interactive shell has started.
    """
    return "SLURM_PTY_PORT" in env and env.get("SLURM_TASK_PID") != str(os.getpgrp())


def _tasks(text: str) -> list[int]:
    """Parse the tasks on each node from a text such as `2(x3),1`. Return [] for any other text."""
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
    """Return the first name in a compressed node list.

    Args:
        nodes: The list as SLURM writes it, such as `n[01-03,7],gpu2`.

    Raises:
        UsageError: The list does not have this form.
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
