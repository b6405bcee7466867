"""What training does to a picture: decode, cut out, scale, mirror; uint8, straight into the batch.

    RandomResizedCrop   the usual augmentation of ImageNet training
    RandomShortSide     shorter side drawn from a range, then a random crop (VGG, ResNet)
    CentreCrop          for validation

Each is a function of the bytes and a random generator, can be pickled, and makes arrays of one shape.
Everything stays uint8 until `normalise`, on the device.

The trap: scaling the whole picture and cropping then, or making it float first, does most of the work on
pixels that are thrown away. Notebook 08 measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from helpers.errors import UsageError
from helpers.images.crops import Box, random_resized
from helpers.images.decoding import Pixels, decode_scratch
from helpers.images.resizing import Filter, check_filter, resize
from helpers.samples import Buffer

_UINT8: np.dtype[Any] = np.dtype(np.uint8)


class Transform(Protocol):
    """Makes an array of fixed shape of encoded bytes; a frozen dataclass that can be pickled."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns, channels."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""

    def __call__(self, data: Buffer, rng: np.random.Generator) -> Any:
        """The array of one picture; a function of the two arguments."""

    def into(self, data: Buffer, rng: np.random.Generator, out: Any) -> None:
        """The same, written into `out`, an array of `shape` and `dtype` such as a place in a batch."""


class _Square:
    """What the transforms to a square of uint8 have in common."""

    crop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns, channels."""
        return self.crop, self.crop, 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """Always uint8."""
        return _UINT8

    def __call__(self, data: Buffer, rng: np.random.Generator) -> Pixels:
        """The square of one picture."""
        out = np.empty(self.shape, np.uint8)
        self.into(data, rng, out)
        return out

    def into(self, data: Buffer, rng: np.random.Generator, out: Pixels) -> None:
        """The square of one picture, written into `out`."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomResizedCrop(_Square):
    """A random part of random area and shape, scaled to a square, mirrored at random.

    Args:
        size: Of the square, in pixels.
        scale: Smallest and largest share of the picture's area.
        ratio: Smallest and largest width divided by height.
        flip: Probability of mirroring.
        filter: How pixels are scaled.
    """

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    filter: Filter = "antialias"

    def __post_init__(self) -> None:
        check_filter(self.filter)
        _check_range("scale", self.scale, 1.0)
        _check_range("ratio", self.ratio, float("inf"))

    @property
    def crop(self) -> int:  # type: ignore[override]
        """Of the square, in pixels."""
        return self.size

    def into(self, data: Buffer, rng: np.random.Generator, out: Pixels) -> None:
        """The square of one picture, written into `out`."""
        pixels = decode_scratch(data)
        height, width = pixels.shape[:2]
        box = random_resized(width, height, rng, self.scale, self.ratio)
        resize(_part(pixels, box), out, self.filter, flip=rng.random() < self.flip)


def _part(pixels: Pixels, box: Box) -> Pixels:
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def _check_range(name: str, found: tuple[float, float], most: float) -> None:
    if not 0 < found[0] <= found[1] <= most:
        raise UsageError(
            f"{name}={found} is asked for",
            expected=f"two numbers above 0 and at most {most:g}, the smaller first",
            next_step="Leave it out for what is usual",
        )
