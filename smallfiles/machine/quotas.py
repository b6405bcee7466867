"""Quotas and striping, where a tool reports them: bytes and, usually exhausted first, files.

The trap: `df` shows the space of the file system, not your quota. "No space left on device" and "Disk quota
exceeded" occur while terabytes are free, mostly because of the number of files. And `lfs`, `quota` and
similar tools ask a server: without an answer they hang, sometimes so that they cannot even be killed; so
both the tool and its end have a time limit.

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
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pysquashfs.mounts import Mount, read_mounts
from smallfiles.machine.filesystems import driver, existing, filesystem, mount_of
from smallfiles.progress import bytes_text

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
    """The quota of `path` with the largest used share.

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
    """Blocks, soft, hard, grace, files, soft, hard; an excess has a star, an uncertain value brackets."""
    yield from _of_numbers([word.strip("*[]") for word in (*words[:3], *words[4:7])], holder, tool)


def _of_numbers(numbers: list[str], holder: str, tool: str) -> Iterator[Quota]:
    """Blocks, soft, hard, files, soft, hard; none of them if one is no number."""
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
    """The hard limit, or else the soft one, which applies after days; 0 means no limit."""
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
    """The striping of a file, or of the new files of a folder.

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
    """How many storage targets a file of this size should lie on."""
    return 1 if size_bytes < STRIPED_BYTES else 4 if size_bytes < 100 * STRIPED_BYTES else 16


def striping_note(folder: Path, size_bytes: int) -> str | None:
    """What to do before a file of this size is written to a folder; None if nothing."""
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
