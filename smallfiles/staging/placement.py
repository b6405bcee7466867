"""What to copy, and where to: the files of a packed output, and node-local storage with room for them.

A packed file has sidecars next to it (digest, index, report of faults) and the fields that were added to it;
a folder of shards contains those of its shards. The key of an output is made from the digests, so two paths
with equal content share a copy, and a file that was packed again never matches its old copy. On a parallel
file system each question about a file is a round trip to a server, so few are sent, and those concurrently.

Storage that the site names comes first, then memory, then a TMPDIR on the system disk: `/tmp` there is
small and shared by all users of the node.

The traps: staging a tree of small files would be as slow as reading it; it is refused. And room for the copy
alone is not enough, since `/dev/shm` takes memory that the loader's workers need. Notebook 07.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from smallfiles import machine
from smallfiles.digests import SIDECARS, ContentDigest, added_fields, adds_to, sidecar
from smallfiles.errors import (
    DamagedFileError,
    FormatError,
    ResourceError,
    SourceError,
    UsageError,
    like,
    refuse_shortage,
)
from smallfiles.machine import nodelocal
from smallfiles.machine.filesystems import FileSystem
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.progress import bytes_text
from smallfiles.staging import StageConfig
from smallfiles.storage import ReadingPool, answered, remember

_SMALL_BYTES = 1 << 20
_MANY = 100
_REQUESTS_IN_FLIGHT = 16


@dataclass(frozen=True)
class Member:
    """One file to copy.

    Args:
        name: Relative path of its copy.
        source: Its path.
        bytes: Its size.
        seen: Device, inode, size and mtime (ns) before copying, to detect any change.
        digest: From packing; None if there is none.
        is_data: Whether it has content of its own, which sidecars do not have, but added fields have.
    """

    name: str
    source: Path
    bytes: int
    seen: tuple[int, int, int, int]
    digest: ContentDigest | None
    is_data: bool


@dataclass(frozen=True)
class PackedOutput:
    """A packed file or folder of shards, the files of which are copied together.

    Args:
        source: The packed file or folder.
        members: Its files, each packed file before its sidecars.
        key: Identifies content and names; equal for equal copies.
        shared: Whether it lies on servers, so that each read is a network request.
    """

    source: Path
    members: tuple[Member, ...]
    key: str
    shared: bool

    @property
    def name(self) -> str:
        """Name of the copy."""
        return self.source.name

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(member.bytes for member in self.members)

    @property
    def has_digests(self) -> bool:
        """Whether each packed file has a digest to compare with."""
        return all(member.digest is not None for member in self.members if member.is_data)


def find_output(src: Path) -> PackedOutput:
    """Describe what to copy; opens only the small digest files.

    Args:
        src: A packed file or a folder of shards.

    Raises:
        SourceError: It does not exist, or is neither a regular file nor a folder.
        UsageError: It is a tree of small files.
        DamagedFileError: A file has another size than its digest says.
    """
    src = Path(os.path.normpath(src.absolute()))  # not resolved: a link keeps its own name
    remember(src)
    with ReadingPool(_REQUESTS_IN_FLIGHT, "stage-stat") as pool:
        shared = pool.submit(machine.is_parallel_filesystem, src)
        around = pool.submit(_names_around, src)
        found = _status(src)
        names = around.result()
        if found is not None and stat.S_ISDIR(found.st_mode):
            pending = _shards(pool, src)
        else:
            pending = [pool.submit(_member, src, src.name, names, is_data=True, found=found)]
        pending += _sidecars(pool, src, src.name, names)
        for path in added_fields(src, names):
            pending.append(pool.submit(_member, path, path.name, names, is_data=True))
            pending += _sidecars(pool, path, path.name, names)
        members = [member for one in pending if (member := one.result()) is not None]
        return PackedOutput(src, tuple(members), _key(members), shared.result())


def _shards(pool: ThreadPoolExecutor, folder: Path) -> list[Future[Member | None]]:
    """Find the packed files in a folder, and their sidecars."""
    try:
        names = {name for name in answered(folder, os.listdir, folder) if not name.startswith(".")}
    except OSError as error:
        raise unreadable(folder, error) from error
    data = [folder / name for name in sorted(names) if not _belongs_to_another(name, names)]
    found = dict(zip(data, pool.map(_status, data), strict=True))
    _refuse_tree(folder, list(found.values()))
    pending = []
    for path in data:
        name = f"{folder.name}/{path.name}"
        pending.append(pool.submit(_member, path, name, names, is_data=True, found=found[path]))
        pending += _sidecars(pool, path, name, names)
    return pending


def _sidecars(
    pool: ThreadPoolExecutor, path: Path, name: str, names: set[str] | None
) -> list[Future[Member | None]]:
    """Find the sidecars of a packed file. `names` are all names in its folder, if they are known."""
    return [
        pool.submit(_member, path.with_name(path.name + suffix), name + suffix, names)
        for suffix in SIDECARS
        if names is None or path.name + suffix in names
    ]


def _member(
    path: Path,
    name: str,
    names: set[str] | None,
    *,
    is_data: bool = False,
    found: os.stat_result | None = None,
) -> Member | None:
    """Return the file to copy, or None for a sidecar that does not exist."""
    found = found or _status(path)
    if found is None or not stat.S_ISREG(found.st_mode):
        if is_data:
            raise _no_file(path, found)
        return None
    digest = _digest(path) if names is None or sidecar(path).name in names else None
    if digest is not None and digest.file_bytes != found.st_size:
        raise DamagedFileError(
            f"{path} has {found.st_size:,} bytes",
            expected=f"the {digest.file_bytes:,} bytes of its digest",
            next_step="Pack it again, or copy it again from where it is whole",
        )
    return Member(name, path, found.st_size, identity(found), digest, is_data)


def _names_around(path: Path) -> set[str] | None:
    """List the names in the folder of a path, which costs few requests instead of one per suffix.

    Return None if the folder may not be listed.
    """
    with contextlib.suppress(OSError):
        return set(answered(path.parent, os.listdir, path.parent))
    return None


def _refuse_tree(folder: Path, found: Sequence[os.stat_result | None]) -> None:
    if not found:
        raise SourceError(
            f"{folder} is an empty folder",
            expected="a packed file or a folder of shards",
            next_step="Check the path, or make it with: smallfiles pack",
        )
    sizes = [one.st_size for one in found if one is not None and stat.S_ISREG(one.st_mode)]
    if len(sizes) < len(found) or (len(sizes) > _MANY and sum(sizes) < len(sizes) * _SMALL_BYTES):
        raise UsageError(
            f"{folder} is a tree of files, {len(found):,} on its first level",
            expected="one packed file, or a folder of large shards",
            next_step="Pack it first, since copying many small files is what takes long: "
            "smallfiles pack DIR OUT.tars",
        )


def _belongs_to_another(name: str, names: set[str]) -> bool:
    ended = (name.removesuffix(suffix) for suffix in SIDECARS if name.endswith(suffix))
    return adds_to(name) is not None or any(other in names for other in ended)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a path, or None if it does not exist."""
    try:
        return answered(path, path.stat)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def _digest(path: Path) -> ContentDigest | None:
    """Load the digest of a file, without a check whether it exists, which would cost a request."""
    try:
        return ContentDigest.load(sidecar(path))
    except FormatError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def _no_file(path: Path, found: os.stat_result | None) -> SourceError:
    if found is None:
        return unreadable(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    return SourceError(
        f"{path} is neither a file nor a folder",
        expected="a packed file or a folder of shards",
        next_step="Give the packed file itself",
    )


def identity(found: os.stat_result) -> tuple[int, int, int, int]:
    """Return the facts about a file that change when it is written to or replaced."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def unreadable(path: Path, error: OSError) -> SourceError:
    """Return the error for a source that cannot be read."""
    refuse_shortage(error, path)
    return SourceError(
        f"{path} cannot be read ({error.strerror or error})",
        expected="a packed file or a folder of shards",
        next_step=f"Check the path{like(path)} and its permissions",
    )


def _key(members: list[Member]) -> str:
    """Return the key under which equal outputs share a copy.

    Sidecars follow from the packed file, so their names and sizes are enough.
    """
    lines: list[list[object]] = []
    for member in members:
        content: object = None
        if member.digest is not None:
            content = [member.digest.algorithm, member.digest.block_bytes, *member.digest.blocks]
        elif member.is_data:
            content = [os.path.realpath(member.source), member.seen]
        lines.append([member.name, member.bytes, content])
    return hashlib.sha256(json.dumps(lines).encode("utf-8", "surrogateescape")).hexdigest()[:24]


AUTO = "auto"
_GIB = 1 << 30
_ON_DISK_BYTES = 256 << 20
INODES_TO_LEAVE = 100
_CONTROL_FILES = 8
_T = TypeVar("_T")


def candidates(where: str | Path, source: Path) -> tuple[list[NodeLocal], list[str]]:
    """Return the places to try, the best first, and sentences about the rejected places.

    Args:
        where: `auto`, or a directory.
        source: The path to copy. A copy on the same storage would be useless.

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
    return other.exists() and one.stat().st_dev == other.stat().st_dev  # `other` may be the URL of a store


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
    """Return the part of a folder's name that belongs to this machine, for storage that others see, too."""
    return f"{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"


def folder_kind(found: FileSystem) -> str:
    """Return `host_kind` on shared storage, where processes of other machines are not visible, or else ""."""
    return host_kind() if found.shared else ""


def _rank(place: NodeLocal) -> int:
    if place.variable == nodelocal.SITE_VARIABLE:
        return 0
    if place.variable and not is_system_disk(place):
        return 1
    return 2 if not place.variable else 3


def is_system_disk(place: NodeLocal) -> bool:
    """Check whether a directory that TMPDIR names is on the system disk, which is not meant for scratch."""
    return place.variable == "TMPDIR" and str(place.filesystem.mount) in ("/", "/tmp", "/var", "/var/tmp")


def _named(variable: str, path: Path) -> str:
    return f"{variable}={path}" if variable else str(path)


def why(place: NodeLocal, output: PackedOutput, passed: list[str], *, reused: bool) -> str:
    """Return the sentence that explains why a place was chosen."""
    kind = "memory" if place.in_memory else place.filesystem.kind
    left = f"{bytes_text(max(0, place.free_bytes - output.bytes))} stay free for this job"
    reason = f"chose {_named(place.variable, place.path)} ({kind})"
    reason += ", where a finished copy was" if reused else f": {left}"
    if is_system_disk(place):
        reason += "; it is the system disk, shared by all users of the node"
    return f"{reason}; passed over: {'; '.join(passed)}" if passed else reason


def leave_bytes(place: NodeLocal, config: StageConfig) -> int:
    """Return how many bytes must stay free after the copy."""
    if config.leave_bytes is not None:
        return config.leave_bytes
    if place.in_memory:
        return min(_GIB + machine.usable_cpus() * _GIB // 2, machine.memory_limit_bytes() // 4)
    return min(_ON_DISK_BYTES, place.filesystem.total_bytes // 20)


def check_room(place: NodeLocal, output: PackedOutput, config: StageConfig) -> None:
    """Refuse, before the first byte, a copy that would fill the disk or get the job killed.

    Raises:
        ResourceError: Bytes or inodes are missing, or the job's memory limit would be reached.
    """
    now = nodelocal.node_local(place.path, place.variable)  # other jobs may have copied since
    block = max(now.filesystem.block_bytes, 1)
    need = sum(-(-member.bytes // block) * block for member in output.members) + _CONTROL_FILES * block
    leave = leave_bytes(now, config)
    inodes = len(output.members) + _CONTROL_FILES + INODES_TO_LEAVE
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


def choose(where: str | Path, output: PackedOutput, config: StageConfig) -> tuple[NodeLocal, str]:
    """Choose the first place with enough room, and return it with a sentence that explains the choice.

    Raises:
        ResourceError: No place has enough room.
    """
    _, place, passed = in_first(where, output, lambda place: check_room(place, output, config))
    return place, why(place, output, passed, reused=False)


def in_first(
    where: str | Path, output: PackedOutput, use: Callable[[NodeLocal], _T]
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
