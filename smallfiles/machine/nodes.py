"""The kind of this computer: a node of a job, a login node, or a personal computer.

The trap: after `salloc` the shell stays on the login node. SLURM_JOB_ID is set there too, but without
`srun` programs still run on the login node; SLURMD_NODENAME distinguishes the two.

Source: sbatch(1), srun(1) and salloc(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from smallfiles.progress import bytes_text, plural

NodeKind: TypeAlias = Literal["compute", "login", "own"]

SILENCE = "SMALLFILES_LOGIN_OK"
"""Set it to 1 where heavy work on this node is allowed."""

HEAVY_BYTES = 5 * 10**9
HEAVY_FILES = 20_000
_OTHER_JOBS = {"PBS_JOBID": "PBS", "LSB_JOBID": "LSF", "FLUX_JOB_ID": "Flux"}
_SUBMITTERS = ("sbatch", "qsub", "bsub")


@dataclass(frozen=True)
class Node:
    """The detected kind of computer.

    Args:
        kind: `compute`, inside a job; `login`, where users submit jobs; `own`, neither.
        why: How it was detected.
        job: Number of the job, if there is one.
    """

    kind: NodeKind
    why: str
    job: str = ""


def node(env: Mapping[str, str] | None = None) -> Node:
    """Detect the kind of computer, from the environment and the PATH only.

    Args:
        env: The environment; another one in tests.
    """
    env = os.environ if env is None else env
    job = env.get("SLURM_JOB_ID", "")
    if job and (env.get("SLURMD_NODENAME") or env.get("SLURM_STEP_ID")):
        return Node("compute", f"inside SLURM job {job}", job)
    if job:
        return Node("login", f"job {job} has nodes, but this shell is not on them (salloc without srun)", job)
    for variable, scheduler in _OTHER_JOBS.items():
        if env.get(variable):
            return Node("compute", f"inside {scheduler} job {env[variable]}", env[variable])
    for name in _SUBMITTERS:
        if found := shutil.which(name, path=env.get("PATH", os.defpath)):
            return Node("login", f"{found} is here and no job is")
    return Node("own", "no scheduler is here")


def warn_on_login_node(what: str, *, size_bytes: int, files: int = 0) -> None:
    """Warn on standard error before heavy work on a login node.

    A hundred users share a login node; some sites kill heavy processes there without a message.

    Args:
        what: The work, such as `packing`.
        size_bytes: Bytes that it will read, as far as known.
        files: Files that it will open.
    """
    heavy, here = size_bytes >= HEAVY_BYTES or files >= HEAVY_FILES, node()
    if not heavy or here.kind != "login" or os.environ.get(SILENCE, "") not in ("", "0"):
        return
    known = ((size_bytes, bytes_text(size_bytes)), (files, plural(files, "file")))
    amount = " in ".join(text for number, text in known if number)
    sys.stderr.write(
        f"warning: {what} {amount} is heavy work for a login node, which this seems to be ({here.why}); "
        f"run it in a job (srun, salloc or sbatch), or set {SILENCE}=1 if it is fine here\n"
    )
