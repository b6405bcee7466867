"""Where the time of a batch goes: read, decode, augment, collate, transfer.

One worker's way of making a batch is followed in one thread, stage by stage, on the very samples of an
epoch. `transfer` is what a batch costs that a process sends to the trainer, page faults on both sides
included, measured with batches that need no making; a batch that a thread made costs nothing there.

The trap: reading from a memory-mapped file costs nothing until a byte is touched, and then the decoder
seems slow. So each page is touched while reading is timed. Notebook 08 shows the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from smallfiles.images import RandomResizedCrop
from smallfiles.images.picture import open_picture
from smallfiles.loading.batches import Array, Batch, Indices, Layout, SampleRngs
from smallfiles.loading.makers import ImageBatches
from smallfiles.measure.config import LoadBenchConfig
from smallfiles.measure.loading.ours import first_of, transform_of
from smallfiles.measure.workers import Place
from smallfiles.samples import Buffer, Reader

BATCHES = 4
_SENT = 24
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Stages:
    """Seconds for one batch, by what they are spent on.

    Args:
        read_s: Encoded bytes, each page touched.
        decode_s: Bytes to the pixels of the part that is cut out.
        augment_s: Scaling it to the square, mirroring it.
        collate_s: All else that makes a batch of it: memory, labels, random generators.
        transfer_s: From a worker process to the trainer.
        device_s: From there to the GPU; 0 if there is none.
    """

    read_s: float
    decode_s: float
    augment_s: float
    collate_s: float
    transfer_s: float
    device_s: float = 0.0

    @property
    def made_s(self) -> float:
        """What one worker does for a batch."""
        return self.read_s + self.decode_s + self.augment_s + self.collate_s

    def shares(self) -> dict[str, float]:
        """Of the whole, by stage."""
        whole = sum(getattr(self, field.name) for field in fields(self))
        return {field.name.removesuffix("_s"): getattr(self, field.name) / whole for field in fields(self)}


@dataclass(frozen=True)
class Constant:
    """A maker whose batches cost nothing but their memory.

    Args:
        maker: Whose layout they have.
    """

    maker: ImageBatches

    fixed = True

    @property
    def reader(self) -> Reader:
        """Of the maker."""
        return self.maker.reader

    def layout(self, count: int) -> Layout:
        """Of the maker."""
        return self.maker.layout(count)

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Array] | None = None) -> Batch:
        """Zeros: each page is touched, as if pixels were written to it."""
        layout = self.layout(len(indices))
        arrays = {
            name: np.zeros(shape, kind) if out is None else out[name][: shape[0]]
            for name, (shape, kind) in layout.items()
        }
        for array in arrays.values():
            array[...] = 0
        arrays["index"][...] = indices
        return Batch(arrays)


def stages_of(
    path: Path, format: str, samples: int, config: LoadBenchConfig, place: Place | None = None
) -> Stages:
    """Follow a few batches of an epoch.

    Args:
        path: A packed file.
        format: Its format.
        samples: Of an epoch.
        config: Batch size, transform and seed.
        place: Of the worker that does it; nothing is kept there.
    """
    reader = first_of(path, format, samples)
    transform = transform_of(config)
    maker = ImageBatches(reader, transform, config.seed)
    order = np.random.default_rng(config.seed).permutation(samples)
    batches = [order[at : at + config.batch] for at in range(0, samples, config.batch)][:BATCHES]
    found = [_followed(maker, transform, reader, batch, config.seed) for batch in batches]
    read_s, decode_s, whole_s, made_s = (float(np.median(column)) for column in zip(*found, strict=True))
    transfer_s, device_s = _sent(maker, config)
    return Stages(
        read_s=read_s,
        decode_s=decode_s,
        augment_s=max(0.0, whole_s - decode_s),
        collate_s=max(0.0, made_s - read_s - whole_s),
        transfer_s=transfer_s,
        device_s=device_s,
    )


def _followed(
    maker: ImageBatches, transform: RandomResizedCrop, reader: Reader, indices: Indices, seed: int
) -> tuple[float, float, float, float]:
    """Seconds to read, to decode, to decode and augment, and for the batch as a worker makes it."""
    numbers = [int(index) for index in indices]
    began = perf_counter()
    found = reader.read_many(numbers)
    for data in found:
        np.frombuffer(data, np.uint8)[::_PAGE_BYTES].sum()
    read_s = perf_counter() - began
    rngs, out = SampleRngs(seed, 0), np.empty(transform.shape, transform.dtype)
    pairs = list(zip(numbers, found, strict=True))
    for index, data in pairs[:2]:  # what is done for the first time of all is not a batch's doing
        transform.into(data, rngs.at(index), out)
    began = perf_counter()
    for index, data in pairs:
        _decoded(transform, data, rngs.at(index))
    decode_s = perf_counter() - began
    began = perf_counter()
    for index, data in pairs:
        transform.into(data, rngs.at(index), out)
    whole_s = perf_counter() - began
    began = perf_counter()
    maker.make(indices, 0)
    return read_s, decode_s, whole_s, perf_counter() - began


def _decoded(transform: RandomResizedCrop, data: Buffer, rng: np.random.Generator) -> None:
    """The first half of what the transform does, with the same random numbers."""
    picture = open_picture(data)
    box = transform.box(picture.width, picture.height, rng)
    picture.part(box, transform.size, transform.size, transform.reducing_gap)


def _sent(maker: ImageBatches, config: LoadBenchConfig) -> tuple[float, float]:
    """Seconds that a batch costs from a process to the trainer, and from there to a GPU."""
    import torch

    from smallfiles.loading import LoaderConfig, make_loader

    batch = min(config.batch, len(maker.reader))
    settings = LoaderConfig(batch=batch, workers=1, mode="processes", rank=0, world_size=1, pin_memory=False)
    loader = make_loader(Constant(maker), settings)
    times, number, device_s = [], 0, 0.0
    while number < _SENT:
        clock = perf_counter()
        for sent in loader:
            _touch(sent["image"])
            times.append(perf_counter() - clock)
            number += 1
            clock = perf_counter()
            last = sent
    if torch.cuda.is_available():
        device_s = _copied(last["image"])
    return float(np.median(times)), device_s


def _touch(image: Any) -> None:
    image.permute(0, 2, 3, 1).reshape(-1)[::_PAGE_BYTES].sum()


def _copied(image: Any) -> float:
    import torch

    pinned, times = image.pin_memory(), []
    for _ in range(5):
        torch.cuda.synchronize()
        began = perf_counter()
        pinned.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return float(np.median(times))
