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

from typing import TYPE_CHECKING, Any

from smallfiles.ring.channel import RingError
from smallfiles.ring.config import RingConfig
from smallfiles.ring.filler import Filler
from smallfiles.ring.folder import lives, names, remove_leftover, ring_name
from smallfiles.ring.report import RingStatus, status

if TYPE_CHECKING:
    from smallfiles.ring.link import RingWarning
    from smallfiles.ring.loader import RingLoader, attach, open_ring

__all__ = [
    "Filler",
    "RingConfig",
    "RingError",
    "RingLoader",
    "RingStatus",
    "RingWarning",
    "attach",
    "lives",
    "names",
    "open_ring",
    "remove_leftover",
    "ring_name",
    "status",
]


def __getattr__(name: str) -> Any:
    """Import PyTorch for a trainer only; a producer, or `ring status`, does without."""
    if name in __all__:
        from smallfiles.ring import loader

        return getattr(loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
