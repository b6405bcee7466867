"""Over how many servers a Lustre file system spreads the files of a folder.

One stripe means that one server delivers the whole file: right for small files, slow for a packed
file that a thousand nodes read. The trap: striping is fixed when a file is made, so a folder's
setting must be changed before packing into it (`lfs setstripe -c 8 DIR`), not after.

Format: the output of `lfs getstripe`, plain and composite (progressive) layouts; lfs-getstripe(1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from smallfiles.machine.asking import TIMEOUT_S, ask
from smallfiles.machine.filesystems import existing, filesystem

LUSTRE = frozenset({"lustre", "lustre_lite"})
ALL_SERVERS = -1


@dataclass(frozen=True)
class Striping:
    """How files are spread.

    Args:
        count: Over how many storage targets a large file goes; -1 is all of them.
        size_bytes: How much goes to one before the next is taken.
        components: How many layouts follow each other as a file grows; 1 for a plain one.
    """

    count: int
    size_bytes: int
    components: int = 1


def striping(path: Path, timeout_s: float = TIMEOUT_S) -> Striping | None:
    """How a file, or the new files of a folder, are striped.

    Args:
        path: Any path; if it does not exist, the nearest parent that does is examined.
        timeout_s: Seconds that `lfs` may take.

    Returns:
        The layout; None if this is not Lustre, or `lfs` is missing or does not answer.
    """
    if filesystem(path).kind not in LUSTRE:
        return None
    text = ask(("lfs", "getstripe", "-d", str(existing(path))), timeout_s)
    return None if text is None else parse_getstripe(text)


def parse_getstripe(text: str) -> Striping | None:
    """Read what `lfs getstripe -d` prints for one path; of several components, the last is a large file's."""
    counts = re.findall(r"\bl?m?m?_?stripe_count:\s*(-?\d+)", text)
    sizes = re.findall(r"\bl?m?m?_?stripe_size:\s*(\d+)", text)
    if not counts or not sizes:
        return None
    return Striping(int(counts[-1]), int(sizes[-1]), len(counts))
