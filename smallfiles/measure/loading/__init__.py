"""Whole epochs through a loader: how fast, how long for the first batch, and where the time goes.

    run         every case in interleaved rounds, each in a separate process
    ours        our loader by processes, by threads, and through a ring; the work of one worker per batch
    steps       an epoch as the trainer sees it; emulated accelerators, and how many can be fed

`smallfiles.measure.table` shows the records, and recommends a mode and a number of workers. Other loaders are
in `benchmarks.loaders`. Notebook 08 measures with it.

The trap: a loader that prefetches starts before the clock does. So each pass begins with no batch ready
except those that the loader made during the previous pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy
from smallfiles.measure import LoadBenchConfig

if TYPE_CHECKING:
    from smallfiles.measure.loading.run import bench_loading

__all__ = ["LoadBenchConfig", "bench_loading"]

__getattr__ = lazy.names(__name__)
