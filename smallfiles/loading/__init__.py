"""Batches for training: every sample exactly once an epoch, over all ranks and workers.

    plan        which samples a rank reads, in which order: arithmetic
    batches     what a batch is; makers: images, captions, bytes; faults: what cannot be read
    dataset     any sample by its number; stream: long runs from shard to shard
    loader      `make_loader`: a DataLoader of processes, threads, or neither
    killed      why a worker died, in a sentence

The trap: each of a loader's dozen settings fails silently: samples twice, one order in all epochs, equal
crops in all workers. `make_loader` sets them together. Notebook 08 teaches it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smallfiles.loading.batches import Batch, BatchMaker
    from smallfiles.loading.config import LoaderConfig
    from smallfiles.loading.dataset import SampleDataset
    from smallfiles.loading.faults import BadSampleError
    from smallfiles.loading.killed import WorkerDiedError
    from smallfiles.loading.loader import Loader, make_loader
    from smallfiles.loading.makers import CaptionBatches, ImageBatches, RawBatches
    from smallfiles.loading.packets import LoadedBatch, to_tensors
    from smallfiles.loading.plan import EpochPlan
    from smallfiles.loading.stream import StreamDataset

__all__ = [
    "BadSampleError",
    "Batch",
    "BatchMaker",
    "CaptionBatches",
    "EpochPlan",
    "ImageBatches",
    "LoadedBatch",
    "Loader",
    "LoaderConfig",
    "RawBatches",
    "SampleDataset",
    "StreamDataset",
    "WorkerDiedError",
    "make_loader",
    "to_tensors",
]

_HOMES = {
    "batches": (
        "Batch",
        "BatchMaker",
    ),
    "config": ("LoaderConfig",),
    "dataset": ("SampleDataset",),
    "faults": ("BadSampleError",),
    "killed": ("WorkerDiedError",),
    "loader": (
        "Loader",
        "make_loader",
    ),
    "makers": (
        "CaptionBatches",
        "ImageBatches",
        "RawBatches",
    ),
    "packets": (
        "LoadedBatch",
        "to_tensors",
    ),
    "plan": ("EpochPlan",),
    "stream": ("StreamDataset",),
}


def __getattr__(name: str) -> Any:
    """Import PyTorch when something is loaded, not when a command line lists its flags."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"smallfiles.loading.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
