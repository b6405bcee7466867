"""SLURM: is it here, are we inside a job, is this a login node?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from helpers.doctor.finding import Finding


def findings() -> Iterator[Finding]:
    """One finding: the job we are in, the login node we are on, or that there is no SLURM."""
    job = os.environ.get("SLURM_JOB_ID")
    sbatch = shutil.which("sbatch")
    if job:
        nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
        yield Finding("SLURM", f"inside job {job} ({nodes} node{'s' if nodes != '1' else ''})")
    elif sbatch:
        yield Finding(
            "SLURM",
            f"{sbatch}, not inside a job: this looks like a login node",
            "warn",
            "Look and submit here; pack, measure and train inside a job (salloc or sbatch).",
        )
    else:
        yield Finding("SLURM", "not here", advice="Nothing to do: job scripts need it, the course does not.")
