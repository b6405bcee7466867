"""How a ring is to be: its size, its producers, its name.

The trap: a ring lies in memory, and `/dev/shm` counts against the memory of the job. So the size that is
not asked for is a part of what the job has left, never of what the node has. Notebook 08 teaches it.
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
        name: By which the trainer and `ring status` find it; None makes one up.
        slots: Batches that it holds; None derives it from free memory.
        producers: How many make batches; None takes as many as there are usable CPUs.
        epochs: How many epochs to fill; None for no end.
        where: A folder in memory.
    """

    name: str | None = option(None, "of the ring to fill (default: train)")
    slots: int | None = option(None, "batches that it holds; a quarter of free memory if not given", least=2)
    producers: int | None = option(None, "how many make batches; one a CPU if not given", least=1)
    epochs: int | None = option(None, "end after so many; no end if not given", least=1)
    where: Path = option(SHARED_MEMORY, "a folder in memory", metavar="DIR")

    @property
    def producer_count(self) -> int:
        """How many producers there are."""
        return self.producers if self.producers is not None else usable_cpus()

    def to_cli(self, data: str, *more: str) -> str:
        """The filler as a program of its own, to be pasted into a second terminal or a job script.

        Args:
            data: The packed file.
            more: Further words, such as the flags of the batches.
        """
        return self.command("ring", "fill", data, more=more)
