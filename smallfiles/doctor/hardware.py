"""Python, CPUs, memory and the limits of the process."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator

from smallfiles import machine
from smallfiles.doctor.finding import Finding
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
    value = f"{usable} usable of {present}"
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if asked.isdigit() and int(asked) > usable:
        return Finding(
            "CPUs",
            f"{value}, {asked} asked for",
            "warn",
            'srun does not inherit the number: start with srun --cpus-per-task="$SLURM_CPUS_PER_TASK".',
        )
    if usable == 1:
        return Finding("CPUs", value, "warn", "Ask for more (--cpus-per-task): loading needs a few workers.")
    if usable < present:
        return Finding("CPUs", value, advice=f"Start at most {usable} workers, whatever os.cpu_count() says.")
    return Finding("CPUs", value)


def _memory(limit: machine.MemoryLimit) -> Finding:
    value = f"{bytes_text(limit.limit_bytes)} ({limit.source})"
    if limit.limit_bytes < NEEDED_MEMORY_BYTES:
        return Finding("memory", value, "warn", "Ask for at least 4 GB (--mem); PyTorch alone takes one.")
    if limit.source != "physical memory":
        return Finding(
            "memory", value, advice="Your job's limit; what you put into /dev/shm counts against it."
        )
    return Finding("memory", value)


def _open_files() -> Finding:
    import resource  # Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if soft != resource.RLIM_INFINITY and soft < NEEDED_OPEN_FILES:
        possible = NEEDED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(NEEDED_OPEN_FILES, hard)
        if possible > soft:
            advice = f'Run `ulimit -n {possible}` first: workers may fail with "received 0 items of ancdata".'
        else:
            advice = "Use few workers and few shards at once; only an administrator can raise this."
        return Finding("open files", value, "warn", advice)
    return Finding("open files", value)
