"""Transforms of others: torchvision's, or any function of a picture, in place of ours.

    transform = v2.Compose([v2.RandomResizedCrop(224), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = make_loader("train.arrow", transform=transform)

A picture comes as Pillow's, in RGB, or as a uint8 tensor [C, H, W] to a transform that takes no other. What
is made of it (a tensor, an array, a picture) goes into the batch as it is: floats stay floats, and if they
are normalised already, `images.normalise` must not follow.

The trap: such transforms draw from random generators that the whole process shares, so what they do depends
on the number of workers, and forked ones may all do the same. Here the generators of torch, Python and NumPy
begin anew for each sample, by its number and the epoch, and are put back: the same pictures for any number
of workers. Threads would draw from them at the same time as the trainer, and are refused. A transform
with a generator of its own is not reached by this. Notebook 08 teaches how batches are made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from smallfiles.errors import UsageError
from smallfiles.images.decoding import decode
from smallfiles.images.faults import ImageError
from smallfiles.loading.batches import Array
from smallfiles.samples import Buffer, Reader

_TRIED = 100
"""Samples that are looked at for one that is a picture."""


@dataclass(frozen=True)
class Called:
    """A function of a picture as a `Transform` of ours.

    Args:
        call: Makes a tensor, an array or a picture of one picture.
        takes_tensor: Whether it gets a tensor, not a picture of Pillow's.
        shape: Of what it makes, as the batch holds it.
        dtype: Likewise.
    """

    call: Callable[[Any], Any]
    takes_tensor: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, call: Callable[[Any], Any], reader: Reader) -> Called:
        """Try it on a sample, to know what it takes and makes.

        Args:
            call: As for `Called`.
            reader: The set; the first of its samples that is a picture is tried.

        Raises:
            UsageError: It is no function, or makes something that is no array.
        """
        if not callable(call):
            raise _unfit(f"the transform is {type(call).__name__}")
        pixels = _first_picture(reader)
        try:
            takes_tensor, made = False, _made(call, pixels, False, 0)
        except (TypeError, AttributeError):  # what a picture is to a function that expects a tensor
            takes_tensor, made = True, _made(call, pixels, True, 0)
        return cls(call, takes_tensor, made.shape, made.dtype)

    def __call__(self, data: Buffer, rng: np.random.Generator) -> Array:
        """The array of one picture."""
        return _made(self.call, decode(data), self.takes_tensor, int(rng.integers(1 << 32)))

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """The array of one picture, written into `out`."""
        made = self(data, rng)
        if (made.shape, made.dtype) != (self.shape, self.dtype):
            raise UsageError(
                f"the transform made {made.dtype} {list(made.shape)} of one picture, and "
                f"{self.dtype} {list(self.shape)} of another",
                expected="one shape and type for all, since a batch is one array",
                next_step="Have it crop or scale both sides: RandomResizedCrop(224) or CenterCrop(224), say",
            )
        out[...] = made


def _first_picture(reader: Reader) -> Array:
    for index in range(min(len(reader), _TRIED)):
        try:
            return decode(reader.read(index))
        except ImageError:
            continue
    return np.zeros((256, 256, 3), np.uint8)


def _made(call: Callable[[Any], Any], pixels: Array, takes_tensor: bool, seed: int) -> Array:
    given = torch.from_numpy(pixels).permute(2, 0, 1) if takes_tensor else Image.fromarray(pixels)
    with _seeded(seed):
        found = call(given)
    if isinstance(found, torch.Tensor):
        array: Array = found.detach().cpu().numpy()
        return array.transpose(1, 2, 0) if array.dtype == np.uint8 and array.ndim == 3 else array
    if isinstance(found, Image.Image | np.ndarray):
        return np.asarray(found)
    raise _unfit(f"the transform made {type(found).__name__} of a picture")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The generators that a process shares, at the start of a sequence; as they were, afterwards."""
    of_torch = torch.default_generator
    before = of_torch.get_state(), random.getstate(), np.random.get_state()
    of_torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        of_torch.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


def _unfit(got: str) -> UsageError:
    return UsageError(
        got,
        expected="a transform of smallfiles.images or torchvision, or a function of a picture that makes a "
        "tensor, an array or a picture",
        next_step="Give such a transform, or none for the encoded bytes",
    )
