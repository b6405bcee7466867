"""What a loader of others is: what it needs, how it is started, what it is measured with.

The trap: a package that is found need not work (its compiled half may be missing). So what is imported is
named in full. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch.utils.data import DataLoader

from benchmarks import missing
from benchmarks.loaders.material import laid_out
from smallfiles.measure import PREFETCH, LoadBenchConfig
from smallfiles.measure.bench import Bench, Target
from smallfiles.measure.loading import Candidate, epoch_of
from smallfiles.measure.loading.steps import Epoch, Pass, emulated, taken
from smallfiles.measure.record import Failed
from smallfiles.measure.workers import WorkerState, WorkFailed, last_words

Start: TypeAlias = Callable[..., contextlib.AbstractContextManager[Epoch]]
"""Keeps a loader ready for as long as the block lasts."""


@dataclass(frozen=True)
class Setting:
    """What a loader is started with.

    Args:
        folder: Where its material is.
        samples: How many there are.
        workers: Processes or threads.
        batch: Samples in a batch.
        prefetch: Batches ahead for each worker.
        size: Of the crops, in pixels.
        step_s: Of the training step that is imitated; None without.
    """

    folder: Path
    samples: int
    workers: int
    batch: int
    prefetch: int
    size: int
    step_s: float | None = None


@dataclass(frozen=True)
class Peer:
    """A loader of others.

    Args:
        name: In records; says the filter.
        material: The layout that it reads, see `material`.
        start: Keeps it ready; takes a `Setting`.
        modules: What it imports.
        stored: The kind of pictures that it is measured on.
    """

    name: str
    material: str
    start: Start
    modules: tuple[str, ...] = ()
    stored: Literal["JPEG", "raw"] = "JPEG"


@contextlib.contextmanager
def measured_beside(
    target: Target, config: LoadBenchConfig, bench: Bench, peers: Mapping[str, Peer]
) -> Iterator[list[Candidate]]:
    """The loaders of others that fit and are installed, with their material beside the packed file.

    Args:
        target: Whose pictures they load.
        config: Of the measurement.
        bench: Is told which are missing.
        peers: By name.
    """
    fit = [
        peer
        for peer in peers.values()
        if target.kind.startswith(peer.stored) and (peer.name in config.only or not config.only)
    ]
    absent = {peer.name: why for peer in fit if (why := missing(peer.modules))}
    here = [peer for peer in fit if peer.name not in absent]
    bench.failed += [
        Failed(epoch_of(target, config, workers), name, why)
        for workers in config.workers
        for name, why in absent.items()
    ]
    with laid_out(target, [peer.material for peer in here]) as (folder, unmade):
        yield [
            Candidate(
                peer.name,
                workers,
                partial(_epoch, peer.name, setting, unmade.get(peer.material, "")),
                target.samples,
                key=(peer.name, workers),
                facts={"filter": "as the name says"},
            )
            for workers in config.workers
            for setting in [_setting(target, folder, workers, config)]
            for peer in here
        ]


def _setting(target: Target, folder: Path, workers: int, config: LoadBenchConfig) -> Setting:
    return Setting(folder, target.samples, workers, config.batch, PREFETCH, config.size, config.step_s)


def _epoch(name: str, setting: Setting, unmade: str, place: WorkerState) -> Pass:
    """In a process of its own: an epoch of a loader that stays open between rounds."""
    if unmade:
        raise WorkFailed(unmade)
    peers: Mapping[str, Peer] = importlib.import_module("benchmarks.loaders").PEERS
    epoch = place.keep(setting, lambda: place.stack.enter_context(peers[name].start(setting)))
    done = taken(epoch())
    if done.samples < setting.samples:
        raise WorkFailed(f"{done.samples:,} of {setting.samples:,} pictures came{last_words()}")
    ready = setting.workers * setting.prefetch + 1
    return emulated(done, epoch, setting.batch, setting.step_s, ready)


def data_loader(dataset: Any, setting: Setting, **more: Any) -> DataLoader[Any]:
    """The loader of PyTorch over a data set of others."""
    return DataLoader(dataset, **{**workers_of(setting), **more})


def workers_of(setting: Setting) -> dict[str, Any]:
    """What loaders in PyTorch's manner are given; forked, as on Linux by default up to Python 3.13."""
    return {
        "batch_size": setting.batch,
        "num_workers": setting.workers,
        "prefetch_factor": setting.prefetch,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }
