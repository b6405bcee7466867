"""Choose the node-local storage for a copy, and explain the choice.

Storage that the site names comes first, then memory, then a TMPDIR on the system disk: `/tmp` there is
small and shared by all users of the node. The trap: room for the copy alone is not enough, since
`/dev/shm` takes memory that the loader's workers need. Notebook 07.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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
_T = TypeVar("_T")


def candidates(where: str | Path, source: Path) -> tuple[list[NodeLocal], list[str]]:
    """Places to try, the best first, and the rejected ones, in sentences.

    Args:
        where: `auto`, or a directory.
        source: What to copy; a copy on the same storage would be useless.

    Raises:
        ResourceError: The requested directory cannot be used.
        UsageError: Its name is empty.
    """
    if not str(where).strip():  # from an unset variable in a job script
        raise UsageError(
            "the place to stage to is empty",
            expected="auto or a directory",
            next_step="Check that the variable in your job script is set",
        )
    if str(where) != AUTO:
        return [_requested(Path(where))], []
    found, passed = [], []
    for variable, path in nodelocal.named_directories():
        named = _named(variable, path)
        problem = nodelocal.problem_of(path)
        if problem is None and _same_storage(path, source):
            problem = f"is on the same storage as {source.name}"
        if problem is None:
            found.append(nodelocal.node_local(path, variable))
        else:
            passed.append(f"{named} {problem}")
    return sorted(found, key=_rank), passed


def _same_storage(one: Path, other: Path) -> bool:
    return other.exists() and one.stat().st_dev == other.stat().st_dev  # not so the URL of a store


def _requested(path: Path) -> NodeLocal:
    path = path.absolute()
    problem = nodelocal.problem_of(path)
    if problem is not None and path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        problem = None  # a shared file system may be named on purpose
    if problem is not None:
        raise ResourceError(
            f"{path} {problem}",
            expected="a directory on this node that you may write to",
            next_step="Choose another place with --where, or leave it out",
        )
    return nodelocal.node_local(path)


def host_kind() -> str:
    """Distinguishes this machine's folder on storage that other machines see too."""
    return f"{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"


def folder_kind(found: FileSystem) -> str:
    """A folder per machine on shared storage, where the processes of other machines are not visible."""
    return host_kind() if found.shared else ""


def _rank(place: NodeLocal) -> int:
    if place.variable == nodelocal.SITE_VARIABLE:
        return 0
    if place.variable and not is_system_disk(place):
        return 1
    return 2 if not place.variable else 3


def is_system_disk(place: NodeLocal) -> bool:
    """Whether a directory named by TMPDIR lies on the system disk, which is not meant for scratch."""
    return place.variable == "TMPDIR" and str(place.filesystem.mount) in ("/", "/tmp", "/var", "/var/tmp")


def _named(variable: str, path: Path) -> str:
    return f"{variable}={path}" if variable else str(path)


def why(place: NodeLocal, output: Output, passed: list[str], *, reused: bool) -> str:
    """The sentence that explains why a place was chosen."""
    kind = "memory" if place.in_memory else place.filesystem.kind
    left = f"{bytes_text(max(0, place.free_bytes - output.bytes))} stay free for this job"
    reason = f"chose {_named(place.variable, place.path)} ({kind})"
    reason += ", where a finished copy was" if reused else f": {left}"
    if is_system_disk(place):
        reason += "; it is the system disk, shared by all users of the node"
    return f"{reason}; passed over: {'; '.join(passed)}" if passed else reason


def leave_bytes(place: NodeLocal, config: StageConfig) -> int:
    """Bytes that must stay free after the copy."""
    if config.leave_bytes is not None:
        return config.leave_bytes
    if place.in_memory:
        return min(_GIB + machine.usable_cpus() * _GIB // 2, machine.memory_limit_bytes() // 4)
    return min(_ON_DISK_BYTES, place.filesystem.total_bytes // 20)


def check_room(place: NodeLocal, output: Output, config: StageConfig) -> None:
    """Refuse, before the first byte, a copy that would fill the disk or get the job killed.

    Raises:
        ResourceError: Bytes or inodes are missing, or the job's memory limit would be reached.
    """
    now = nodelocal.node_local(place.path, place.variable)  # other jobs may have copied since
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
            expected=f"{bytes_text(need)} for {output.name} and {bytes_text(leave)} in addition"
            + (" for workers and their batches" if now.in_memory else ""),
            next_step=("Ask for more memory (--mem)" if now.in_memory else "Remove what is not needed there")
            + ", or choose another place with --where",
        )


def choose(where: str | Path, output: Output, config: StageConfig) -> tuple[NodeLocal, str]:
    """The first place that has the room, and the sentence that explains the choice.

    Raises:
        ResourceError: No place has it.
    """
    _, place, passed = in_first(where, output, lambda place: check_room(place, output, config))
    return place, why(place, output, passed, reused=False)


def in_first(
    where: str | Path, output: Output, use: Callable[[NodeLocal], _T]
) -> tuple[_T, NodeLocal, list[str]]:
    """Use the first place that can be used.

    Args:
        where: `auto`, or a directory.
        output: What to copy there.
        use: Raises a ResourceError where it cannot be used.

    Returns:
        What `use` returned, that place, and the rejected ones, in sentences.

    Raises:
        ResourceError: No place can be used.
    """
    found, passed = candidates(where, output.source)
    for place in found:
        try:
            return use(place), place, passed
        except ResourceError as error:
            if str(where) != AUTO:
                raise
            passed.append(error.got)
    raise ResourceError(
        f"no storage of this node takes {output.name} ({bytes_text(output.bytes)}): " + "; ".join(passed),
        expected="a directory with room, named by SLURM_TMPDIR, TMPDIR or the site, or /dev/shm",
        next_step="Read it where it is, ask for more memory, or name a place with --where DIR",
    )
