"""From a scene to pixels: 1/f background, light from one side, textured objects with shadows.

Everything is integer arithmetic on small planes that are doubled late, so that a picture of
500 x 375 costs a few milliseconds. The trap: an object with the background's own noise looks like
glass; so it gets that noise upside down. Notebook 02 shows the pictures.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from smallfiles.sources.synthetic import noise, textures
from smallfiles.sources.synthetic.scenes import BACKDROPS, COLOURS, SECOND_COLOURS, Scene, Thing
from smallfiles.sources.synthetic.shapes import mask_of

Picture = npt.NDArray[np.uint8]
_SHRINK = 8  # the background's colours are mixed at an eighth of the size


def draw(scene: Scene, seed: int, index: int) -> Picture:
    """Draw a scene.

    Args:
        scene: What to draw, from `compose` with the same seed and index.
        seed: Seed of the data set.
        index: Number of the picture.

    Returns:
        RGB pixels, shape (height, width, 3).
    """
    grain = noise.Grain(seed, index)
    dice = random.Random(f"paint {seed} {index}")
    fine = noise.natural(grain, scene.height, scene.width)
    canvas = _background(scene, grain, dice)
    canvas += fine * np.int16(dice.randrange(16, 31)) >> 6
    for thing in reversed(scene.things):
        _cast_shadow(canvas, thing, scene.light)
        _place(canvas, thing, scene.light, fine[::-1, ::-1])
    np.clip(canvas, 0, 255, out=canvas)
    return np.ascontiguousarray(canvas.transpose(1, 2, 0).astype(np.uint8))


def _background(scene: Scene, grain: noise.Grain, dice: random.Random) -> noise.Plane:
    sizes = [(scene.height, scene.width)]
    for _ in range(3):
        sizes.append((noise.half_size(sizes[-1][0]), noise.half_size(sizes[-1][1])))
    colour = _colour_field(scene, grain, dice, *sizes.pop())
    while sizes:
        height, width = sizes.pop()
        colour = noise.doubled(colour)[:, :height, :width]
        if len(sizes) == 1:  # a little colour grain at half the size, as from a sensor
            for channel in (0, 2):
                colour[channel] += grain.plane(height, width) >> 4
    return colour


def _colour_field(
    scene: Scene, grain: noise.Grain, dice: random.Random, height: int, width: int
) -> noise.Plane:
    """Two shades of the backdrop mixed by noise, a sky if there is one, and the light's gradient."""
    base = np.array(BACKDROPS[scene.backdrop], np.int32)
    tint = np.array([dice.randrange(-24, 25) for _ in range(3)], np.int32)
    other = base * dice.randrange(66, 150) // 100 + tint
    mix = np.clip(noise.natural(grain, height, width).astype(np.int32) + 128, 0, 256)[..., None]
    field = base + ((other - base) * mix >> 8)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.int32)
    if scene.sky:
        field = np.where(
            _is_sky(scene, grain, rows)[..., None], _sky(grain, dice, rows, scene.sky // _SHRINK), field
        )
    across = (columns * 2 - width) * scene.light[0] * dice.randrange(10, 44) // width
    along = (rows * 2 - height) * scene.light[1] * dice.randrange(10, 36) // height
    lit = field + (across + along + scene.exposure)[..., None]
    planes: noise.Plane = lit.astype(np.int16).transpose(2, 0, 1)
    return planes


def _is_sky(scene: Scene, grain: noise.Grain, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    hills = noise.natural(grain, 8, rows.shape[1])[4].astype(np.int32)
    above: npt.NDArray[np.bool_] = rows * _SHRINK < scene.sky + (hills * scene.sky >> 9)
    return above


def _sky(
    grain: noise.Grain, dice: random.Random, rows: npt.NDArray[np.int32], horizon: int
) -> npt.NDArray[np.int32]:
    zenith = np.array(dice.choice(((82, 128, 192), (120, 140, 168), (150, 118, 128))), np.int32)
    haze = np.array((214, 216, 214), np.int32)
    part = np.minimum(rows * 256 // max(1, horizon), 256)[..., None]
    clouds = np.clip(noise.natural(grain, *rows.shape).astype(np.int32) - dice.randrange(0, 120), 0, 140)
    clear = zenith + ((haze - zenith) * part >> 8)
    sky: npt.NDArray[np.int32] = clear + ((244 - clear) * clouds[..., None] >> 8)
    return sky


def _cast_shadow(canvas: noise.Plane, thing: Thing, light: tuple[int, int]) -> None:
    blur = max(1, thing.radius // 7)
    mask = Image.fromarray(mask_of(thing))
    soft = Image.new("L", (mask.width + 4 * blur, mask.height + 4 * blur))
    soft.paste(mask, (2 * blur, 2 * blur))
    shadow = np.asarray(soft.filter(ImageFilter.BoxBlur(blur)))
    shift = max(1, thing.radius // 8)
    left = thing.x - thing.radius - 2 * blur - light[0] * shift
    top = thing.y - thing.radius - 2 * blur - light[1] * shift
    window, inside = _windows(canvas.shape, left, top, shadow.shape)
    ground = canvas[window].astype(np.int32)
    canvas[window] = ground * (512 - shadow[inside].astype(np.int32)) >> 9


def _place(canvas: noise.Plane, thing: Thing, light: tuple[int, int], fine: noise.Plane) -> None:
    mask = mask_of(thing)
    window, inside = _windows(canvas.shape, thing.x - thing.radius, thing.y - thing.radius, mask.shape)
    first = np.array(COLOURS[thing.colour], np.int32)[:, None, None]
    second = np.array(SECOND_COLOURS[thing.second_colour], np.int32)[:, None, None]
    tone = textures.tone(thing)[inside]
    relief = _relief(mask, light, max(2, thing.radius // 9))[inside].astype(np.int32)
    shade = 256 + relief + (fine[window[1:]].astype(np.int32) * 3 >> 4)
    surface = (first + ((second - first) * tone >> 8)) * shade >> 8
    alpha = mask[inside].astype(np.int32)
    ground = canvas[window].astype(np.int32)
    canvas[window] = ground + ((surface - ground) * alpha >> 8)


def _relief(mask: Picture, light: tuple[int, int], depth: int) -> noise.Plane:
    """Brighter where the rim faces the light, darker where it turns away."""
    soft = np.asarray(Image.fromarray(mask).filter(ImageFilter.BoxBlur(depth))).astype(np.int16)
    further, nearer = (np.roll(soft, (light[1] * way, light[0] * way), (0, 1)) for way in (depth, -depth))
    relief: noise.Plane = (further - nearer) >> 1
    return relief


def _windows(
    canvas: tuple[int, ...], left: int, top: int, patch: tuple[int, ...]
) -> tuple[tuple[slice, slice, slice], tuple[slice, slice]]:
    """Where a patch meets the canvas (three planes), and which part of the patch that is."""
    _, height, width = canvas
    y1, x1 = max(0, top), max(0, left)
    y2, x2 = max(y1, min(height, top + patch[0])), max(x1, min(width, left + patch[1]))
    return (slice(None), slice(y1, y2), slice(x1, x2)), (
        slice(y1 - top, y2 - top),
        slice(x1 - left, x2 - left),
    )
