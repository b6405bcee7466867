"""Four ways to make one batch of the same views, from the obvious one to ours.

The view is that of the forum's question: the shorter side is scaled to a random length from 256 to 480
pixels, and 224 x 224 pixels are cut out somewhere. Scaling all and cutting then gives what cutting and
scaling then gives, but for a rounding of the place; so all four ways make the same batch.

    floats, scale, cut   ToTensor first, as the loaders of the Jülich course have it
    scale, cut, floats   what most people write with Pillow and torchvision
    cut, scale           on bytes, floats are left to the device
    only the part        decode no more than is cut out, and scale it into its place in the batch

The trap: the first two open a file for each picture and send floats; both are bottlenecks of their own, so
each stage is told apart. Notebook 08 shows them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from helpers.experiments.nb08.clock import Clock
from smallfiles.images import RandomShortSide, decode, normalise, resize
from smallfiles.images.crops import Box
from smallfiles.images.picture import open_picture
from smallfiles.loading.batches import SampleRngs
from smallfiles.samples import Reader
from smallfiles.sources import Source

SIDE = 224
VIEW = RandomShortSide(crop=SIDE, flip=0.0)


@dataclass(frozen=True)
class Material:
    """The same pictures as small files and packed.

    Args:
        source: The files.
        reader: The packed file, in the order of the manifest.
        seed: Of the views.
    """

    source: Source
    reader: Reader
    seed: int = 0

    def file(self, index: int) -> bytes:
        """The bytes of one picture, from its own file."""
        store, path = self.source.store, self.source.manifest.path(index)
        buffer = bytearray(store.size(path))
        return bytes(buffer[: store.read_into(path, memoryview(buffer))])

    def box(self, index: int, width: int, height: int) -> Box:
        """The part of a picture that is its view, the same in all ways."""
        return VIEW.box(width, height, SampleRngs(self.seed, 0).at(index))


Way: TypeAlias = Callable[[Material, Sequence[int], Clock], torch.Tensor]


def floats_first(material: Material, indices: Sequence[int], clock: Clock) -> torch.Tensor:
    """ToTensor, then scale the whole picture, then cut: float32, [B, C, H, W]."""
    views = []
    for index in indices:
        data = material.file(index)
        clock.lap("read")
        pixels = np.array(_by_pillow(data))
        clock.lap("decode")
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).to(torch.float32) / 255
        box = material.box(index, pixels.shape[1], pixels.shape[0])
        rows, columns, top, left = _scaled(box, pixels.shape[1], pixels.shape[0])
        whole = torch.nn.functional.interpolate(
            tensor[None], (rows, columns), mode="bilinear", antialias=True, align_corners=False
        )[0]
        views.append(_normalised(whole[:, top : top + SIDE, left : left + SIDE]))
        clock.lap("augment")
    return _stacked(views, clock)


def scale_first(material: Material, indices: Sequence[int], clock: Clock) -> torch.Tensor:
    """Scale the whole picture, cut, then ToTensor and Normalize: float32, [B, C, H, W]."""
    views = []
    for index in indices:
        data = material.file(index)
        clock.lap("read")
        picture = _by_pillow(data)
        clock.lap("decode")
        box = material.box(index, *picture.size)
        rows, columns, top, left = _scaled(box, *picture.size)
        whole = picture.resize((columns, rows), Image.Resampling.BILINEAR)
        part = np.array(whole.crop((left, top, left + SIDE, top + SIDE)))
        views.append(_normalised(torch.from_numpy(part).permute(2, 0, 1).to(torch.float32) / 255))
        clock.lap("augment")
    return _stacked(views, clock)


def cut_first(material: Material, indices: Sequence[int], clock: Clock) -> torch.Tensor:
    """Cut, then scale, all on bytes: uint8, [B, H, W, C]."""
    views = []
    for index in indices:
        data = _packed(material, index)
        clock.lap("read")
        pixels = decode(data)
        clock.lap("decode")
        box = material.box(index, pixels.shape[1], pixels.shape[0])
        view = np.empty((SIDE, SIDE, 3), np.uint8)
        resize(pixels[box.top : box.top + box.height, box.left : box.left + box.width], view)
        views.append(torch.from_numpy(view))
        clock.lap("augment")
    return _stacked(views, clock)


def only_the_part(material: Material, indices: Sequence[int], clock: Clock) -> torch.Tensor:
    """Decode only what is cut out, and scale it into its place in the batch: uint8, [B, H, W, C]."""
    batch = np.empty((len(indices), SIDE, SIDE, 3), np.uint8)
    clock.lap("collate")
    for place, index in enumerate(indices):
        data = _packed(material, index)
        clock.lap("read")
        picture = open_picture(data)
        box = material.box(index, picture.width, picture.height)
        part = picture.part(box, SIDE, SIDE, VIEW.reducing_gap)
        clock.lap("decode")
        resize(part, batch[place])
        clock.lap("augment")
    return torch.from_numpy(batch)


WAYS: dict[str, Way] = {
    "floats, scale, cut": floats_first,
    "scale, cut, floats": scale_first,
    "cut, scale": cut_first,
    "only the part": only_the_part,
}


def as_floats(batch: torch.Tensor) -> torch.Tensor:
    """A batch of any way as the first two make it."""
    return batch if batch.dtype == torch.float32 else normalise(batch)


def _packed(material: Material, index: int) -> Any:
    data = material.reader.read(index)
    np.frombuffer(data, np.uint8)[::4096].sum()  # a mapped file is read when its bytes are touched
    return data


def _by_pillow(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as picture:
        return picture.convert("RGB")


def _scaled(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """Rows and columns of the whole picture once the box is `SIDE` pixels wide, and where the box is then."""
    factor = SIDE / box.width
    rows, columns = max(SIDE, round(height * factor)), max(SIDE, round(width * factor))
    return (
        rows,
        columns,
        min(round(box.top * factor), rows - SIDE),
        min(round(box.left * factor), columns - SIDE),
    )


def _normalised(view: torch.Tensor) -> torch.Tensor:
    from torchvision.transforms.v2 import functional

    from smallfiles.images import IMAGENET_MEAN, IMAGENET_STD

    found: torch.Tensor = functional.normalize(view, list(IMAGENET_MEAN), list(IMAGENET_STD))
    return found


def _stacked(views: list[torch.Tensor], clock: Clock) -> torch.Tensor:
    batch = torch.stack(views)
    clock.lap("collate")
    return batch
