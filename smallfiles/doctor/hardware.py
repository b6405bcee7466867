"""Python, CPUs, memory and the limits of the process; SLURM: is it here, are we in a job, on a login node?"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator

from smallfiles import machine
from smallfiles.doctor.finding import Finding, judged
from smallfiles.progress import bytes_text

NEEDED_OPEN_FILES = 4096
NEEDED_MEMORY_BYTES = 4 * 10**9


def findings() -> Iterator[Finding]:
    """Python, usable CPUs, memory limit, open-file limit."""
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield _cpus(machine.usable_cpus(), os.cpu_count() or 1)
    yield _memory(machine.memory_limit())
    yield _open_files()


def _cpus(usable: int, present: int) -> Finding:
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    more = asked.isdigit() and int(asked) > usable
    srun = 'srun does not inherit the number: start with srun --cpus-per-task="$SLURM_CPUS_PER_TASK".'
    return judged(
        "CPUs",
        f"{usable} usable of {present}" + f", {asked} asked for" * more,
        (more, "warn", srun),
        (usable == 1, "warn", "Ask for more (--cpus-per-task): loading needs a few workers."),
        (usable < present, "ok", f"Start at most {usable} workers, whatever os.cpu_count() says."),
    )


def _memory(limit: machine.MemoryLimit) -> Finding:
    little, counted = limit.limit_bytes < NEEDED_MEMORY_BYTES, limit.source != "physical memory"
    return judged(
        "memory",
        f"{bytes_text(limit.limit_bytes)} ({limit.source})",
        (little, "warn", "Ask for at least 4 GB (--mem); PyTorch alone takes one."),
        (counted, "ok", "Your job's limit; what you put into /dev/shm counts against it."),
    )


def _open_files() -> Finding:
    import resource  # Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    possible = NEEDED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(NEEDED_OPEN_FILES, hard)
    few = not unlimited and soft < NEEDED_OPEN_FILES
    raised = f'Run `ulimit -n {possible}` first: workers may fail with "received 0 items of ancdata".'
    fixed = "Use few workers and few shards at once; only an administrator can raise this."
    value = "unlimited" if unlimited else f"{soft:,}"
    return judged("open files", value, (few and possible > soft, "warn", raised), (few, "warn", fixed))


def scheduler() -> Iterator[Finding]:
    """One finding: the job we are in, the login node we are on, or that there is no SLURM."""
    here = machine.node()
    if os.environ.get("SLURM_JOB_ID"):
        nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
        value = f"inside job {here.job} ({nodes} node{'s' if nodes != '1' else ''})"
        outside = "This shell is not on its nodes: start programs with srun, or a shell with srun --pty bash."
        yield judged("SLURM", value, (here.kind == "login", "warn", outside))
    elif here.job:
        yield Finding("SLURM", f"not here; {here.why}", advice="Job scripts of the course are for SLURM.")
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
