"""Draw scenes as JPEG files (coloured shapes in front of noise), and plan which of them a set has.

A scene depends on (seed, index) alone, so a caption or a box never needs the picture, and picture `index` is
the same in every layout, so that layouts can be compared. The amplitude spectrum of photographs falls as 1/f,
with equal energy in each octave; with it JPEG files have realistic sizes, also after scaling.

The traps: if the mean colour identified a class, any network would look good. So a class is a shape in two
colours, and everything else (background, size, position, rotation, a second object) is random. And in a
validation set sorted by class a wrong label order looks right; here each run of `classes` pictures is
shuffled. Notebook 02 shows the pictures.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageDraw

from smallfiles.errors import UsageError

Pixels = npt.NDArray[np.uint8]

# 13, 11 and 7 are prime, so that class c -> (c % 13, c % 11, c % 7) never repeats below 1001.
SHAPES = {  # number of corners, and relative radius of every second one
    "disc": (48, 1.0),
    "star": (10, 0.42),
    "square": (4, 1.0),
    "cross": (8, 0.3),
    "triangle": (3, 1.0),
    "flower": (12, 0.6),
    "pentagon": (5, 1.0),
    "blade": (4, 0.35),
    "hexagon": (6, 1.0),
    "trefoil": (6, 0.35),
    "gear": (24, 0.75),
    "sun": (16, 0.5),
    "octagon": (8, 1.0),
}
COLOURS = {
    "red": (200, 44, 40),
    "blue": (44, 84, 190),
    "yellow": (232, 196, 52),
    "green": (60, 150, 66),
    "purple": (128, 62, 160),
    "orange": (232, 126, 34),
    "white": (238, 236, 228),
    "pink": (228, 128, 168),
    "black": (40, 38, 42),
    "cyan": (60, 190, 200),
    "maroon": (104, 30, 52),
}
_CORES = 7
BACKDROPS = {
    "brown": (134, 98, 66),
    "grey": (128, 130, 134),
    "olive": (92, 124, 70),
    "slate": (88, 122, 158),
    "beige": (190, 172, 140),
    "dark": (74, 72, 80),
}
MAX_CLASSES = 1000

_CONTRAST = 0.13  # with the quality of `Scene.quality` about half a byte a pixel


@dataclass(frozen=True)
class Look:
    """The appearance of the objects of one class."""

    shape: str
    colour: str
    core: str

    def __str__(self) -> str:
        return f"{self.colour} {self.shape} with a {self.core} core"


@dataclass(frozen=True)
class Thing:
    """One object of a scene.

    Lengths are in pixels. `turn` is its rotation in degrees, and `x`, `y` is its centre.
    """

    look: Look
    x: int
    y: int
    radius: int
    turn: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Corners x1, y1, x2, y2 of the square around the object, in pixels."""
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius


@dataclass(frozen=True)
class Scene:
    """The contents of a picture.

    Args:
        width: Width of the picture in pixels.
        height: Height of the picture in pixels.
        backdrop: Colour of the background.
        things: The objects. The main object, which has the scene's class, comes first.
        detail: A normally distributed number that determines the strength of the noise and the JPEG quality.
    """

    width: int
    height: int
    backdrop: str
    things: tuple[Thing, ...]
    detail: float

    @property
    def quality(self) -> int:
        """The quality of the JPEG file."""
        return round(103 - 10 * math.exp(-0.45 * self.detail))


def look_of(label: int) -> Look:
    """Return the look of a class. All 1,000 classes look different."""
    colours = tuple(COLOURS)
    colour = label % len(colours)
    core = colours[(colour + 1 + label % _CORES) % len(colours)]
    return Look(tuple(SHAPES)[label % len(SHAPES)], colours[colour], core)


def compose(index: int, label: int, seed: int, size: tuple[int, int]) -> Scene:
    """Compose the scene of picture `index`.

    Args:
        index: Number of the picture. Together with `seed`, it determines everything except the class.
        label: Class of the main object.
        seed: Seed of the whole data set.
        size: Typical width and height in pixels.
    """
    dice = random.Random(f"scene {seed} {index}")
    width, height = _dimensions(dice, size)
    detail = max(-2.5, min(2.5, dice.gauss(0.0, 1.0)))
    backdrop = dice.choice(tuple(BACKDROPS))
    return Scene(width, height, backdrop, _things(dice, label, width, height), detail)


def _dimensions(dice: random.Random, size: tuple[int, int]) -> tuple[int, int]:
    """Return a random width and height in pixels.

    Most pictures have the typical size, one in four is in portrait format, and a few are much larger or
    smaller.
    """
    long, short = max(size), min(size)
    kind = dice.random()
    if kind >= 0.62:
        short = round(short * dice.uniform(0.82, 1.12))
    if kind >= 0.85:
        scale = math.exp(dice.gauss(0.0, 0.3))
        long, short = round(long * scale), round(short * scale)
    long, short = max(long, 24), max(min(short, long), 24)
    return (short, long) if dice.random() < 0.25 else (long, short)


def _things(dice: random.Random, label: int, width: int, height: int) -> tuple[Thing, ...]:
    things = [_thing(dice, look_of(label), width, height, dice.uniform(0.22, 0.36))]
    for chance, other in ((0.3, label), (0.45, dice.randrange(MAX_CLASSES))):
        thing = _thing(dice, look_of(other), width, height, dice.uniform(0.09, 0.14))
        if dice.random() < chance and all(_apart(thing, one) for one in things):
            things.append(thing)
    return tuple(things)


def _thing(dice: random.Random, look: Look, width: int, height: int, share: float) -> Thing:
    radius = round(min(width, height) * share)
    x, y = (dice.randrange(radius, max(radius + 1, side - radius)) for side in (width, height))
    return Thing(look, x, y, radius, turn=dice.randrange(-22, 23))


def _apart(one: Thing, other: Thing) -> bool:
    reach = one.radius + other.radius
    return abs(one.x - other.x) > reach or abs(one.y - other.y) > reach


def draw(scene: Scene, seed: int, index: int) -> Pixels:
    """Draw a scene.

    Args:
        scene: A scene that `compose` made with the same seed and index.
        seed: Seed of the data set.
        index: Number of the picture.

    Returns:
        RGB pixels, shape (height, width, 3).
    """
    dice = np.random.default_rng([seed, index])
    canvas = Image.fromarray(_patches(scene, dice)).resize((scene.width, scene.height))
    pen = ImageDraw.Draw(canvas)
    for thing in reversed(scene.things):
        pen.polygon(corners(thing, 1.0), COLOURS[thing.look.colour])
        pen.polygon(corners(thing, 0.5), COLOURS[thing.look.core])
    grain = natural(dice, scene.height, scene.width) * np.float32(_CONTRAST * math.exp(0.4 * scene.detail))
    return _as_pixels(np.asarray(canvas) + grain[..., None])


def _patches(scene: Scene, dice: np.random.Generator) -> Pixels:
    """Return patches in many shades of the backdrop's colour, at a sixteenth of the picture's size."""
    shape = scene.height // 16 + 1, scene.width // 16 + 1, 3
    shades = dice.integers(-28, 29, shape) + dice.integers(-28, 29, 3) + BACKDROPS[scene.backdrop]
    return _as_pixels(shades)


def _as_pixels(values: npt.NDArray[Any]) -> Pixels:
    return np.clip(values, 0, 255).astype(np.uint8)  # type: ignore[no-any-return]


def corners(thing: Thing, part: float) -> list[tuple[int, int]]:
    """Return the corners of the outline of an object, or of its core.

    `part` is the size of the core as a fraction of the object's size. It is 1 for the object itself.
    """
    count, dent = SHAPES[thing.look.shape]
    corners = []
    for k in range(count):
        angle = math.radians(thing.turn - 90 + 360 * k / count)
        radius = thing.radius * part * (dent if k % 2 else 1.0)
        corners.append((round(thing.x + radius * math.cos(angle)), round(thing.y + radius * math.sin(angle))))
    return corners


def natural(dice: np.random.Generator, height: int, width: int) -> npt.NDArray[np.float32]:
    """Return noise around 0 whose octaves all have the same strength, as in photographs."""
    fine = dice.integers(-128, 128, (height, width), np.int8).astype(np.float32)
    if min(height, width) < 6:
        return fine
    coarse = Image.fromarray(natural(dice, (height + 1) // 2, (width + 1) // 2))
    fine += np.asarray(coarse.resize((width, height), Image.Resampling.BILINEAR))
    return fine


def encode(pixels: Pixels, quality: int) -> bytes:
    """Encode RGB pixels as a JPEG file."""
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, colorsubsampling="420")
    return data


@dataclass(frozen=True)
class SyntheticPlan:
    """Everything that determines the bytes of a synthetic data set, except its layout.

    Args:
        seed: Another seed gives other pictures.
        train: Number of training pictures. Their indices are 0 to `train` - 1.
        val: Number of validation pictures. Their indices follow those of the training pictures.
        test: Number of test pictures. They have the last indices.
        classes: Number of classes.
        size: Typical width and height in pixels.
    """

    seed: int
    train: int
    val: int
    test: int
    classes: int
    size: tuple[int, int]

    @property
    def count(self) -> int:
        """Number of pictures in all splits."""
        return self.train + self.val + self.test

    def indices(self, split: str) -> range:
        """Return the indices of the pictures of a split: `train`, `val` or `test`."""
        first = {"train": 0, "val": self.train, "test": self.train + self.val}[split]
        return range(first, first + {"train": self.train, "val": self.val, "test": self.test}[split])

    def label(self, index: int) -> int:
        """Return the class of a picture.

        Each run of `classes` pictures contains every class once, in shuffled order.
        """
        return _deck(index // self.classes, self.seed, self.classes)[index % self.classes]

    def scene(self, index: int) -> Scene:
        """Return the scene that a picture shows."""
        return compose(index, self.label(index), self.seed, self.size)

    def file_bytes(self, index: int) -> bytes:
        """Return the JPEG file of one picture. It depends only on the plan and `index`."""
        scene = self.scene(index)
        return encode(draw(scene, self.seed, index), scene.quality)

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
            UsageError: A number makes no sense. The message names it.
        """
        splits = f"{self.count} pictures with {self.val} for validation"
        rules = (
            (self.train >= 1 and self.val >= 0, splits, "at least one training picture"),
            (self.seed >= 0, f"pictures from the seed {self.seed}", "a seed of 0 or more"),
            (1 <= self.classes <= MAX_CLASSES, f"{self.classes} classes", f"1 to {MAX_CLASSES:,} classes"),
            (
                self.classes <= self.train,
                f"{self.classes} classes with {self.train} training pictures",
                "a picture for each",
            ),
            (min(self.size) >= 32 and max(self.size) <= 4096, f"sides of {self.size}", "32 to 4,096 pixels"),
        )
        for is_right, got, expected in rules:
            if not is_right:
                raise UsageError(
                    f"{got} were requested",
                    expected=expected,
                    next_step="Correct it; more pictures leave room for more classes",
                )


@lru_cache(maxsize=8)
def _deck(round_number: int, seed: int, classes: int) -> tuple[int, ...]:
    deck = list(range(classes))
    random.Random(f"deck {seed} {round_number}").shuffle(deck)
    return tuple(deck)
