"""Where the ranks of a job meet: an address and a port that all of them derive from the same facts.

The trap: SLURM tells no address. Its node list is compressed (`n[01-03,7],gpu2`), and `scontrol` may be
missing inside a container; so the first name is read from the list itself. The port comes from the job
number, since two jobs may share a node. Notebook 10 uses it.

Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; torchrun sets MASTER_ADDR and MASTER_PORT itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from smallfiles.errors import UsageError

_FIRST_PORT, _PORTS = 20_000, 12_000  # below the range that Linux gives to outgoing connections


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
    told = env.get("MASTER_PORT", "")
    if told.isdigit():
        return address, int(told)
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
