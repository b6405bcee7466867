"""SLURM: is it here, are we inside a job, is this a login node?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from smallfiles import machine
from smallfiles.doctor.finding import Finding


def findings() -> Iterator[Finding]:
    """One finding: the job we are in, the login node we are on, or that there is no SLURM."""
    here = machine.node()
    in_slurm = bool(os.environ.get("SLURM_JOB_ID"))
    if here.job and not in_slurm:
        yield Finding("SLURM", f"not here; {here.why}", advice="Job scripts of the course are for SLURM.")
    elif in_slurm:
        yield _job(here)
    elif sbatch := shutil.which("sbatch"):
        yield Finding(
            "SLURM",
            f"{sbatch}, not inside a job: is this a login node?",
            "warn",
            "There only look and submit: pack, measure and train inside a job (salloc or sbatch). "
            "On a machine of your own go on.",
        )
    else:
        yield Finding("SLURM", "not here", advice="Nothing to do: job scripts need it, the course does not.")


def _job(here: machine.Node) -> Finding:
    nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
    value = f"inside job {here.job} ({nodes} node{'s' if nodes != '1' else ''})"
    if here.kind == "login":
        advice = "This shell is not on its nodes: start programs with srun, or a shell with srun --pty bash."
        return Finding("SLURM", value, "warn", advice)
    return Finding("SLURM", value)
