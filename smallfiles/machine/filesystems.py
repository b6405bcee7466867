"""The file system of a path: type, free space and inodes, shared or local, quota and striping.

The traps: a file system can run out of *inodes* while bytes are free ("No space left on device" means
either), and some (btrfs) do not count inodes: their zero means unknown, not full. Notebook 01 teaches it.
`df` shows the space of the file system, not your quota: "Disk quota exceeded" occurs while terabytes are
free, mostly because of the number of files. And `lfs`, `quota` and similar tools ask a server: without an
answer they hang, sometimes so that they cannot even be killed; so both the tool and its end have a time
limit.

With one stripe on Lustre one server delivers the whole file: good for small files, slow for a packed file
that a thousand nodes read. The layout is fixed when a file is created, so change that of a folder before
packing into it (`lfs setstripe -c 8 DIR`), not after.

Format: `lfs getstripe`, plain and composite (progressive) layouts; `lfs quota`; `mmlsquota -Y` (fields
named in its header, percent-encoded); `quota -w -p`, whose
grace times are numbers, so that no column is ever empty. All count in KiB; 0 is no limit. `mfsgetquota -n`
counts in bytes, and has a quota for each folder. Of these, only `mfsgetquota` was tried live.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pysquashfs.mounts import Mount, read_mounts
from smallfiles.errors import of_system
from smallfiles.progress import bytes_text
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
    """Return the mount of `path`: the longest mount point that contains it, and the last of equal ones.

    Args:
        path: An absolute path without symbolic links.
        mounts: The result of `read_mounts`.
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
    """Examine the file system of `path`.

    Do this before writing: small files reach the limit of inodes long before the limit of bytes.

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
    """Check whether `path` lies on a shared (parallel or network) file system.

    There latency dominates: keep many opens in flight, and write few large files. The table of mounts
    answers this without a request to a server, except for automounts.
    """
    mount = mount_of(os.path.realpath(path), read_mounts())
    if mount is None or mount.kind == "autofs":
        return filesystem(path).shared
    return _is_shared(mount.kind, mount.source)


def existing(path: Path) -> Path:
    """Return the path without symbolic links, or its nearest parent that exists."""
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


LUSTRE = frozenset({"lustre", "lustre_lite"})
_GPFS = frozenset({"gpfs", "mmfs"})
_COLUMNS = ("blockUsage", "blockQuota", "blockLimit", "filesUsage", "filesQuota", "filesLimit")
_HOLDERS = {"USR": "user", "GRP": "group", "FILESET": "fileset"}
ELSEWHERE = ("/usr/lpp/mmfs/bin", "/usr/sbin", "/sbin")
"""Folders of such tools that may be missing in PATH."""

TIMEOUT_S = 2.0
_NOTE_S, _LAST_S = 0.5, 0.2


def ask(command: Sequence[str], timeout_s: float = TIMEOUT_S, codes: Sequence[int] = (0,)) -> str | None:
    """Run a command and return what it printed.

    Args:
        command: The tool and its arguments.
        timeout_s: Seconds that it may take; then it and its children are killed.
        codes: The exit codes of success.

    Returns:
        Its standard output; None if it is not there, fails or takes too long.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *ELSEWHERE))
    tool = shutil.which(command[0], path=path)
    if tool is None or timeout_s <= 0:
        return None
    with tempfile.TemporaryFile() as out:  # a pipe would be held open by children that survive
        try:
            process = subprocess.Popen(
                [tool, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError:
            return None
        if not _ended_well(process, timeout_s, codes):
            return None
        out.seek(0)
        return out.read().decode(errors="replace")


def _ended_well(process: subprocess.Popen[bytes], timeout_s: float, codes: Sequence[int]) -> bool:
    try:
        return process.wait(timeout_s) in codes
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_S)
        return False


@dataclass(frozen=True)
class Quota:
    """A limit and what is used of it.

    Args:
        holder: `user`, `group`, `project`, `fileset` or `folder`.
        used_bytes: Bytes stored.
        limit_bytes: Maximum of bytes; None without a limit.
        used_files: Files and folders stored.
        limit_files: Maximum of files and folders; None without a limit.
        tool: The command that reported it.
    """

    holder: str
    used_bytes: int
    limit_bytes: int | None
    used_files: int
    limit_files: int | None
    tool: str

    @property
    def share(self) -> float:
        """The used share of the limit, of bytes or files, whichever is larger."""
        pairs = ((self.used_bytes, self.limit_bytes), (self.used_files, self.limit_files))
        return max((used / limit for used, limit in pairs if limit), default=0.0)

    @property
    def left(self) -> tuple[float, float]:
        """The bytes and files that still fit; infinite without a limit."""
        pairs = ((self.used_bytes, self.limit_bytes), (self.used_files, self.limit_files))
        left_bytes, left_files = (max(0, limit - used) if limit else math.inf for used, limit in pairs)
        return left_bytes, left_files


def quota(
    path: Path, timeout_s: float = TIMEOUT_S, table: Path = Path("/proc/self/mountinfo")
) -> Quota | None:
    """Return the quota of `path` with the largest used share.

    Args:
        path: Any path; if it does not exist, the nearest parent that does is examined.
        timeout_s: Time limit of all commands together.
        table: The table of mounts; another file in tests.

    Returns:
        The quota; None without a limit, or without an answer in time.
    """
    place = existing(path)
    mount = mount_of(str(place), read_mounts(table))
    if mount is None:
        return None
    until = time.monotonic() + timeout_s
    if mount.kind in LUSTRE:
        found = _of_lustre(str(place), until)
    elif mount.kind in _GPFS:
        found = parse_mmlsquota(ask(("mmlsquota", "-Y"), timeout_s) or "", Path(mount.source).name)
    elif driver(mount.kind, mount.source) == "mfs":  # a folder and all around it may have one
        around = [each for each in (place, *place.parents) if each.is_relative_to(mount.point)]
        words = ("mfsgetquota", "-n", *(str(each) for each in around if each.is_dir()))
        found = parse_mfsgetquota(ask(words, timeout_s) or "")
    else:  # it fails to say that a limit is exceeded
        found = parse_quota(ask(("quota", "-w", "-p"), timeout_s, (0, 1)) or "", mount)
    limited = [one for one in found if one.limit_bytes or one.limit_files]
    return max(limited, key=lambda one: one.share, default=None)


def _of_lustre(place: str, until: float) -> Iterator[Quota]:
    holders = [("user", "-u", str(os.getuid())), ("group", "-g", str(os.getgid()))]
    project = (_ask_until(until, "lfs", "project", "-d", place) or "").split()
    if project and project[0].isdigit() and project[0] != "0":
        holders.append(("project", "-p", project[0]))
    for holder, flag, number in holders:
        text = _ask_until(until, "lfs", "quota", flag, number, place)
        yield from parse_lfs_quota(text or "", holder)


def quota_note(folder: Path, need_bytes: int, need_files: int) -> str | None:
    """Say that an output does not fit into a quota; None if it does, or if no quota is known."""
    found = quota(folder, _NOTE_S)  # each output waits for it
    if found is None or (need_bytes <= found.left[0] and need_files <= found.left[1]):
        return None
    room = [f"{bytes_text(found.left[0])} of the {bytes_text(need_bytes)}"] * (need_bytes > found.left[0])
    room += [f"{found.left[1]:,} of the {need_files:,} files"] * (need_files > found.left[1])
    whose = f"the quota of {folder} ({found.holder}, {found.tool})"
    return f"{whose} has room for {' and '.join(room)} that are needed. Free some, or choose another place"


def _ask_until(until: float, *command: str) -> str | None:
    return ask(command, until - time.monotonic())


def parse_lfs_quota(text: str, holder: str) -> Iterator[Quota]:
    """Read what `lfs quota` prints; a long name of the file system has its own line."""
    words = text.partition("grace\n")[2].split()  # what follows the header
    if len(words) >= 8:
        yield from _of_columns(words[1:8], holder, "lfs quota")


def parse_quota(text: str, mount: Mount) -> Iterator[Quota]:
    """Read what `quota -w -p` prints, of the file system that is mounted."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0] in (mount.source, mount.point):
            yield from _of_columns(words[1:8], "user", "quota")


def _of_columns(words: list[str], holder: str, tool: str) -> Iterator[Quota]:
    """Parse the columns blocks, soft, hard, grace, files, soft, hard.

    An exceeded value has a star, and an uncertain value has brackets.
    """
    yield from _of_numbers([word.strip("*[]") for word in (*words[:3], *words[4:7])], holder, tool)


def _of_numbers(numbers: list[str], holder: str, tool: str) -> Iterator[Quota]:
    """Make a quota of blocks, soft, hard, files, soft, hard. Yield nothing if any is not a number."""
    if all(number.isdigit() for number in numbers):
        used, soft, hard, files, files_soft, files_hard = map(int, numbers)
        yield Quota(
            holder, used << 10, _limit(soft << 10, hard << 10), files, _limit(files_soft, files_hard), tool
        )


def parse_mmlsquota(text: str, filesystem: str) -> Iterator[Quota]:
    """Read what `mmlsquota -Y` prints, of one file system."""
    names: list[str] = []
    for line in text.splitlines():
        fields = line.split(":")
        if fields[2:3] == ["HEADER"]:
            names = fields
            continue
        row = {name: unquote(value) for name, value in zip(names, fields, strict=False)}
        if row.get("filesystemName") == filesystem:
            holder = _HOLDERS.get(row.get("quotaType", ""), "user")
            yield from _of_numbers([row.get(name, "") for name in _COLUMNS], holder, "mmlsquota")


_MFS = re.compile(r"^ *(?:inodes|length|size|realsize) *\| *(\d+) *\| *(-|\d+) *\| *(-|\d+) *\|", re.M)


def parse_mfsgetquota(text: str) -> Iterator[Quota]:
    """Read what `mfsgetquota -n` prints: for each folder its files, and three ways to count its bytes."""
    rows = [[0 if word == "-" else int(word) for word in row] for row in _MFS.findall(text)]
    for at in range(0, len(rows) - 3, 4):
        (files, *limits), *sizes = rows[at : at + 4]
        pairs = [(used, _limit(soft, hard)) for used, soft, hard in sizes]
        used, limit = max(pairs, key=lambda pair: (pair[0] + 1) / pair[1] if pair[1] else 0.0)
        yield Quota("folder", used, limit, files, _limit(*limits), "mfsgetquota")


def _limit(soft: int, hard: int) -> int | None:
    """Return the hard limit, or else the soft limit, which applies after days. 0 means no limit."""
    return hard or soft or None


@dataclass(frozen=True)
class Striping:
    """How files are striped.

    Args:
        count: Number of storage targets of a large file; -1 for all of them.
        size_bytes: Bytes per stripe.
        components: Number of layouts of a composite one; 1 for a plain one.
    """

    count: int
    size_bytes: int
    components: int = 1


def striping(path: Path) -> Striping | None:
    """Return the striping of a file, or of the new files of a folder.

    Args:
        path: Any path; if it does not exist, the nearest parent that does is examined.

    Returns:
        The layout; None if this is not Lustre, or `lfs` is missing or does not answer.
    """
    if filesystem(path).kind not in LUSTRE:
        return None
    return parse_getstripe(ask(("lfs", "getstripe", "-d", str(existing(path)))) or "")


STRIPED_BYTES = 1 << 30
"""A file on Lustre that is at least as large is read faster from several storage targets."""


def stripes_for(size_bytes: int) -> int:
    """Return on how many storage targets a file of this size should lie."""
    return 1 if size_bytes < STRIPED_BYTES else 4 if size_bytes < 100 * STRIPED_BYTES else 16


def striping_note(folder: Path, size_bytes: int) -> str | None:
    """Return what to do before a file of this size is written to a folder, or None."""
    found, wanted = striping(folder), stripes_for(size_bytes)
    if found is None or wanted == 1 or found.count != 1:
        return None
    return (
        f"a file in {folder} lies on 1 storage target of Lustre, from which all nodes would read; "
        f"before it is written: lfs setstripe -c {wanted} {shlex.quote(str(folder))}"
    )


def parse_getstripe(text: str) -> Striping | None:
    """Read what `lfs getstripe -d` prints for one path; of several components, the last is a large file's."""
    counts = re.findall(r"\bl?m?m?_?stripe_count:\s*(-?\d+)", text)
    sizes = re.findall(r"\bl?m?m?_?stripe_size:\s*(\d+)", text)
    if not counts or not sizes:
        return None
    return Striping(int(counts[-1]), int(sizes[-1]), len(counts))
