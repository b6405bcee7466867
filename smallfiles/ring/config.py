"""The configuration of a ring: its name, its size, its producers.

The trap: a ring is in memory, and `/dev/shm` counts against the memory limit of the job. So the default size
is a share of the memory that the job has left, not of the node's. Notebook 08 teaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smallfiles.machine import usable_cpus
from smallfiles.machine.nodelocal import SHARED_MEMORY
from smallfiles.options import Settings, option


@dataclass(frozen=True)
class RingConfig(Settings):
    """How to fill a ring.

    Args:
        name: The trainer and `ring status` find it by this name; None generates one.
        slots: Batches that it holds; None derives it from free memory.
        producers: How many make batches; None takes as many as there are usable CPUs.
        epochs: How many epochs to fill; None for no limit.
        where: A folder in memory.
    """

    name: str | None = option(None, "of the ring to fill (default: train)")
    slots: int | None = option(None, "batches that it holds (default: a quarter of free memory)", least=2)
    producers: int | None = option(None, "processes that make batches (default: one per CPU)", least=1)
    epochs: int | None = option(None, "end after this many (default: no limit)", least=1)
    where: Path = option(SHARED_MEMORY, "a folder in memory", metavar="DIR")

    @property
    def producer_count(self) -> int:
        """Number of producers, with the default filled in."""
        return self.producers if self.producers is not None else usable_cpus()

    def to_cli(self, data: str, *more: str) -> str:
        """The command that starts the filler as a separate program, for a second terminal or a job script.

        Args:
            data: The packed file.
            more: Further words, such as the flags of the batches.
        """
        return self.command("ring", "fill", data, more=more)
