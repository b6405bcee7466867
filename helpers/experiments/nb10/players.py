"""The environment that srun, torchrun, `sbatch`, `salloc` or a laptop gives a process, and such processes.

With them one machine plays several nodes: a process that is given the variables of rank 3 on node 1 does what
it would do there. The traps: the job script and the shell of `salloc` see SLURM_NTASKS too, though each is
one process; and a rank that keeps the variables of the kernel's own job would believe those, so all of them
go first. Notebook 10 shows them.

Source: recorded in jobs of the local cluster (slurm/local, Slurm 22.05), that of `salloc` with
LaunchParameters=use_interactive_step, for without it the shell stays where it was and has no step; torchrun,
"Environment Variables".
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from smallfiles.errors import ResourceError
from smallfiles.machine.ranks import ranks

_Answer = TypeVar("_Answer")
_LIMIT_S, _END_S = 120.0, 5.0
_INTERACTIVE_STEP = 4_294_967_290
_PREFIXES = ("SLURM", "SRUN", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "ROLE_", "TORCHELASTIC")
_SHOWN = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID",
          "SLURM_STEP_NUM_TASKS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")  # fmt: skip


def script(nodes: int = 2, per_node: int = 2, cpus: int = 2) -> dict[str, str]:
    """The job script itself: one process, on the first node.

    Args:
        nodes: Nodes of the job.
        per_node: Tasks per node.
        cpus: CPUs per task.
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


def _step(number: int, nodes: int, per_node: int) -> dict[str, str]:
    around = script(nodes, per_node)
    return {
        "SLURM_STEP_ID": str(number),
        "SLURM_STEP_NODELIST": around["SLURM_JOB_NODELIST"],
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_STEP_TASKS_PER_NODE": around["SLURM_TASKS_PER_NODE"],
    }


def salloc(nodes: int = 2, per_node: int = 2) -> dict[str, str]:
    """The shell of `salloc` where sites have `use_interactive_step`: a step of one task.

    Args:
        nodes: Nodes of the job.
        per_node: Tasks per node.
    """
    return {**script(nodes, per_node), **_step(_INTERACTIVE_STEP, 1, 1)}


def srun(rank: int, nodes: int = 2, per_node: int = 2, cpus: int = 2) -> dict[str, str]:
    """A task that `srun` started.

    Args:
        rank: Its number.
        nodes: Nodes of the job.
        per_node: Tasks per node.
        cpus: CPUs per task.
    """
    node, local = divmod(rank, per_node)
    return {
        **script(nodes, per_node, cpus),
        **_step(0, nodes, per_node),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": f"n{node + 1}",
    }


def torchrun(rank: int, nodes: int = 2, per_node: int = 2, *, inside_srun: bool = False) -> dict[str, str]:
    """A process that `torchrun` started.

    Args:
        rank: Its number.
        nodes: How many times torchrun was started.
        per_node: Processes per node.
        inside_srun: Whether `srun` started one torchrun on each node; its variables are still set.
    """
    node, local = divmod(rank, per_node)
    return {
        **(srun(node, nodes, 1) if inside_srun else {}),
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes * per_node),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
    }


def table(launched: Mapping[str, Mapping[str, str]], guess: Mapping[str, int] | None = None) -> str:
    """The variables of each process, and the result of `ranks`, one line per process.

    Args:
        launched: Environments by how the process was started.
        guess: A participant's number of ranks of each, for a row below the right one.
    """
    names = [name for name in _SHOWN if any(name in environment for environment in launched.values())]
    rows = [["", *launched]]
    rows += [[name, *(environment.get(name, "-") for environment in launched.values())] for name in names]
    found = [ranks(environment) for environment in launched.values()]
    rows += [[""] * len(rows[0]), ["rank", *(str(each.rank) for each in found)]]
    rows += [["of", *(str(each.world_size) for each in found)]]
    if guess:
        rows += [["your guess: of", *(str(guess.get(name, "-")) for name in launched)]]
    rows += [["local rank", *(str(each.local_rank) for each in found)]]
    rows += [["node", *(str(each.node) for each in found)]]
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    return "\n".join(
        (row[0].ljust(widths[0]) + "".join(map(str.rjust, row[1:], widths[1:]))).rstrip() for row in rows
    )


def play(
    work: Callable[[], _Answer],
    places: Sequence[Mapping[str, str]],
    meanwhile: Callable[[Sequence[int]], None] | None = None,
) -> list[_Answer]:
    """Call `work()` in one forked process for each place, all at the same time.

    The ranks meet on this machine, since the played nodes have no address.

    Args:
        work: What each rank does; it finds its place in its environment.
        places: The environment of each rank.
        meanwhile: Called with the process numbers while they work.

    Returns:
        What each rank answered, in the order of `places`.

    Raises:
        ResourceError: A rank failed, or sent nothing for two minutes.
    """
    import torch._dynamo  # noqa: F401  # every optimizer imports it: once here is quicker than in each rank

    context = multiprocessing.get_context("fork")
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    running = []
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a kernel has threads; the ranks use none of them
        for environment in places:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(theirs, work, {**environment, **meeting}), daemon=True
            )
            process.start()
            theirs.close()
            running.append((process, ours))
    try:
        if meanwhile is not None:
            meanwhile([process.pid for process, _ in running if process.pid is not None])
        return [_received(pipe) for _, pipe in running]
    finally:
        for process, pipe in running:
            pipe.close()
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()


def _rank(pipe: Connection, work: Callable[[], object], environment: Mapping[str, str]) -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping a cell ends the ranks in another way
    for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
        del os.environ[name]
    os.environ.update(environment)
    try:
        pipe.send((True, work()))
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))


def _received(pipe: Connection) -> Any:
    try:
        fine, answer = pipe.recv() if pipe.poll(_LIMIT_S) else (False, f"it sent nothing in {_LIMIT_S:g} s")
    except EOFError:
        fine, answer = False, "it ended without a word"
    if fine:
        return answer
    raise ResourceError(
        f"a process that plays a rank failed ({answer})",
        expected="an answer from each rank",
        next_step="Mend the function that the ranks call, and run its cell again",
    )


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
