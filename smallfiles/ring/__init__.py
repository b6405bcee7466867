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

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smallfiles.ring.config import RingConfig
    from smallfiles.ring.faults import RingError
    from smallfiles.ring.filler import Filler
    from smallfiles.ring.folder import names, remove_leftover
    from smallfiles.ring.link import RingWarning
    from smallfiles.ring.loader import FillSample, RingLoader
    from smallfiles.ring.opening import attach, open_ring, ring_name
    from smallfiles.ring.report import RingStatus, status

__all__ = [
    "FillSample",
    "Filler",
    "RingConfig",
    "RingError",
    "RingLoader",
    "RingStatus",
    "RingWarning",
    "attach",
    "names",
    "open_ring",
    "remove_leftover",
    "ring_name",
    "status",
]

# Imported when asked for: a producer, or `ring status`, does without PyTorch.
_MODULES = {
    "FillSample": "loader",
    "Filler": "filler",
    "RingConfig": "config",
    "RingError": "faults",
    "RingLoader": "loader",
    "RingStatus": "report",
    "RingWarning": "link",
    "attach": "opening",
    "names": "folder",
    "open_ring": "opening",
    "remove_leftover": "folder",
    "ring_name": "opening",
    "status": "report",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"smallfiles.ring.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
