"""Whole epochs through a loader: how fast, how long for the first batch, and where the time goes.

    run         every case in interleaved rounds, each in a process that does nothing else
    ours        our loader by processes, by threads, and through a ring; what one worker does for one batch
    steps       an epoch as the trainer sees it; accelerators that are imitated, and how many could be fed
    advice      records as tables; which mode and how many workers to take

The loaders of others are in `benchmarks.loaders`. Notebook 08 measures with it.

The trap: a loader that works ahead does so before the clock starts too. So each pass begins with nothing
ready but what the loader made while the one before was taken from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy
from smallfiles.measure.config import LoadBenchConfig

if TYPE_CHECKING:
    from smallfiles.measure.loading.run import bench_loading

__all__ = ["LoadBenchConfig", "bench_loading"]

__getattr__ = lazy.names(__name__)
