"""Several processes of a node stage the same file at once: one copies, the others wait for it.

The trap: each process that copies for itself is right, and slow, and fills the memory once more. What
the storage had to deliver shows it: the file once, or once a process. Notebook 07.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.experiments.nb07.processes import shown, stagers
from smallfiles.measure.scratch import memory_folder
from smallfiles.progress import bytes_text
from smallfiles.slowfs import SlowConfig, open_slow


@dataclass(frozen=True)
class Rank:
    """What one process did.

    Args:
        number: From 0.
        began_s: When it called `stage`, in seconds after the first.
        ended_s: When it had the copy.
        copied: Whether it copied; otherwise it waited for the one who did.
    """

    number: int
    began_s: float
    ended_s: float
    copied: bool

    @property
    def summary(self) -> str:
        """In words."""
        did = "copied" if self.copied else "waited"
        return f"rank {self.number} {did} for {self.ended_s - self.began_s:.2f} s"


@dataclass(frozen=True)
class Together:
    """All processes, and what the storage delivered.

    Args:
        ranks: By number.
        bytes: Size of the copy.
        delivered_bytes: What was read from the slow storage; None where it was not mounted.
        left_bytes: What was left on the node when all had ended.
        storage: How slow the storage was, in words.
    """

    ranks: tuple[Rank, ...]
    bytes: int
    delivered_bytes: int | None
    left_bytes: int
    storage: str

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        copied = [str(rank.number) for rank in self.ranks if rank.copied]
        if len(copied) != 1:
            return f"{len(copied)} of {len(self.ranks)} processes copied"
        waiting = [rank for rank in self.ranks if not rank.copied]
        last_s = max((rank.ended_s for rank in waiting), default=0.0)
        return (
            f"Rank {copied[0]} of {len(self.ranks)} copied, the others waited; all had the copy after "
            f"{max(last_s, *(rank.ended_s for rank in self.ranks)):.2f} s"
        )

    @property
    def traffic(self) -> str:
        """What it cost the storage."""
        size = bytes_text(self.bytes)
        each = bytes_text(len(self.ranks) * self.bytes)
        if self.delivered_bytes is None:
            return f"The copy has {size}; if each process copied for itself, {each} would be read."
        return (
            f"The storage delivered {bytes_text(self.delivered_bytes)} for a copy of {size}; "
            f"if each process copied for itself, it would be {each}."
        )

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        return f"Timeline. {self.finding}. {', '.join(rank.summary for rank in self.ranks)}."


def measure_together(
    source: Path, place: Path, storage: SlowConfig | None = None, *, processes: int = 4
) -> Together:
    """Start some processes that all stage the same file at the same moment.

    Args:
        source: A packed file.
        place: A directory of this node.
        storage: How slow the source's storage shall be.
        processes: How many.

    Raises:
        ResourceError: There is no room, or a process failed.
    """
    storage = storage or SlowConfig(bandwidth_bytes_s=100e6)
    size = source.stat().st_size
    with memory_folder(2 * size, place) as folder, open_slow(source.parent, storage) as slow:
        with stagers(processes, shown(slow, source.name), folder) as children:
            before = slow.counts()["bytes"]
            for child in children:
                child.begin()
            results = [child.result() for child in children]
            delivered = slow.counts()["bytes"] - before
        left = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        mounted = slow.how == "fuse"
    first = min(result["began"] for result in results)
    ranks = tuple(
        Rank(number, result["began"] - first, result["ended"] - first, not result["reused"])
        for number, result in enumerate(results)
    )
    told = storage.summary() if mounted else "as fast as this disk"
    return Together(ranks, results[0]["bytes"], delivered if mounted else None, left, told)
