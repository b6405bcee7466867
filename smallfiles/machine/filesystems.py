"""The file system of a path: type, free space, free inodes, shared or local.

The trap: a file system can run out of *inodes* while bytes are free ("No space left on device" means
either), and some (btrfs) do not count inodes: their zero means unknown, not full. Notebook 01 teaches it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pysquashfs.mounts import Mount, read_mounts
from smallfiles.errors import of_system
from smallfiles.storage import answered

_ON_SERVERS = """
    9p afs beegfs beegfs_nodev ceph cifs coda cvmfs daos dvs gfs2 glusterfs gpfs lustre lustre_lite mmfs
    ncpfs nfs nfs3 nfs4 ocfs2 openafs orangefs panfs pvfs2 quobyte scoutfs smb2 smb3 smbfs weka wekafs
"""
_FUSE_TO_SERVERS = """
    alluxio-fuse beegfs ceph ceph-fuse cvmfs cvmfs2 davfs dfuse gcsfuse glusterfs goofys gpfs hdfs juicefs
    lizardfs lustre mfs moosefs mount-s3 mountpoint-s3 quobyte rclone s3fs seaweedfs smallfiles-slowfs sshfs
    xtreemfs
"""

SHARED_KINDS = frozenset(_ON_SERVERS.split())
"""Types where each open is a request to a shared server."""

SHARED_FUSE_KINDS = frozenset(_FUSE_TO_SERVERS.split())
"""Programs of `fuse.NAME` mounts that read from a server."""


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount of `path`: the longest mount point that contains it, the last of equals.

    Args:
        path: Absolute, without symbolic links.
        mounts: What `read_mounts` returned.
    """
    around = [each for each in mounts if f"{path}/".startswith(f"{each.point.rstrip('/')}/")]
    return max(reversed(around), key=lambda mount: len(mount.point), default=None)


@dataclass(frozen=True)
class FileSystem:
    """A file system as seen from one path.

    Args:
        kind: Type as the kernel names it (`lustre`, `ext4`, `tmpfs`), or `unknown`; `fuse.NAME` where a
            program named so reads from servers.
        shared: Whether its files are on servers, so that each open is a network request.
        block_bytes: Unit of allocation: the minimum cost of a file.
        total_bytes: Size.
        free_bytes: Free for this user.
        inodes_total: Maximum number of files and folders; None if unknown.
        inodes_free: Free inodes; None if unknown.
        mount: The mount point.
    """

    kind: str
    shared: bool
    block_bytes: int
    total_bytes: int
    free_bytes: int
    inodes_total: int | None
    inodes_free: int | None
    mount: Path


def filesystem(path: Path, table: Path = Path("/proc/self/mountinfo")) -> FileSystem:
    """The file system of `path`.

    Check it before writing: small files reach the limit of inodes long before that of bytes.

    Args:
        path: Any path; if it does not exist, the nearest parent that does is examined.
        table: The table of mounts; another file in tests.

    Returns:
        Type, sizes in bytes and inodes.

    Raises:
        ResourceError: Not even the root of the tree can be examined.
        StorageError: The storage does not answer.
    """
    real = existing(path)
    try:
        stats = answered(real, os.statvfs, real)
    except OSError as error:
        raise of_system(error, f"the file system of {path} cannot be examined ({error.strerror})") from error
    mount = mount_of(str(real), read_mounts(table))  # read after statvfs, which triggers automounts
    kind, source = (mount.kind, mount.source) if mount else ("unknown", "")
    if kind == "fuse" and _is_shared(kind, source):  # MooseFS and others put their name in the source only
        kind = f"fuse.{driver(kind, source)}"
    return FileSystem(
        kind=kind,
        shared=_is_shared(kind, source),
        block_bytes=stats.f_frsize or stats.f_bsize,
        total_bytes=stats.f_blocks * stats.f_frsize,
        free_bytes=stats.f_bavail * stats.f_frsize,
        inodes_total=stats.f_files or None,
        inodes_free=stats.f_favail if stats.f_files else None,
        mount=Path(mount.point) if mount else Path("/"),
    )


def is_parallel_filesystem(path: Path) -> bool:
    """Whether `path` lies on a shared (parallel or network) file system.

    There latency dominates: keep many opens in flight, and write few large files. The table of mounts
    answers this without a request to a server, except for automounts.
    """
    mount = mount_of(os.path.realpath(path), read_mounts())
    if mount is None or mount.kind == "autofs":
        return filesystem(path).shared
    return _is_shared(mount.kind, mount.source)


def existing(path: Path) -> Path:
    """The path without symbolic links, or its nearest parent that exists."""
    real = Path(os.path.realpath(path))
    for candidate in (real, *real.parents):
        with suppress(OSError, ValueError):  # it is missing, or no user may look at it
            answered(candidate, os.stat, candidate)
            return candidate
    return real


def driver(kind: str, source: str) -> str:
    """Return the file system of a mount; for FUSE its program, which some name in the source only."""
    return source.partition("#")[0] if kind == "fuse" else kind.removeprefix("fuse.")


def _is_shared(kind: str, source: str) -> bool:
    program = driver(kind, source)
    return kind in SHARED_KINDS or (kind.startswith("fuse") and program in SHARED_FUSE_KINDS)
