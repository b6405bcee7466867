"""Transform a picture for training: decode, cut out, scale, mirror, colour; uint8, straight into the batch.

    RandomResizedCrop   the usual augmentation of ImageNet training
    RandomShortSide     shorter side drawn from a range, then a random crop (VGG, the first ResNets)
    CentreCrop          for validation
    ColourJitter        random brightness, contrast and saturation, for the two random crops
    normalise           the last step, on the device: uint8 batches to normalised float32

Each crop is a function of the bytes and a random generator, can be pickled, and makes arrays of one shape.
Everything stays uint8 until `normalise`: a float takes four bytes where a pixel took one, so uint8 batches
cost a quarter when they are sent between processes or to a GPU.

Two filters scale pixels: `antialias`, a triangle as wide as the reduction, is what Pillow and torchvision
call bilinear, and published results were trained with it. `linear` uses the four nearest pixels: it is faster
and coarser, and OpenCV calls it linear. PyTorch's kernels on uint8 do both, several times as fast as Pillow
and equal to it within 1. They work in one thread. Most other functions of PyTorch start some for a single
picture, which on busy cores takes ten times as long as doing it; so they are not used here.

The traps: scaling or colouring the whole picture and cropping then, or making it float first, does most of
the work on pixels that are thrown away. With `linear` a reduction of 3 looks at 4 pixels of 9 and leaves out
the rest, which makes fine patterns flicker; a network trained with one filter loses accuracy with another.
Notebook 08 measures both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from smallfiles.errors import UsageError
from smallfiles.images.crops import Box, View, centred, random_resized, random_square, short_side
from smallfiles.images.decoding import Pixels
from smallfiles.images.picture import open_picture
from smallfiles.samples import Buffer

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""The means of red, green and blue in ImageNet, on a scale of 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""The standard deviations of red, green and blue in ImageNet."""
_SCALE = np.array([1 / (255 * each) for each in IMAGENET_STD], np.float32)
_SHIFT = np.array([-mean / each for mean, each in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)], np.float32)


@overload
def normalise(batch: torch.Tensor) -> torch.Tensor: ...


@overload
def normalise(batch: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]: ...


def normalise(batch: torch.Tensor | npt.NDArray[np.uint8]) -> torch.Tensor | npt.NDArray[np.float32]:
    """Subtract ImageNet's mean and divide by its standard deviation, channel by channel.

    Args:
        batch: uint8, [B, rows, columns, channels]; a tensor may lie on any device.

    Returns:
        float32, [B, channels, rows, columns], on the same device. A tensor keeps its order in memory
        (`torch.channels_last`), which convolutions are fastest with.
    """
    if not isinstance(batch, torch.Tensor):
        return normalise(torch.from_numpy(batch)).numpy()
    factor, offset = (torch.from_numpy(values[:, None, None]).to(batch.device) for values in (_SCALE, _SHIFT))
    return batch.permute(0, 3, 1, 2).to(torch.float32).mul_(factor).add_(offset)


Filter: TypeAlias = Literal["antialias", "linear"]


def resize(pixels: Pixels, out: Pixels, filter: Filter = "antialias", *, flip: bool = False) -> None:
    """Scale `pixels` to the size of `out`.

    Args:
        pixels: uint8, rows x columns x 3; may be a part of a larger picture.
        out: uint8, rows x columns x 3.
        filter: How new pixels are made of old ones.
        flip: Mirror left and right.
    """
    if pixels.shape == out.shape and not flip:
        out[:] = pixels
        return
    scaled = out if not flip else np.empty_like(out)
    _scale(_tensor(_own(pixels)), _tensor(scaled), filter)
    if flip:
        _mirror(scaled, out)


def check_filter(filter: str) -> None:
    """Refuse a filter that does not exist.

    Raises:
        UsageError: It is not one of `Filter`.
    """
    if filter not in get_args(Filter):
        raise UsageError(
            f"the filter {filter!r} is asked for",
            expected=f"one of {', '.join(get_args(Filter))}",
            next_step="Take antialias, with which published results were trained",
        )


def _mirror(pixels: Pixels, out: Pixels) -> None:
    """Left for right. PyTorch is faster, unless it may share so little work between threads."""
    if torch.get_num_threads() == 1:
        _tensor(out).copy_(_tensor(pixels).flip(3))
        return
    for channel in range(3):
        out[:, ::-1, channel] = pixels[:, :, channel]


def _own(pixels: Pixels) -> Pixels:
    """Return contiguous, writable pixels, because PyTorch warns about others."""
    return pixels if pixels.flags.c_contiguous and pixels.flags.writeable else pixels.copy()


def _tensor(pixels: Pixels) -> torch.Tensor:
    """Return pixels as a batch with one picture, without a copy, in the channels-last memory format."""
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)


def _scale(source: torch.Tensor, target: torch.Tensor, filter: Filter) -> None:
    size = list(target.shape[2:])
    operators: Any = torch.ops.aten
    if filter == "antialias":
        operators._upsample_bilinear2d_aa.out(source, size, False, None, None, out=target)
    else:
        operators.upsample_bilinear2d.out(source, size, False, None, None, out=target)


_GREY = np.array([0.299, 0.587, 0.114])
_AFFINE = npt.NDArray[np.float64]
_CONTRAST, _SATURATION = 1, 2
"""Places of these two among the changes; brightness is the first."""


@dataclass(frozen=True)
class ColourJitter:
    """How much colours may change.

    Args:
        brightness: Factor is drawn from 1 - b to 1 + b (never below 0).
        contrast: Likewise, around the mean grey of the picture.
        saturation: Likewise, around the grey of each pixel.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation) < 0:
            raise UsageError(
                f"{self} is asked for",
                expected="strengths of 0 or more",
                next_step="Start with ColourJitter()",
            )

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> None:
        """Change the colours of a picture in place."""
        mean = pixels.reshape(len(pixels), -1).sum(0, dtype=np.int64).reshape(-1, 3).mean(0) / len(pixels)
        matrix, shift = self.draw(rng, mean)
        rows = np.column_stack([matrix, shift])
        pixels[:] = np.asarray(Image.fromarray(pixels).convert("RGB", tuple(rows.ravel().tolist())))

    def draw(self, rng: np.random.Generator, mean: _AFFINE) -> tuple[_AFFINE, _AFFINE]:
        """Draw a random linear map of colours: a 3 x 3 matrix and a shift.

        Args:
            rng: Source of randomness.
            mean: Mean red, green and blue of the picture.
        """
        matrix, shift = np.eye(3), np.zeros(3)
        strengths = (self.brightness, self.contrast, self.saturation)
        for step in rng.permutation(len(strengths)):
            factor = _factor(strengths[step], rng)
            mixed, moved = np.eye(3) * factor, np.zeros(3)
            if step == _CONTRAST:
                moved += (1 - factor) * float(_GREY @ (matrix @ mean + shift))
            elif step == _SATURATION:
                mixed += (1 - factor) * _GREY
            matrix, shift = mixed @ matrix, mixed @ shift + moved
        return matrix, shift


def _factor(strength: float, rng: np.random.Generator) -> float:
    return float(rng.uniform(max(0.0, 1 - strength), 1 + strength)) if strength else 1.0


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
        """Return the array of one picture. It depends only on the two arguments."""

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """Write the array of one picture into `out`, such as a place in a batch.

        Args:
            data: The encoded picture.
            rng: Source of randomness.
            out: Array of `shape` and `dtype`.

        Raises:
            ImageError: The bytes are not a complete picture.
        """


class _Made:
    """Calling a transform is `into` with a new array."""

    shape: tuple[int, ...]
    dtype = _UINT8

    def __call__(self, data: Buffer, rng: np.random.Generator) -> Array:
        """Return the array of one picture."""
        out = np.empty(self.shape, self.dtype)
        self.into(data, rng, out)
        return out

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """Write the array of one picture into `out`."""
        raise NotImplementedError


class _RandomSquare(_Made):
    """A random part, scaled to a square, mirrored and coloured at random."""

    flip: float
    jitter: ColourJitter | None
    filter: Filter = "antialias"

    def into(self, data: Buffer, rng: np.random.Generator, out: Array) -> None:
        """Write the square cut from one picture into `out`."""
        picture = open_picture(data)
        view = self.view(picture.width, picture.height, rng)
        pixels = picture.part(view.part, view.rows, view.columns)
        resize(pixels, out, self.filter, flip=view.mirrored)
        if self.jitter is not None:
            self.jitter.apply(out, rng)

    def view(self, width: int, height: int, rng: np.random.Generator) -> View:
        """Choose the part of a picture of this size that is shown, with the same random numbers as `into`."""
        part = self.box(width, height, rng)
        mirrored = self.flip > 0 and rng.random() < self.flip
        side = self.shape[0]
        return View(part, side, side, side, mirrored=mirrored)

    def box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        """Choose the part of a picture of this size."""
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
        """Choose the part of a picture of this size."""
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
        """Choose the part of a picture of this size."""
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
        """Write the central square of one picture into `out`. `rng` is not used."""
        picture = open_picture(data)
        view = self.view(picture.width, picture.height, rng)
        scaled = np.empty((view.rows, view.columns, 3), np.uint8)
        resize(picture.part(view.part, view.rows, view.columns), scaled)
        out[:] = scaled[view.top : view.top + self.crop, view.left : view.left + self.crop]

    def view(self, width: int, height: int, rng: np.random.Generator) -> View:
        """Return the part of a picture of this size that is shown. `rng` is not used."""
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
