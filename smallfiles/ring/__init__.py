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
The trap: the ring counts as memory of the job. Notebook 08 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.ring.channel import RingError as RingError
    from smallfiles.ring.config import RingConfig as RingConfig
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
