"""What an object is made of: how much of its second colour shows at each pixel.

Stripes and checks are triangle waves in fixed point, cut off after two pixels, so that edges are
soft without drawing them larger first. The trap: a texture finer than about six pixels is gone after
the usual resize to 224, so the period follows the object's size. Notebook 02 shows the textures.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from smallfiles.sources.synthetic import noise
from smallfiles.sources.synthetic.scenes import Thing

Field = npt.NDArray[np.int32]
_ONE = 64  # fixed point: a pixel is 64 steps


def tone(thing: Thing) -> npt.NDArray[np.int32]:
    """Share of the second colour, 0 to 256, in the square of side 2 * radius around an object."""
    u, v = _turned_grid(thing)
    period = thing.period * _ONE
    match thing.texture:
        case "plain":
            return np.zeros_like(u)
        case "striped":
            return _soft(_wave(u, period))
        case "checked":
            return _differ(_soft(_wave(u, period)), _soft(_wave(v, period)))
        case "dotted":
            return _soft(period // 3 - _from_centre(_cell(u, period), _cell(v, period)))
        case "ringed":
            return _soft(_wave(_from_centre(u, v), period))
        case "gridded":
            edge = period // 2 - np.maximum(np.abs(_cell(u, period)), np.abs(_cell(v, period)))
            return _soft(period // 8 - edge)
        case "zigzag":
            return _soft(_wave(u + np.abs(_cell(v, 2 * period)), period))
        case "halved":
            return _soft(u)
        case "quartered":
            return _differ(_soft(u), _soft(v))
        case "rayed":
            return _differ(_differ(_soft(u), _soft(v)), _differ(_soft(u - v), _soft(u + v)))
        case _:  # marbled
            return _marble(thing)


def _turned_grid(thing: Thing) -> tuple[Field, Field]:
    """Coordinates from the object's centre, in fixed point, turned a little more than its outline."""
    angle = math.radians(thing.turn * 2 + 20)
    cosine, sine = round(_ONE * math.cos(angle)), round(_ONE * math.sin(angle))
    line = np.arange(-thing.radius, thing.radius, dtype=np.int32)
    return (line * cosine) + (line * sine)[:, None], (line * -sine) + (line * cosine)[:, None]


def _wave(u: Field, period: int) -> Field:
    """A triangle wave, positive over half of each period."""
    return np.abs(u % (2 * period) - period) - period // 2


def _cell(u: Field, period: int) -> Field:
    """Position within a cell of the grid, from its centre."""
    return u % period - period // 2


def _from_centre(u: Field, v: Field) -> Field:
    wide = u.astype(np.float32) ** 2 + v.astype(np.float32) ** 2
    distance: Field = np.sqrt(wide).astype(np.int32)  # the square root is exact by the IEEE standard
    return distance


def _soft(u: Field) -> Field:
    """0 where negative, 256 where positive, a ramp of two pixels between."""
    return np.clip(u * 2 + 128, 0, 256)


def _differ(one: Field, other: Field) -> Field:
    """Where exactly one of two tones shows."""
    return one + other - (one * other >> 7)


def _marble(thing: Thing) -> Field:
    grain = noise.Grain(thing.x * 4096 + thing.y, thing.radius)
    side = thing.radius // 2 + 4
    veins = noise.doubled(noise.doubled(noise.natural(grain, side, side)))
    veins = veins[: 2 * thing.radius, : 2 * thing.radius].astype(np.int32)
    tones: Field = np.clip(320 - np.abs(veins) * 8, 0, 256)
    return tones
