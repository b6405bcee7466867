"""Simulate one to ten thousand nodes: time of an epoch and waiting of GPUs, for each way to read.

    forecast = scaling.simulate(Work(), Storage(), WAYS["files"], nodes=64)
    forecast.waiting                                       # 0.90: the share of time in which GPUs wait
    scaling.saturation(Work(), Storage(), WAYS["files"])   # nodes at which each part of the storage is full

Batches pass through queues: metadata server, storage targets, the network of their node, their worker.

The trap: it is a model, and you choose its numbers: take them from `smallfiles bench` on your cluster. The
result that carries over is which part saturates first, and at how many nodes. `python -m benchmarks scaling`
compares it with real runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.scaling.config import BROADCAST as BROADCAST
    from smallfiles.scaling.config import WAYS as WAYS
    from smallfiles.scaling.config import Storage as Storage
    from smallfiles.scaling.config import Way as Way
    from smallfiles.scaling.config import Work as Work
    from smallfiles.scaling.config import ways_of as ways_of
    from smallfiles.scaling.simulation import Forecast as Forecast
    from smallfiles.scaling.simulation import saturation as saturation
    from smallfiles.scaling.simulation import simulate as simulate

__getattr__ = lazy.names(__name__)
