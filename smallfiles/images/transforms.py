"""What training does to a picture: decode, cut out, scale, mirror; uint8, straight into the batch.

    RandomResizedCrop   the usual augmentation of ImageNet training
    RandomShortSide     shorter side drawn from a range, then a random crop (VGG, the first ResNets)
    CentreCrop          for validation

Each is a function of the bytes and a random generator, can be pickled, and makes arrays of one shape.
Everything stays uint8 until `normalise`, on the device.

The trap: scaling the whole picture and cropping then, or making it float first, does most of the work on
pixels that are thrown away. Notebook 08 measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from smallfiles.errors import UsageError
from smallfiles.images.colour import ColourJitter
from smallfiles.images.crops import Box, View, centred, random_resized, random_square, short_side
from smallfiles.images.picture import open_picture
from smallfiles.images.resizing import Filter, check_filter, resize
from smallfiles.samples import Buffer

Array: TypeAlias = npt.NDArray[Any]

_UINT8: np.dtype[Any] = np.dtype(np.uint8)


class Transform(Protocol):
    """Makes an array of fixed shape of encoded bytes; a frozen dataclass that can be pickled."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array: rows, columns, channels for uint8."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""

    def __call__(self, data: Buffer, rng: np.random.Generator) -> Array:
        """The array of one picture; a function of the two arguments."""

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """The same, written into `out`, an array of `shape` and `dtype` such as a place in a batch.

        Raises:
            ImageError: The bytes are no complete picture.
        """


class _Made:
    """Calling a transform is `into` with a new array."""

    shape: tuple[int, ...]
    dtype = _UINT8

    def __call__(self, data: Buffer, rng: np.random.Generator) -> Array:
        """The array of one picture."""
        out = np.empty(self.shape, self.dtype)
        self.into(data, rng, out)
        return out

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """The array of one picture, written into `out`."""
        raise NotImplementedError


class _RandomSquare(_Made):
    """A random part, scaled to a square, mirrored and coloured at random."""

    flip: float
    jitter: ColourJitter | None
    filter: Filter = "antialias"

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """The square of one picture, written into `out`."""
        picture = open_picture(data)
        view = self.view(picture.width, picture.height, rng)
        pixels = picture.part(view.part, view.rows, view.columns)
        resize(pixels, out, self.filter, flip=view.mirrored)
        if self.jitter is not None:
            self.jitter.apply(out, rng)

    def view(self, width: int, height: int, rng: np.random.Generator) -> View:
        """What is seen of a picture of this size; draws what `into` draws."""
        part = self.box(width, height, rng)
        mirrored = self.flip > 0 and rng.random() < self.flip
        side = self.shape[0]
        return View(part, side, side, side, mirrored=mirrored)

    def box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        """The part of a picture of this size that is taken."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomResizedCrop(_RandomSquare):
    """A random part of random area and shape, scaled to a square, mirrored at random.

    Args:
        size: Of the square, in pixels.
        scale: Smallest and largest share of the picture's area.
        ratio: Smallest and largest width divided by height.
        flip: Probability of mirroring.
        filter: How pixels are scaled.
        jitter: Random change of colours; None leaves them.
    """

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    filter: Filter = "antialias"
    jitter: ColourJitter | None = None

    def __post_init__(self) -> None:
        check_filter(self.filter)
        _check(self.size, self.flip)
        _check_range("scale", self.scale, 1.0)
        _check_range("ratio", self.ratio, float("inf"))

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Rows, columns, channels."""
        return self.size, self.size, 3

    def box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        """The part of a picture of this size that is taken."""
        return random_resized(width, height, rng, self.scale, self.ratio)


@dataclass(frozen=True)
class RandomShortSide(_RandomSquare):
    """The shorter side scaled to a random length, then a random square, mirrored and coloured at random.

    The square is cut out first, on the pixels of the picture, and scaled then: the same views for a
    quarter of the work.

    Args:
        short: Smallest and largest length of the shorter side, in pixels.
        crop: Of the square, in pixels.
        flip: Probability of mirroring.
        jitter: Random change of colours; None leaves them.
    """

    short: tuple[int, int] = (256, 480)
    crop: int = 224
    flip: float = 0.5
    jitter: ColourJitter | None = None

    def __post_init__(self) -> None:
        _check(self.crop, self.flip)
        _check_range("short", self.short, float("inf"))
        _check_fits(self.crop, self.short[0])

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Rows, columns, channels."""
        return self.crop, self.crop, 3

    def box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        """The part of a picture of this size that is taken."""
        short = int(rng.integers(self.short[0], self.short[1], endpoint=True))
        return random_square(width, height, rng, self.crop / short)


@dataclass(frozen=True)
class CentreCrop(_Made):
    """The shorter side scaled to `resize`, then the square in the middle; nothing is random.

    Equal to torchvision's Resize and CenterCrop within 1, since published accuracies depend on it.

    Args:
        resize: Length of the shorter side, in pixels.
        crop: Of the square, in pixels.
    """

    resize: int = 256
    crop: int = 224

    def __post_init__(self) -> None:
        _check(self.crop, 0.0)
        _check_fits(self.crop, self.resize)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Rows, columns, channels."""
        return self.crop, self.crop, 3

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """The square of one picture, written into `out`; `rng` is not used."""
        picture = open_picture(data)
        view = self.view(picture.width, picture.height, rng)
        scaled = np.empty((view.rows, view.columns, 3), np.uint8)
        resize(picture.part(view.part, view.rows, view.columns), scaled)
        out[:] = scaled[view.top : view.top + self.crop, view.left : view.left + self.crop]

    def view(self, width: int, height: int, rng: np.random.Generator) -> View:
        """What is seen of a picture of this size; `rng` is not used."""
        columns, rows = short_side(width, height, self.resize)
        left, top = centred(columns, rows, self.crop)
        return View(Box(0, 0, height, width), rows, columns, self.crop, top, left)


def _check(size: int, flip: float) -> None:
    if size < 1 or not 0 <= flip <= 1:
        raise UsageError(
            f"a square of {size} pixels, mirrored with probability {flip}, is asked for",
            expected="1 pixel or more, and a probability from 0 to 1",
            next_step="Leave them out for 224 and 0.5",
        )


def _check_range(name: str, found: tuple[float, float], most: float) -> None:
    if not 0 < found[0] <= found[1] <= most:
        raise UsageError(
            f"{name}={found} is asked for",
            expected=f"two numbers above 0 and at most {most:g}, the smaller first",
            next_step="Leave it out for what is usual",
        )


def _check_fits(crop: int, short: int) -> None:
    if crop > short:
        raise UsageError(
            f"a square of {crop} pixels is to be cut out of pictures whose shorter side is {short}",
            expected="a square that fits in",
            next_step=f"Scale to {crop} or more, or cut out {short} or less",
        )
