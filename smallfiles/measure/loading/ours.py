"""Our loaders, measured: batches made by processes, by threads of the trainer, or ahead in a ring.

Each run makes a loader, takes the last few batches of one epoch, during which its workers start, and
measures the next epoch. A ring that is filled for two epochs has no work left when the clock stops, and no
batch ready when it starts, since batches are taken as fast as they are made.

The stages of a batch (read, decode, augment, collate, transfer) are measured separately: the work of one
worker is repeated in one thread, stage by stage, on the samples of an epoch. `transfer` is the time to copy a
batch into memory that the trainer sees too, as a worker process does; for threads it is zero.

The traps: a measurement that includes the start measures mainly imports, so the time to the first batch is
reported separately. And reading a memory-mapped file takes no time until a byte is touched, which makes the
decoder look slow; so each page is touched while reading is timed. Notebook 08 measures with it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from smallfiles import formats
from smallfiles.images import RandomResizedCrop
from smallfiles.images.picture import open_picture
from smallfiles.loading.fields import FieldBatches, field_batches
from smallfiles.loading.makers import Indices, SampleRngs
from smallfiles.measure import PREFETCH, LoadBenchConfig, Mode
from smallfiles.measure.bench import Target
from smallfiles.measure.loading.steps import Pass, emulated, taken
from smallfiles.measure.workers import WorkerState
from smallfiles.samples import Buffer, Reader, Sample

if TYPE_CHECKING:
    from smallfiles.loading import Loader
    from smallfiles.ring import RingLoader


BATCHES = 4
_PAGE_BYTES = 4096


class First:
    """The first samples of a reader, as a reader.

    Args:
        reader: The reader of a packed file.
        count: Number of samples.
    """

    def __init__(self, reader: Reader, count: int) -> None:
        self._reader, self._count = reader, count

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # there is no reader yet during unpickling
            raise AttributeError(name)
        return getattr(self._reader, name)

    def __iter__(self) -> Iterator[Sample]:
        return islice(iter(self._reader), self._count)


def first_of(target: Target) -> Reader:
    """Open a reader of the samples that are measured."""
    reader = formats.open(target.path, target.format)
    return reader if len(reader) == target.samples else First(reader, target.samples)


def run_ours(
    target: Target, mode: Mode, workers: int, config: LoadBenchConfig, place: WorkerState | None = None
) -> Pass:
    """Run one epoch with a new loader after a warm-up.

    Args:
        target: The packed file.
        mode: Where batches are made.
        workers: Number of workers.
        config: How batches are made.
        place: State of the measuring worker; not used.
    """
    began = perf_counter()
    maker = _maker(target, config)
    if mode == "ring":
        with _ring(maker, target.samples, workers, config) as ring:
            return _epoch(ring, began, workers, config)
    loader = _loader(maker, mode, workers, config)
    try:
        return _epoch(loader, began, workers, config)
    finally:
        del loader
        gc.collect()  # the workers end with it


def _epoch(loader: Loader | RingLoader, began: float, workers: int, config: LoadBenchConfig) -> Pass:
    warming = iter(loader)
    next(warming)
    first_s = perf_counter() - began
    for _ in warming:
        pass
    done = replace(taken(_counts(loader)), first_s=first_s)
    ready = workers * PREFETCH + 1
    return emulated(done, lambda: _counts(loader), config.batch, config.step_s, ready)


def _counts(loader: Loader | RingLoader) -> Iterable[int]:
    return (len(batch["index"]) for batch in loader)


def _maker(target: Target, config: LoadBenchConfig) -> FieldBatches:
    transform = RandomResizedCrop(config.size)
    return field_batches(first_of(target), transform=transform, seed=config.seed)


def _loader(maker: FieldBatches, mode: Mode, workers: int, config: LoadBenchConfig) -> Loader:
    from smallfiles.loading import LoaderConfig, make_loader

    settings = LoaderConfig(
        batch=config.batch,
        workers=workers,
        mode="threads" if mode == "threads" else "processes",
        prefetch=PREFETCH,
        seed=config.seed,
        rank=0,
        world_size=1,
    )
    loader = make_loader(maker, settings)
    loader.schedule.start_at(0, _last_batches(loader.plan.length(), workers))
    return loader


def _ring(maker: FieldBatches, samples: int, workers: int, config: LoadBenchConfig) -> RingLoader:
    from smallfiles.loading import EpochPlan
    from smallfiles.ring import RingConfig, open_ring

    plan = EpochPlan(samples, config.batch, config.seed)
    epochs = 2 if config.step_s is None else None
    settings = RingConfig(slots=workers * PREFETCH + 1, producers=workers, epochs=epochs)
    loader = open_ring(maker, plan, settings)
    loader.schedule.start_at(0, _last_batches(plan.length(), workers))
    return loader


def _last_batches(length: int, workers: int) -> int:
    """Start of the epoch that warms up: one batch for each worker is left."""
    return max(0, length - workers)


def stages_of(target: Target, config: LoadBenchConfig, place: WorkerState | None = None) -> dict[str, float]:
    """Measure the seconds per batch of each stage.

    Args:
        target: The packed file.
        config: Batch size, transform and seed.
        place: State of the measuring worker; not used.

    Returns:
        `read_s`, encoded bytes, each page touched; `decode_s`, to the pixels of the crop; `augment_s`,
        scaling and flipping it; `collate_s`, the rest of making a batch; `transfer_s`, into memory that the
        trainer sees; `device_s`, from there to the GPU, 0 without one.
    """
    maker = _maker(target, config)
    order = np.random.default_rng(config.seed).permutation(target.samples)
    batches = [order[at : at + config.batch] for at in range(0, target.samples, config.batch)][:BATCHES]
    _stages(maker, batches[0][:2], config)  # the first call initialises libraries
    found = [_stages(maker, batch, config) for batch in batches]
    return {f"{name}_s": float(np.median([each[name] for each in found])) for name in found[0]}


def _stages(maker: FieldBatches, indices: Indices, config: LoadBenchConfig) -> dict[str, float]:
    """Measure the seconds of each stage of one batch."""
    import torch

    transform, rngs = RandomResizedCrop(config.size), SampleRngs(config.seed, 0)
    numbers, out = [int(index) for index in indices], np.empty(transform.shape, transform.dtype)
    clock = [perf_counter()]
    found = maker.reader.read_many(numbers)
    for data in found:
        np.frombuffer(data, np.uint8)[::_PAGE_BYTES].sum()
    clock.append(perf_counter())
    for index, data in zip(numbers, found, strict=True):
        _decode(transform, data, rngs.at(index))
    clock.append(perf_counter())
    for index, data in zip(numbers, found, strict=True):
        transform.into(data, rngs.at(index), out)
    clock.append(perf_counter())
    image = torch.from_numpy(maker.make(indices, 0).arrays["image"])
    clock.append(perf_counter())
    image.clone().share_memory_()  # type: ignore[no-untyped-call]
    clock.append(perf_counter())
    read_s, decode_s, whole_s, made_s, transfer_s = np.diff(clock).tolist()
    return {
        "read": read_s,
        "decode": decode_s,
        "augment": max(0.0, whole_s - decode_s),
        "collate": max(0.0, made_s - read_s - whole_s),
        "transfer": transfer_s,
        "device": _to_gpu_s(image) if torch.cuda.is_available() else 0.0,
    }


def _to_gpu_s(image: Any) -> float:
    import torch

    pinned = image.pin_memory()
    torch.cuda.synchronize()
    began = perf_counter()
    pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return perf_counter() - began


def _decode(transform: RandomResizedCrop, data: Buffer, rng: np.random.Generator) -> None:
    """Run the first half of the transform, with the same random numbers."""
    picture = open_picture(data)
    box = transform.box(picture.width, picture.height, rng)
    picture.part(box, transform.size, transform.size)
