"""This computer: usable CPUs, memory limit, file systems, quota, login or compute node.

The trap: inside a job or a container `os.cpu_count()` and the memory that `free` shows are those of the
whole node. A program that uses them starts 128 workers on 4 CPUs, or stages 200 GB into a job that may
use 32 and is killed. Notebooks 00 and 01 teach it.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from smallfiles.machine.cgroups import MemoryLimit as MemoryLimit
from smallfiles.machine.cgroups import cpu_quota as cpu_quota
from smallfiles.machine.cgroups import memory_limit as memory_limit
from smallfiles.machine.cgroups import read_lines
from smallfiles.machine.filesystems import FileSystem as FileSystem
from smallfiles.machine.filesystems import filesystem as filesystem
from smallfiles.machine.filesystems import is_parallel_filesystem as is_parallel_filesystem
from smallfiles.machine.nodes import Node as Node
from smallfiles.machine.nodes import node as node
from smallfiles.machine.nodes import warn_on_login_node as warn_on_login_node
from smallfiles.machine.quotas import Quota as Quota
from smallfiles.machine.quotas import Striping as Striping
from smallfiles.machine.quotas import quota as quota
from smallfiles.machine.quotas import quota_note as quota_note
from smallfiles.machine.quotas import stripes_for as stripes_for
from smallfiles.machine.quotas import striping as striping
from smallfiles.machine.quotas import striping_note as striping_note


def usable_cpus() -> int:
    """Number of CPUs that this process may use.

    More readers than CPUs help only while they wait; more decoders than CPUs slow each other down.

    Returns:
        The CPUs of the affinity mask, limited by the CPU quota of the control group; at least 1.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else min(allowed, quota)


def memory_limit_bytes() -> int:
    """Memory that the processes of this job may use together.

    Files in `/dev/shm` and the buffers of all workers count towards it.

    Returns:
        The limit in bytes: the lowest of the control groups', or the physical memory.
    """
    return memory_limit().limit_bytes


def describe() -> dict[str, Any]:
    """The machine as recorded with a measurement, JSON-ready.

    A rate means nothing without its machine. The record has no user, host or path.

    Returns:
        CPU model, architecture, CPUs usable and present, memory in bytes, kernel, system, Python.
    """
    return {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cpus_usable": usable_cpus(),
        "cpus_present": os.cpu_count() or 1,
        "memory_bytes": memory_limit_bytes(),
        "kernel": platform.release(),
        "system": _system_name(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    """Name of the model; on ARM, where the kernel has none, the architecture."""
    for line in read_lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
