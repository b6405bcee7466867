"""Which node-local storage takes a copy, and why that one.

What a site named for the purpose comes first, then memory, and a TMPDIR on the system's own disk
last: `/tmp` there is small, and shared with everybody on the node. The trap: room for the copy alone
is not enough. The loader's workers need memory of their own, and `/dev/shm` is taken from it.
Notebook 07.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from smallfiles import machine
from smallfiles.errors import ResourceError, UsageError
from smallfiles.machine import nodelocal
from smallfiles.machine.filesystems import FileSystem
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.progress import bytes_text
from smallfiles.staging.config import StageConfig
from smallfiles.staging.outputs import Output

AUTO = "auto"
_GIB = 1 << 30
_ON_DISK_BYTES = 256 << 20
_INODES_TO_LEAVE = 100
_CONTROL_FILES = 8


def candidates(where: str | Path, source: Path | None) -> tuple[list[NodeLocal], list[str]]:
    """Places to try, the best first, and what was passed over, in sentences.

    Args:
        where: `auto`, or a directory.
        source: What is to be copied; its own storage would gain nothing. None if it is on no file system.

    Raises:
        ResourceError: The directory that was asked for cannot serve.
        UsageError: Its name is empty.
    """
    if not str(where).strip():  # which a job script makes of a variable that is not set
        raise UsageError(
            "the place to stage to is empty",
            expected="auto or a directory",
            next_step="Check that the variable in your job script is set",
        )
    if str(where) != AUTO:
        return [_asked_for(Path(where))], []
    found, passed = [], []
    for variable, path in nodelocal.named_directories():
        named = _named(variable, path)
        problem = nodelocal.problem_of(path)
        if problem is None and source is not None and _same_storage(path, source):
            problem = f"is on the same storage as {source.name}"
        if problem is None:
            found.append(nodelocal.node_local(path, variable))
        else:
            passed.append(f"{named} {problem}")
    return sorted(found, key=_rank), passed


def _same_storage(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _asked_for(path: Path) -> NodeLocal:
    path = path.absolute()
    problem = nodelocal.problem_of(path)
    if problem is not None and path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        problem = None  # who names a shared file system on purpose may have it
    if problem is not None:
        raise ResourceError(
            f"{path} {problem}",
            expected="a directory on this node that you may write to",
            next_step="Choose another place with --where, or leave it out",
        )
    return nodelocal.node_local(path)


def host_kind() -> str:
    """What distinguishes this machine's folder on storage that others see too."""
    return f"{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"


def folder_kind(found: FileSystem) -> str:
    """Where machines share the storage, each has its own folder: none sees the others' processes."""
    return host_kind() if found.shared else ""


def _rank(place: NodeLocal) -> int:
    if place.variable == nodelocal.SITE_VARIABLE:
        return 0
    if place.variable and not is_system_disk(place):
        return 1
    return 2 if not place.variable else 3


def is_system_disk(place: NodeLocal) -> bool:
    """Whether a directory named by TMPDIR lies on the disk of the system, which is nobody's scratch."""
    return place.variable == "TMPDIR" and str(place.filesystem.mount) in ("/", "/tmp", "/var", "/var/tmp")


def _named(variable: str, path: Path) -> str:
    return f"{variable}={path}" if variable else str(path)


def why(place: NodeLocal, output: Output, passed: list[str], *, reused: bool) -> str:
    """The sentence that tells why a place was chosen."""
    kind = "memory" if place.in_memory else place.filesystem.kind
    left = f"{bytes_text(max(0, place.free_bytes - output.bytes))} stay free for this job"
    told = f"chose {_named(place.variable, place.path)} ({kind})"
    told += ", where a finished copy was" if reused else f": {left}"
    if is_system_disk(place):
        told += "; it is the disk of the system, shared with everybody on the node"
    return f"{told}; passed over: {'; '.join(passed)}" if passed else told


def leave_bytes(place: NodeLocal, config: StageConfig) -> int:
    """What must stay free behind the copy."""
    if config.leave_bytes is not None:
        return config.leave_bytes
    if place.in_memory:
        return min(_GIB + machine.usable_cpus() * _GIB // 2, machine.memory_limit_bytes() // 4)
    return min(_ON_DISK_BYTES, place.filesystem.total_bytes // 20)


def check_room(place: NodeLocal, output: Output, config: StageConfig) -> None:
    """Refuse before the first byte what would end in a full disk or a killed job.

    Raises:
        ResourceError: Bytes or inodes are missing, or the job's memory limit would be met.
    """
    now = nodelocal.node_local(place.path, place.variable)  # others may have copied meanwhile
    block = max(now.filesystem.block_bytes, 1)
    need = sum(-(-member.bytes // block) * block for member in output.members) + _CONTROL_FILES * block
    leave = leave_bytes(now, config)
    inodes = len(output.members) + _CONTROL_FILES + _INODES_TO_LEAVE
    free = now.filesystem.inodes_free
    if free is not None and free < inodes:
        raise ResourceError(
            f"{place.path} has room for {free:,} more files",
            expected=f"{inodes:,} for {output.name}",
            next_step="Remove what is not needed there, or pack into fewer and larger shards",
        )
    if now.free_bytes < need + leave:
        limited = now.in_memory and now.free_bytes < now.filesystem.free_bytes
        what = "memory left to this job" if limited else "free"
        raise ResourceError(
            f"{place.path} has {bytes_text(now.free_bytes)} {what}",
            expected=f"{bytes_text(need)} for {output.name} and {bytes_text(leave)} beside it"
            + (" for workers and their batches" if now.in_memory else ""),
            next_step=("Ask for more memory (--mem)" if now.in_memory else "Remove what is not needed there")
            + ", stage a rank's own shards (--shards rank), or choose another place with --where",
        )


def nowhere(output: Output, passed: list[str]) -> ResourceError:
    """The sentence when no place is left."""
    return ResourceError(
        f"no storage of this node takes {output.name} ({bytes_text(output.bytes)}): " + "; ".join(passed),
        expected="a directory with room, named by SLURM_TMPDIR, TMPDIR or the site, or /dev/shm",
        next_step="Read it where it is, ask for more memory, or name a place with --where DIR",
    )
