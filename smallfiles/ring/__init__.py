"""A ring of ready batches in shared memory, filled ahead of training, by this program or another.

Producers fill slots and training empties them; each side sleeps until the other has done something. A batch
is a function of (seed, epoch, indices), so the batch of a dead producer is simply made again. If a trainer is
killed, the next one continues at its batch. If the filler is killed, training stops and says so; start both
again, and training resumes from its checkpoint.

    loader = ring.open_ring(maker, plan, ring.RingConfig(slots=64))      # filled by this program
    loader = ring.attach("train")                                        # … or by another program:
    $ smallfiles ring fill train.arrow --name train --slots 800

When it helps: if batches come in bursts (a file system that stalls, evaluations that leave the CPUs idle),
a deep ring evens out more than `prefetch_factor` can. If the CPUs are too slow on average, no buffer helps.

The trap: a ring is in memory, and `/dev/shm` counts against the memory limit of the job. So the default size
is a share of the memory that the job has left, not of the node's. Notebook 08 teaches it.

Here are the settings of a ring; the rest is imported when it is first used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles import lazy
from smallfiles.machine import usable_cpus
from smallfiles.machine.nodelocal import SHARED_MEMORY
from smallfiles.options import Settings, option

if TYPE_CHECKING:
    from smallfiles.ring.channel import RingError as RingError
    from smallfiles.ring.filler import Filler as Filler
    from smallfiles.ring.folder import RingStatus as RingStatus
    from smallfiles.ring.folder import lives as lives
    from smallfiles.ring.folder import missing as missing
    from smallfiles.ring.folder import names as names
    from smallfiles.ring.folder import remove_leftover as remove_leftover
    from smallfiles.ring.folder import ring_name as ring_name
    from smallfiles.ring.folder import status as status
    from smallfiles.ring.loader import RingLoader as RingLoader
    from smallfiles.ring.loader import RingWarning as RingWarning
    from smallfiles.ring.loader import attach as attach
    from smallfiles.ring.loader import open_ring as open_ring

__getattr__ = lazy.names(__name__)


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
        """Return the command that starts the filler as a separate program, for a terminal or a job script.

        Args:
            data: The packed file.
            more: Other words of the command, such as the flags of the batches.
        """
        return self.command("ring", "fill", data, more=more)
