"""Our loaders, measured: batches made by processes, by threads of the trainer, or ahead in a ring.

Each run makes a loader, takes the last few batches of one epoch, in which its workers start, and measures
the epoch after it. A ring that is filled for two epochs has nothing left to do when the clock stops, and
nothing ready when it starts, since nobody takes batches slower than they come.

The trap: measured with its start, a loader is judged by how fast Python imports. That is told apart, as
the time to the first batch. Notebook 08 measures with it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from smallfiles import formats
from smallfiles.images import RandomResizedCrop
from smallfiles.measure.config import LoadBenchConfig, Mode
from smallfiles.measure.workers import Place
from smallfiles.samples import Reader, Sample

if TYPE_CHECKING:
    from smallfiles.loading import ImageBatches, Loader
    from smallfiles.ring import RingLoader


@dataclass(frozen=True)
class Pass:
    """One epoch, as the trainer saw it; a mean would hide the batch for which it waited a second.

    Args:
        samples: That came.
        seconds: From asking for the first batch to the end.
        waits_s: Seconds that each batch was waited for.
        first_s: Seconds from making the loader to its first batch of all; None if it was made before.
    """

    samples: int
    seconds: float
    waits_s: tuple[float, ...]
    first_s: float | None = None


Epoch: TypeAlias = Callable[[], Pass]
"""Runs one epoch."""


def taken(batches: Iterable[Any], count: Callable[[Any], int]) -> Pass:
    """Take all batches as fast as they come, as a trainer without work would.

    Args:
        batches: Of one epoch.
        count: How many samples a batch has.
    """
    began = clock = perf_counter()
    samples, waits = 0, []
    for batch in batches:
        now = perf_counter()
        waits.append(now - clock)
        samples += count(batch)
        clock = perf_counter()
    return Pass(samples, perf_counter() - began, tuple(waits))


@dataclass(frozen=True)
class Ours:
    """A case of ours.

    Args:
        path: The packed file.
        format: Its format.
        mode: Where batches are made.
        workers: How many make them.
        samples: Of an epoch.
    """

    path: Path
    format: str
    mode: Mode
    workers: int
    samples: int


class First:
    """The first samples of a reader, as a reader.

    Args:
        reader: Of a packed file.
        count: How many.
    """

    def __init__(self, reader: Reader, count: int) -> None:
        self._reader, self._count = reader, count

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is unpickled there is no reader yet
            raise AttributeError(name)
        return getattr(self._reader, name)

    def __iter__(self) -> Iterator[Sample]:
        return islice(iter(self._reader), self._count)


def first_of(path: Path, format: str, samples: int) -> Reader:
    """A reader of the first samples of a packed file."""
    reader = formats.open(path, format)
    return reader if len(reader) == samples else First(reader, samples)


def transform_of(config: LoadBenchConfig) -> RandomResizedCrop:
    """What is done to each picture."""
    return RandomResizedCrop(config.size, filter=config.filter)


def run_ours(case: Ours, config: LoadBenchConfig, place: Place | None = None) -> Pass:
    """One epoch with a new loader that has warmed up.

    Args:
        case: The loader.
        config: How batches are made.
        place: Of the worker that does it; nothing is kept there.
    """
    began = perf_counter()
    if case.mode == "ring":
        ring = _ring(case, config)
        with ring:
            return _epoch(ring, began)
    loader = _loader(case, config)
    try:
        return _epoch(loader, began)
    finally:
        del loader
        gc.collect()  # the workers end with it


def _epoch(loader: Loader | RingLoader, began: float) -> Pass:
    warming = iter(loader)
    next(warming)
    first_s = perf_counter() - began
    for _ in warming:
        pass
    return replace(taken(loader, lambda batch: len(batch["index"])), first_s=first_s)


def _loader(case: Ours, config: LoadBenchConfig) -> Loader:
    from smallfiles.loading import LoaderConfig, make_loader

    settings = LoaderConfig(
        batch=config.batch,
        workers=case.workers,
        mode="threads" if case.mode == "threads" else "processes",
        prefetch=config.prefetch,
        seed=config.seed,
        rank=0,
        world_size=1,
    )
    loader = make_loader(_maker(case, config), settings)
    loader.schedule.start_at(0, _last_batches(loader.plan.length(), case.workers))
    return loader


def _maker(case: Ours, config: LoadBenchConfig) -> ImageBatches:
    from smallfiles.loading import ImageBatches

    return ImageBatches(first_of(case.path, case.format, case.samples), transform_of(config), config.seed)


def _ring(case: Ours, config: LoadBenchConfig) -> RingLoader:
    from smallfiles.loading import EpochPlan
    from smallfiles.ring import RingConfig, open_ring

    plan = EpochPlan(case.samples, config.batch, config.seed)
    settings = RingConfig(slots=case.workers * config.prefetch + 1, producers=case.workers, epochs=2)
    loader = open_ring(_maker(case, config), plan, settings)
    loader.schedule.start_at(0, _last_batches(plan.length(), case.workers))
    return loader


def _last_batches(length: int, workers: int) -> int:
    """Where an epoch is begun that only warms up: one batch for each worker is left."""
    return max(0, length - workers)
