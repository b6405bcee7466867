"""Outlines of the objects: polygons on the unit circle, filled at twice the size, then halved.

The trap: vector sines of numpy differ in the last bit between processors, and with them a pixel and
a digest. Corners come from the C library's scalar sine and are rounded. Notebook 02 shows the shapes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from smallfiles.sources.synthetic.scenes import Thing

Point = tuple[float, float]
_OVERSAMPLE = 2


@lru_cache(maxsize=8)
def mask_of(thing: Thing) -> npt.NDArray[np.uint8]:
    """Coverage of an object, 0 to 255, in the square of side 2 * radius around it."""
    side = 2 * thing.radius * _OVERSAMPLE
    sheet = Image.new("L", (side, side))
    pen = ImageDraw.Draw(sheet)
    for outline, ink in _outlines(thing.shape):
        pen.polygon([_on_sheet(point, side / 2, thing.turn) for point in outline], fill=ink)
    mask = np.asarray(sheet.reduce(_OVERSAMPLE))
    mask.setflags(write=False)
    return mask


def _on_sheet(point: Point, half: float, turn: int) -> tuple[int, int]:
    angle = math.radians(turn)
    x = point[0] * math.cos(angle) - point[1] * math.sin(angle)
    y = point[0] * math.sin(angle) + point[1] * math.cos(angle)
    return round(half + half * 0.97 * x), round(half + half * 0.97 * y)


def _outlines(shape: str) -> list[tuple[list[Point], int]]:
    """Polygons of a shape with the ink that fills each: 255 draws, 0 cuts out."""
    if shape in _REGULAR:
        return [(_regular(*_REGULAR[shape]), 255)]
    if shape in _POLYGONS:
        return [(_POLYGONS[shape], 255)]
    return _compound(shape)


def _regular(corners: int, first_degrees: float, dent: float = 1.0) -> list[Point]:
    """A regular polygon; every second corner is pulled in to `dent` of the radius."""
    points = []
    for k in range(corners):
        angle = math.radians(first_degrees + 360.0 * k / corners)
        radius = dent if k % 2 else 1.0
        points.append((radius * math.cos(angle), radius * math.sin(angle)))
    return points


def _compound(shape: str) -> list[tuple[list[Point], int]]:
    disc = _regular(72, 0.0)
    if shape == "ring":
        return [(disc, 255), (_scaled(disc, 0.52), 0)]
    if shape == "crescent":
        return [(disc, 255), (_scaled(disc, 0.86, 0.45, -0.2), 0)]
    if shape == "frame":
        square = _regular(4, 45.0)
        return [(square, 255), (_scaled(square, 0.5), 0)]
    if shape == "flower":
        petals = [_scaled(disc, 0.42, 0.56 * x, 0.56 * y) for x, y in _regular(5, -90.0)]
        return [(petal, 255) for petal in petals] + [(_scaled(disc, 0.3), 255)]
    rungs = [_rectangle(-0.6, y - 0.1, 0.6, y + 0.1) for y in (-0.55, 0.0, 0.55)]  # a ladder
    rails = [_rectangle(x - 0.11, -0.8, x + 0.11, 0.8) for x in (-0.5, 0.5)]
    return [(bar, 255) for bar in rungs + rails]


def _scaled(points: list[Point], factor: float, x: float = 0.0, y: float = 0.0) -> list[Point]:
    return [(factor * px + x, factor * py + y) for px, py in points]


def _rectangle(x1: float, y1: float, x2: float, y2: float) -> list[Point]:
    return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]


def _heart() -> list[Point]:
    points = []
    for k in range(72):
        t = math.tau * k / 72
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((math.sin(t) ** 3, -y / 17 + 0.08))
    return points


_REGULAR: dict[str, tuple[int, float] | tuple[int, float, float]] = {
    "disc": (72, 0.0),
    "square": (4, 45.0),
    "triangle": (3, -90.0),
    "hexagon": (6, 0.0),
    "star": (10, -90.0, 0.42),
}
_POLYGONS: dict[str, list[Point]] = {
    "cross": [
        *[(-0.3, -0.95), (0.3, -0.95), (0.3, -0.3), (0.95, -0.3), (0.95, 0.3), (0.3, 0.3)],
        *[(0.3, 0.95), (-0.3, 0.95), (-0.3, 0.3), (-0.95, 0.3), (-0.95, -0.3), (-0.3, -0.3)],
    ],
    "arrow": [
        (-0.98, -0.26),
        (0.1, -0.26),
        (0.1, -0.72),
        (0.98, 0.0),
        (0.1, 0.72),
        (0.1, 0.26),
        (-0.98, 0.26),
    ],
    "heart": _heart(),
}
