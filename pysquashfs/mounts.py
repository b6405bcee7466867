r"""The table of mounts that this process sees.

The traps: it escapes a space as `\040`, and of two mounts at one point the later line is visible. Notebook 01
shows what lies where.

Format: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
        device: Its number, `major:minor`, as `os.stat` gives it for all files on it.
    """

    root: str
    point: str
    kind: str
    source: str
    options: frozenset[str]
    device: str = field(default="", compare=False)

    @property
    def folder(self) -> Path:
        """Where it is mounted."""
        return Path(self.point)


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
    root, point, kind, source = map(_unescape, (*fields[3:5], *tail[:2]))
    return Mount(root, point, kind, source, frozenset(tail[2].split(",")), fields[2])


def _unescape(text: str) -> str:
    """Undo the octal escapes of space, tab, line feed, backslash and `#`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
