"""Which part of a picture to take, drawn from one generator; nothing is decoded here.

Knowing the part before decoding is what makes decoding cheap. The rules are those of torchvision, so
that published recipes mean here what they meant there. The trap: a crop "of 8 to 100 % of the area" is
drawn up to ten times and then given up for a centred one, which tiny and very long pictures meet
often; without that fallback their distribution is another one. Notebook 08 teaches it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

_TRIES = 10


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


class View(NamedTuple):
    """What of a picture is seen: a part of it, scaled, a square cut out of that, perhaps mirrored.

    A mask and the boxes of the same picture get the same view. `part` is in pixels of the picture; `rows` and
    `columns` are its size after scaling, where the square of `size` begins at `top` and `left`.
    """

    part: Box
    rows: int
    columns: int
    size: int
    top: int = 0
    left: int = 0
    mirrored: bool = False


def random_resized(
    width: int, height: int, rng: np.random.Generator, scale: tuple[float, float], ratio: tuple[float, float]
) -> Box:
    """A box of random area and shape at a random place, as torchvision's RandomResizedCrop draws it.

    Args:
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
        rng: What to draw from.
        scale: Smallest and largest share of the area.
        ratio: Smallest and largest width divided by height, equally likely on a logarithmic scale.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * rng.random())
        shape = math.exp(low + (high - low) * rng.random())
        box_width, box_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(rng.random() * (height - box_height + 1))
            left = int(rng.random() * (width - box_width + 1))
            return Box(top, left, box_height, box_width)
    return _centred_within(width, height, ratio)


def _centred_within(width: int, height: int, ratio: tuple[float, float]) -> Box:
    """The largest centred box whose shape is allowed."""
    shape = width / height
    if shape < ratio[0]:
        box_width, box_height = width, max(1, round(width / ratio[0]))
    elif shape > ratio[1]:
        box_width, box_height = max(1, round(height * ratio[1])), height
    else:
        box_width, box_height = width, height
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def short_side(width: int, height: int, short: int) -> tuple[int, int]:
    """Width and height once the shorter side is scaled to `short`; the longer is cut to whole pixels."""
    if width <= height:
        return short, max(1, int(short * height / width))
    return max(1, int(short * width / height)), short


def centred(width: int, height: int, size: int) -> tuple[int, int]:
    """Left and top of a centred square, rounded as torchvision rounds; negative where it sticks out."""
    return round((width - size) / 2.0), round((height - size) / 2.0)


def random_square(width: int, height: int, rng: np.random.Generator, share: float) -> Box:
    """A square at a random place whose side is a share of the shorter side."""
    side = max(1, round(min(width, height) * share))
    top = int(rng.random() * (height - side + 1))
    left = int(rng.random() * (width - side + 1))
    return Box(top, left, side, side)
