"""What is in a picture, before a single pixel: the words behind captions, boxes and classes.

A scene is drawn from (seed, index) alone, so a caption or a bounding box never needs the picture.
The trap: a class must not be told by its mean colour, or any network looks clever. So a class is a
shape, a texture and a colour, and everything else (background, light, size, place, turn, a second
object of another class) is drawn anew for each picture. Notebook 02 shows the pictures.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

# 13, 11 and 7 are prime, so that class c -> (c % 13, c % 11, c % 7) never repeats below 1001.
SHAPES = (
    *("disc", "star", "square", "ring", "triangle", "cross", "heart"),
    *("crescent", "arrow", "frame", "hexagon", "flower", "ladder"),
)
TEXTURES = (
    *("striped", "plain", "dotted", "checked", "marbled", "ringed"),
    *("gridded", "halved", "zigzag", "quartered", "rayed"),
)
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (200, 44, 40),
    "blue": (44, 84, 190),
    "yellow": (232, 196, 52),
    "green": (60, 150, 66),
    "purple": (128, 62, 160),
    "orange": (232, 126, 34),
    "pink": (228, 128, 168),
}
SECOND_COLOURS: dict[str, tuple[int, int, int]] = {"white": (238, 236, 228), "black": (40, 38, 42)}
BACKDROPS: dict[str, tuple[int, int, int]] = {
    "brown": (134, 98, 66),
    "grey": (128, 130, 134),
    "green": (92, 124, 70),
    "blue": (88, 122, 158),
    "beige": (190, 172, 140),
    "reddish": (152, 90, 78),
    "dark": (74, 72, 80),
    "violet": (122, 104, 146),
}
MAX_CLASSES = 1000


@dataclass(frozen=True)
class Thing:
    """One object of a scene; lengths in pixels, `turn` in degrees, `x`, `y` its centre."""

    shape: str
    texture: str
    colour: str
    second_colour: str
    x: int
    y: int
    radius: int
    turn: int
    period: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Corners x1, y1, x2, y2 of the square around it."""
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius


@dataclass(frozen=True)
class Scene:
    """Everything that a picture shows.

    Args:
        width: In pixels.
        height: In pixels.
        backdrop: Name of the background's colour.
        sky: Height of the horizon in pixels from above, or 0 for a scene without one.
        light: Where light comes from: (-1 left or 1 right, -1 above or 1 below).
        exposure: Brightness added to everything, in grey levels.
        things: The objects; those of the scene's class first.
        target_bytes: The size that the JPEG file shall have, about.
    """

    width: int
    height: int
    backdrop: str
    sky: int
    light: tuple[int, int]
    exposure: int
    things: tuple[Thing, ...]
    target_bytes: int


def look_of(label: int) -> tuple[str, str, str]:
    """Shape, texture and colour of a class; all 1,000 differ."""
    colour = tuple(COLOURS)[label % len(COLOURS)]
    return SHAPES[label % len(SHAPES)], TEXTURES[label % len(TEXTURES)], colour


def label_of(index: int, seed: int, classes: int) -> int:
    """The class of picture `index`: each run of `classes` pictures holds every class once, shuffled."""
    return _deck(index // classes, seed, classes)[index % classes]


@lru_cache(maxsize=8)
def _deck(round_number: int, seed: int, classes: int) -> tuple[int, ...]:
    deck = list(range(classes))
    random.Random(f"deck {seed} {round_number}").shuffle(deck)
    return tuple(deck)


def compose(index: int, label: int, seed: int, size: tuple[int, int]) -> Scene:
    """Decide what picture `index` shows.

    Args:
        index: Number of the picture; with `seed` it decides everything but the class.
        label: The class that the main object shall have.
        seed: Seed of the whole data set.
        size: Typical width and height in pixels.
    """
    dice = random.Random(f"scene {seed} {index}")
    width, height = _dimensions(dice, size)
    sky = dice.randrange(height // 4, height * 6 // 10) if dice.random() < 0.45 else 0
    return Scene(
        width,
        height,
        backdrop=dice.choice(tuple(BACKDROPS)),
        sky=sky,
        light=(dice.choice((-1, 1)), -1 if dice.random() < 0.8 else 1),
        exposure=dice.randrange(-26, 27),
        things=_things(dice, label, width, height),
        target_bytes=_target_bytes(dice, width * height),
    )


def _dimensions(dice: random.Random, size: tuple[int, int]) -> tuple[int, int]:
    """Mostly the typical size, one in four upright, a few much larger or smaller, as on the web."""
    long, short = max(size), min(size)
    kind = dice.random()
    if kind >= 0.62:
        short = round(short * dice.uniform(0.82, 1.12))
    if kind >= 0.85:
        scale = math.exp(dice.gauss(0.0, 0.3))
        long, short = round(long * scale), round(short * scale)
    long, short = max(long, 24), max(min(short, long), 24)
    return (short, long) if dice.random() < 0.25 else (long, short)


def _target_bytes(dice: random.Random, pixels: int) -> int:
    """Log-normal with a median near 90 KB at 500 x 375 pixels; tails are cut."""
    spread = max(-3.2, min(3.2, dice.gauss(0.0, 1.0)))
    return round(pixels * 0.51 * math.exp(0.49 * spread))


def _things(dice: random.Random, label: int, width: int, height: int) -> tuple[Thing, ...]:
    side = min(width, height)
    main = _thing(dice, look_of(label), width, height, round(side * dice.uniform(0.22, 0.36)))
    things = [main]
    for chance, look in ((0.3, look_of(label)), (0.45, look_of(dice.randrange(MAX_CLASSES)))):
        other = _thing(dice, look, width, height, round(side * dice.uniform(0.09, 0.14)))
        if dice.random() < chance and all(_apart(other, thing) for thing in things):
            things.append(other)
    return tuple(things)


def _thing(dice: random.Random, look: tuple[str, str, str], width: int, height: int, radius: int) -> Thing:
    shape, texture, colour = look
    return Thing(
        *(shape, texture, colour, dice.choice(tuple(SECOND_COLOURS))),
        x=dice.randrange(radius, max(radius + 1, width - radius)),
        y=dice.randrange(radius, max(radius + 1, height - radius)),
        radius=radius,
        turn=dice.randrange(-22, 23),
        period=max(3, round(radius * dice.uniform(0.28, 0.4))),
    )


def _apart(one: Thing, other: Thing) -> bool:
    reach = one.radius + other.radius
    return abs(one.x - other.x) > reach or abs(one.y - other.y) > reach
