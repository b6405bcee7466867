"""What a rank of the pool does: say its place, read its share, train.

Each function runs in a process whose environment says which rank it is, and is the code that would run on a
cluster: nothing here knows that the nodes are played. The trap: a step that waits is no step that computes;
where a step is imitated, its parameter is called so. Notebook 10 runs them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles import formats, machine, training
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.loading.config import default_workers
from smallfiles.machine.ranks import Ranks, ranks
from smallfiles.measure.loading.ours import First
from smallfiles.training.stopping import listening

_VIEW_PIXELS = 64
_CHECKPOINT_STEPS = 4


@dataclass(frozen=True)
class Share:
    """What one rank read.

    Args:
        place: Which rank it was, as it believed.
        node: Name of its node.
        indices: Numbers of the samples, in the order in which they came.
        seconds: From the first request to the last batch.
        workers: How many made batches.
        cpus: How many it could use.
    """

    place: Ranks
    node: str
    indices: tuple[int, ...]
    seconds: float
    workers: int
    cpus: int


def read(
    *,
    path: str,
    count: int | None = None,
    epoch: int = 0,
    batch: int = 10,
    workers: int = 2,
    imitated_step_s: float = 0.0,
    as_if: str = "",
    bound_to: int | None = None,
    decode: bool = False,
) -> Share:
    """Read this rank's share of an epoch.

    Args:
        path: A packed file.
        count: How many of its samples; all if None.
        epoch: Which one.
        batch: Samples in a batch.
        workers: Threads that make batches.
        imitated_step_s: Seconds to wait after each batch, in place of training.
        as_if: `local rank` for a program that takes SLURM_LOCALID for its rank.
        bound_to: CPUs that this process may use; all if None.
        decode: Make views of the images, instead of handing on their bytes.
    """
    if bound_to is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:bound_to])
    place = ranks()
    chosen: dict[str, Any] = {}
    if as_if == "local rank":
        chosen = {"rank": place.local_rank, "world_size": place.world_size}
    config = LoaderConfig(batch=batch, workers=workers, mode="threads", **chosen)
    reader = formats.open(Path(path))
    data = reader if count is None else First(reader, min(count, len(reader)))
    loader = make_loader(data, config, transform=RandomResizedCrop(_VIEW_PIXELS) if decode else None)
    loader.set_epoch(epoch)
    came: list[int] = []
    began = time.perf_counter()
    for each in loader:
        came += np.asarray(each["index"]).tolist()
        time.sleep(imitated_step_s)
    seconds = time.perf_counter() - began
    reader.close()
    node = os.environ.get("SLURMD_NODENAME", "n1")
    return Share(place, node, tuple(came), seconds, workers, machine.usable_cpus())


def default_workers_here(*, bound_to: int | None = None) -> int:
    """How many workers a loader takes on its own in this rank.

    Args:
        bound_to: CPUs that this process may use; all if None.
    """
    if bound_to is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:bound_to])
    return default_workers(ranks())


def train(*, path: str, checkpoint: str, epochs: int, batch: int = 8) -> training.TrainReport:
    """Train together with the other ranks; SIGUSR1 asks to stop, as at a time limit.

    Args:
        path: A packed file with labels.
        checkpoint: Folder for checkpoints; the training goes on from the last one there.
        epochs: Passes over the data.
        batch: Samples in a batch of one rank.
    """
    loader = LoaderConfig(batch=batch, workers=1, mode="threads")
    config = training.TrainConfig(
        loader=loader, epochs=epochs, size=32, checkpoint=Path(checkpoint), every=_CHECKPOINT_STEPS
    )
    with listening() as asked:
        return training.train(Path(path), config=config, asked_to_stop=asked)
