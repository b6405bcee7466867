"""This computer: usable CPUs, memory limit, login or compute node.

The limit of a job may be set on any control group between the process and the root of the hierarchy (SLURM
sets it on the job, the step or the task), so all of them are read and the lowest counts.

The traps: inside a job or a container `os.cpu_count()` and the memory that `free` shows are those of the
whole node. A program that uses them starts 128 workers on 4 CPUs, or stages 200 GB into a job that may use 32
and is killed. In a container `/proc/self/cgroup` may name a path that only the host has; the root of the
mount shows which part to remove. And after `salloc` the shell stays on the login node. SLURM_JOB_ID is set
there too, but without `srun` programs still run on the login node; SLURMD_NODENAME distinguishes the two.
Notebooks 00 and 01 teach it.

Format: cgroups(7), proc_pid_mountinfo(5). Source: sbatch(1), srun(1) and salloc(1), "OUTPUT ENVIRONMENT
VARIABLES".
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from pysquashfs.mounts import Mount, read_mounts
from smallfiles.machine.filesystems import FileSystem as FileSystem
from smallfiles.machine.filesystems import Quota as Quota
from smallfiles.machine.filesystems import Striping as Striping
from smallfiles.machine.filesystems import filesystem as filesystem
from smallfiles.machine.filesystems import is_parallel_filesystem as is_parallel_filesystem
from smallfiles.machine.filesystems import quota as quota
from smallfiles.machine.filesystems import quota_note as quota_note
from smallfiles.machine.filesystems import stripes_for as stripes_for
from smallfiles.machine.filesystems import striping as striping
from smallfiles.machine.filesystems import striping_note as striping_note
from smallfiles.progress import bytes_text, plural


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use.

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
    """Describe the machine for the record of a measurement, as JSON can store it.

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
    """Return the name of the CPU model, or the architecture on ARM, where the kernel has no name."""
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


@dataclass(frozen=True)
class MemoryLimit:
    """A memory limit and its source.

    Args:
        limit_bytes: The limit.
        source: `physical memory`, `cgroup v1` or `cgroup v2`.
    """

    limit_bytes: int
    source: str


def memory_limit(root: Path = Path("/")) -> MemoryLimit:
    """Return the lowest memory limit that applies to this process.

    Args:
        root: The folder with `proc` and `sys`; another folder in tests.

    Returns:
        The limit in bytes and its source.
    """
    limits = [MemoryLimit(meminfo_bytes("MemTotal", root), "physical memory")]
    limits += [MemoryLimit(found, f"cgroup v{version}") for version, _, found in memory_limits(root)]
    return min(limits, key=lambda limit: limit.limit_bytes)


def memory_limits(root: Path) -> Iterator[tuple[int, Path, int]]:
    """Version, folder and bytes of each control group with a limit, from the process upwards."""
    for version, folder in own_groups("memory", root):
        words = read_words(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if len(words) == 1 and words[0].isdigit():  # "max" is no limit
            yield version, folder, int(words[0])


def cpu_quota(root: Path = Path("/")) -> int | None:
    """CPU quota of the control groups, in CPUs.

    Args:
        root: Where `proc` and `sys` are; another folder in tests.

    Returns:
        The lowest quota, rounded up to use all of it; None without a quota.
    """
    quotas = [
        -(-quota_us // period_us)
        for version, folder in own_groups("cpu", root)
        for quota_us, period_us in [_quota_and_period(version, folder)]
        if quota_us > 0 and period_us > 0
    ]
    return min(quotas, default=None)


def _quota_and_period(version: int, folder: Path) -> tuple[int, int]:
    """Return the quota and the period of CPU time in microseconds, or zeros without a quota."""
    if version == 2:
        words = read_words(folder / "cpu.max")
    else:
        words = read_words(folder / "cpu.cfs_quota_us") + read_words(folder / "cpu.cfs_period_us")
    if len(words) == 2 and all(word.isdigit() for word in words):  # not "max", not -1
        return int(words[0]), int(words[1])
    return 0, 0


def own_groups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yield each folder from the group of this process up to its mount, with the version of cgroups."""
    mounts = read_mounts(root / "proc/self/mountinfo")
    for line in read_lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if number == "0" and not controllers else 1
        if version == 2 or controller in controllers.split(","):
            mount = _hierarchy(mounts, version, controller)
            if mount is not None:
                yield from ((version, folder) for folder in _up_to_mount(mount, path, root))


def _hierarchy(mounts: list[Mount], version: int, controller: str) -> Mount | None:
    for mount in mounts:
        if version == 2 and mount.kind == "cgroup2":
            return mount
        if version == 1 and mount.kind == "cgroup" and controller in mount.options:
            return mount
    return None


def _up_to_mount(mount: Mount, group: str, root: Path) -> Iterator[Path]:
    path = PurePosixPath(group)
    inside = path.relative_to(mount.root) if path.is_relative_to(mount.root) else PurePosixPath()
    if ".." in inside.parts:  # outside of our cgroup namespace only the mount is visible
        inside = PurePosixPath()
    base = root / mount.point.lstrip("/")
    for part in (inside, *inside.parents):
        yield base / part


def meminfo_bytes(name: str, root: Path) -> int:
    """Return a value of `/proc/meminfo` in bytes, or the physical memory if it is missing."""
    for line in read_lines(root / "proc/meminfo"):
        words = line.split()
        if len(words) >= 2 and words[0] == f"{name}:" and words[1].isdigit():
            return int(words[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_words(path: Path) -> list[str]:
    """Return all words of a file, or an empty list if it cannot be read."""
    return " ".join(read_lines(path)).split()


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that may be missing, hidden, or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


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
