"""A ring of ready batches in shared memory, filled ahead of training, by this program or another.

The forum's RAM disk done right: producers fill slots, training empties them, each side sleeps until the
other has done something, and whichever is killed, no batch is lost, repeated or damaged. A batch is a
function of (seed, epoch, indices), so what a dead producer was at is simply made again.

    loader = ring.open_ring(maker, plan, ring.RingConfig(slots=64))      # filled by this program
    loader = ring.attach("train")                                        # … or by another one:
    $ smallfiles ring fill train.arrow --name train --slots 800

When it pays: where batches come in bursts (a file system that stalls, evaluations that leave the CPUs
idle), a deep ring smooths what `prefetch_factor` cannot; where the CPUs are too few on average, no buffer
helps. The trap: it is memory of the job. Notebook 08 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.ring.channel import RingError as RingError
    from smallfiles.ring.client import RingWarning as RingWarning
    from smallfiles.ring.config import RingConfig as RingConfig
    from smallfiles.ring.filler import Filler as Filler
    from smallfiles.ring.folder import lives as lives
    from smallfiles.ring.folder import names as names
    from smallfiles.ring.folder import remove_leftover as remove_leftover
    from smallfiles.ring.folder import ring_name as ring_name
    from smallfiles.ring.loader import RingLoader as RingLoader
    from smallfiles.ring.loader import attach as attach
    from smallfiles.ring.loader import open_ring as open_ring
    from smallfiles.ring.report import RingStatus as RingStatus
    from smallfiles.ring.report import status as status

__getattr__ = lazy.names(__name__)
