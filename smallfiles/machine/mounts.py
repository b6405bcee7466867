r"""The table of mounts of this process.

The trap: a mount point with a space stands there as `\040`, and two mounts may share one point; the
later line is the one that is seen.

Format: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mount:
    """One line of the table.

    Args:
        root: The part of the file system that is mounted (`/` for all of it).
        point: Where it is mounted.
        kind: Type of the file system, as the kernel names it.
        source: Device or server; `fuse` programs put their name here.
        options: Options of the file system; the controllers of a cgroup hierarchy are among them.
    """

    root: str
    point: str
    kind: str
    source: str
    options: frozenset[str]


def read_mounts(table: Path = Path("/proc/self/mountinfo")) -> list[Mount]:
    """All mounts that this process sees.

    Args:
        table: The file to read; another one in tests.

    Returns:
        The mounts in order; empty where there is no such table.
    """
    try:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return [mount for line in text.split("\n") if (mount := _parse(line)) is not None]


def _parse(line: str) -> Mount | None:
    before, dash, after = line.partition(" - ")
    fields, tail = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(tail) < 3:
        return None
    return Mount(
        root=_unescape(fields[3]),
        point=_unescape(fields[4]),
        kind=_unescape(tail[0]),
        source=_unescape(tail[1]),
        options=frozenset(tail[2].split(",")),
    )


def _unescape(text: str) -> str:
    """Undo the octal escapes of space, tab, line feed, backslash and `#`."""
    if "\\" not in text:
        return text
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount that holds `path`: the longest point that is a parent of it, the last of equals.

    Args:
        path: Absolute, without symbolic links.
        mounts: What `read_mounts` returned.
    """
    found: Mount | None = None
    for mount in mounts:
        longer = found is None or len(mount.point) >= len(found.point)
        if longer and (path == mount.point or path.startswith(f"{mount.point.rstrip('/')}/")):
            found = mount
    return found
