"""Random changes of brightness, contrast and saturation, as one matrix for all of them.

Each is an affine map of (red, green, blue); so they are multiplied first, and the picture is touched
once. The order is drawn at random, as torchvision's ColorJitter does. One difference to it: values are
cut to 0 to 255 once at the end and not between the steps.

The trap: jitter of whole pictures before cropping costs four times as much, for pixels that are thrown
away. Notebook 08 teaches it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from smallfiles.errors import UsageError
from smallfiles.images.decoding import Pixels

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
        """A random map of colours: 3 x 3 matrix and shift.

        Args:
            rng: What to draw from.
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
