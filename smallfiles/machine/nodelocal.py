"""Node-local storage: where it is, and how much of it this job may use.

Sites give it many names, and storage in memory has two limits: the free space in `/dev/shm`, and the
memory limit of the job. The trap: `/dev/shm` looks half empty while the job is one gigabyte below its
limit, since files there count as memory of the job. Notebook 07 teaches it.

Short, since staging, the ring and the doctor need nothing else about the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smallfiles.machine import meminfo_bytes, memory_limits, read_lines, read_words
from smallfiles.machine.filesystems import FileSystem, filesystem

SITE_VARIABLE = "SMALLFILES_NODE_LOCAL"
"""Set in the file of a site, to override the other names."""

VARIABLES = (SITE_VARIABLE, "SLURM_TMPDIR", "LOCAL_SCRATCH", "VSC_SCRATCH_NODE", "L_SCRATCH", "TMPDIR")
"""Variables for node-local storage on different sites, the most reliable first."""

SHARED_MEMORY = Path("/dev/shm")
IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True)
class NodeLocal:
    """A writable directory of this node.

    Args:
        path: The directory.
        variable: The variable that names it; empty for `/dev/shm` itself.
        filesystem: Its file system.
        free_bytes: Bytes that this job may still write there, within its memory limit.
        in_memory: Whether files there count as memory of the job.
    """

    path: Path
    variable: str
    filesystem: FileSystem
    free_bytes: int
    in_memory: bool


def named_directories(env: Mapping[str, str] | None = None) -> list[tuple[str, Path]]:
    """List all directories that variables name, and `/dev/shm`. Each path is listed once, even if missing.

    Args:
        env: Environment variables; None means the variables of this process.
    """
    env = os.environ if env is None else env
    named = [(name, Path(env[name])) for name in VARIABLES if env.get(name)]
    found: dict[str, tuple[str, Path]] = {}
    for name, path in [*named, ("", SHARED_MEMORY)]:
        found.setdefault(os.path.realpath(path), (name, path))
    return list(found.values())


def problem_of(path: Path) -> str | None:
    """Return why `path` cannot be node-local storage, as a phrase to follow its name, or None."""
    if not path.is_absolute():
        return "is not an absolute path"
    if not path.is_dir():
        return "is not a folder" if path.exists() else "does not exist"
    if not os.access(path, os.W_OK | os.X_OK):
        return "is not writable"
    found = filesystem(path)
    return f"is on {found.kind}, which other nodes share" if found.shared else None


def node_local(path: Path, variable: str = "") -> NodeLocal:
    """Measure one directory.

    Args:
        path: An existing directory.
        variable: The variable that names it.
    """
    found = filesystem(path)
    in_memory = found.kind in IN_MEMORY
    free = min(found.free_bytes, memory_headroom_bytes()) if in_memory else found.free_bytes
    return NodeLocal(path, variable, found, free, in_memory)


def memory_headroom_bytes(root: Path = Path("/")) -> int:
    """Memory that this job may still use before it is killed.

    The page cache does not count, since the kernel can reclaim it; files in `/dev/shm` do.

    Args:
        root: Where `proc` and `sys` are; another folder in tests.

    Returns:
        The minimum over the control groups and the machine; at least zero.
    """
    left = [meminfo_bytes("MemAvailable", root)]
    for version, folder, limit_bytes in memory_limits(root):
        used = read_words(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if len(used) == 1 and used[0].isdigit():
            left.append(limit_bytes - int(used[0]) + _cache_bytes(folder, version))
    return max(0, min(left))


def _cache_bytes(folder: Path, version: int) -> int:
    """Page cache of a group, which the kernel can reclaim; without files in memory."""
    prefix = "" if version == 2 else "total_"
    wanted = (f"{prefix}inactive_file", f"{prefix}active_file")
    words = [line.split() for line in read_lines(folder / "memory.stat")]
    return sum(int(pair[1]) for pair in words if len(pair) == 2 and pair[0] in wanted and pair[1].isdigit())
