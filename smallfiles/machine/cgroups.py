"""Limits of the control groups of this process, version 1 and 2.

The limit of a job may be set on any group between the process and the root of the hierarchy (SLURM sets
it on the job, the step or the task), so all of them are read and the lowest counts. The trap: in a
container `/proc/self/cgroup` may name a path that only the host has; the root of the mount shows which
part to remove.

Format: cgroups(7), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pysquashfs.mounts import Mount, read_mounts


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
    """The lowest memory limit that applies to this process.

    Args:
        root: Where `proc` and `sys` are; another folder in tests.

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
    """Microseconds of CPU time per period; zeros without a quota."""
    if version == 2:
        words = read_words(folder / "cpu.max")
    else:
        words = read_words(folder / "cpu.cfs_quota_us") + read_words(folder / "cpu.cfs_period_us")
    if len(words) == 2 and all(word.isdigit() for word in words):  # not "max", not -1
        return int(words[0]), int(words[1])
    return 0, 0


def own_groups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Each folder from the group of this process up to its mount, with the version of the hierarchy."""
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
    """A value of `/proc/meminfo`; the physical memory if it is missing."""
    for line in read_lines(root / "proc/meminfo"):
        words = line.split()
        if len(words) >= 2 and words[0] == f"{name}:" and words[1].isdigit():
            return int(words[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_words(path: Path) -> list[str]:
    """All words of a file; none if it cannot be read."""
    return " ".join(read_lines(path)).split()


def read_lines(path: Path) -> list[str]:
    """The lines of a file that may be missing, hidden or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
