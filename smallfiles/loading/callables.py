"""Foreign transforms: torchvision's, or any function of a picture, in place of ours.

    transform = v2.Compose([v2.RandomResizedCrop(224), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = make_loader("train.arrow", transform=transform)

The function receives a Pillow picture in RGB, or a uint8 tensor [C, H, W] if it accepts nothing else. Its
result (a tensor, an array, a picture) goes into the batch unchanged: floats stay floats, and if they are
already normalised, `images.normalise` must not follow.

The trap: such transforms draw from random generators that the whole process shares, so the result depends
on the number of workers, and forked workers may all draw the same numbers. Here the generators of torch,
Python and NumPy are seeded for each sample by its number and the epoch, and restored: the same pictures for
any number of workers. Threads would share them with the trainer, and are refused. A transform with a
generator of its own is not covered by this. Notebook 08 teaches how batches are made.
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
from smallfiles.images.decoding import ImageError, decode
from smallfiles.loading.makers import Values
from smallfiles.samples import Buffer, Reader

_TRIED = 100
"""Samples to examine until one is a picture."""


@dataclass(frozen=True)
class TransformAdapter:
    """Adapts a function of a picture to our `Transform`.

    Args:
        call: Makes a tensor, an array or a picture from one picture.
        takes_tensor: Whether it receives a tensor instead of a Pillow picture.
        shape: Shape of its result in the batch.
        dtype: Type of its result.
    """

    call: Callable[[Any], Any]
    takes_tensor: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, call: Callable[[Any], Any], reader: Reader) -> TransformAdapter:
        """Call it on one sample, to learn what it accepts and returns.

        Args:
            call: As for `TransformAdapter`.
            reader: The set; its first sample that is a picture is used.

        Raises:
            UsageError: It is not a function, or its result is not an array.
        """
        if not callable(call):
            raise _unfit(f"the transform is {type(call).__name__}")
        pixels = _first_picture(reader)
        try:
            takes_tensor, made = False, _made(call, pixels, False, 0)
        except (TypeError, AttributeError):  # the function expects a tensor
            takes_tensor, made = True, _made(call, pixels, True, 0)
        return cls(call, takes_tensor, made.shape, made.dtype)

    def __call__(self, data: Buffer, rng: np.random.Generator) -> Values:
        """Transform one picture, and return its array."""
        return _made(self.call, decode(data), self.takes_tensor, int(rng.integers(1 << 32)))

    def into(self, data: Buffer, rng: np.random.Generator, out: Values) -> None:
        """Transform one picture, and write its array into `out`."""
        made = self(data, rng)
        if (made.shape, made.dtype) != (self.shape, self.dtype):
            raise UsageError(
                f"the transform made {made.dtype} {list(made.shape)} from one picture, and "
                f"{self.dtype} {list(self.shape)} from another",
                expected="the same shape and type for all, since a batch is one array",
                next_step="Make it crop or scale both sides, for example with RandomResizedCrop(224)",
            )
        out[...] = made


def _first_picture(reader: Reader) -> Values:
    for index in range(min(len(reader), _TRIED)):
        try:
            return decode(reader.read(index))
        except ImageError:
            continue
    return np.zeros((256, 256, 3), np.uint8)


def _made(call: Callable[[Any], Any], pixels: Values, takes_tensor: bool, seed: int) -> Values:
    given = torch.from_numpy(pixels).permute(2, 0, 1) if takes_tensor else Image.fromarray(pixels)
    with _seeded(seed):
        found = call(given)
    if isinstance(found, torch.Tensor):
        array: Values = found.detach().cpu().numpy()
        return array.transpose(1, 2, 0) if array.dtype == np.uint8 and array.ndim == 3 else array
    if isinstance(found, Image.Image | np.ndarray):
        return np.asarray(found)
    raise _unfit(f"the transform made {type(found).__name__} from a picture")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that a process shares, and restore them afterwards."""
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
        expected="a transform of smallfiles.images or torchvision, or a function of a picture that returns a "
        "tensor, an array or a picture",
        next_step="Give such a transform, or none for the encoded bytes",
    )
