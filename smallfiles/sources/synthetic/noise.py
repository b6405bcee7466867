"""Noise with the spectrum of natural pictures, from integers alone.

The amplitude spectrum of photographs falls as 1/f: each octave holds the same energy. So octaves of
equal strength are added while a small grid is doubled again and again. Integers, because floating
point transforms differ between builds. The trap: doubling by (1, 1)/2 leaves a visible lattice;
(1, 3)/4 treats every pixel alike. Notebook 02 shows the pictures.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Plane = npt.NDArray[np.int16]


class Grain:
    """A stream of random planes, decided by (seed, index).

    Args:
        seed: Seed of the data set.
        index: Number of the picture.
    """

    def __init__(self, seed: int, index: int) -> None:
        self._bits = np.random.Generator(np.random.PCG64([seed, index]))

    def plane(self, height: int, width: int) -> npt.NDArray[np.int8]:
        """White noise, uniform over -128..127."""
        return np.frombuffer(self._bits.bytes(height * width), np.int8).reshape(height, width)


def doubled(plane: Plane) -> Plane:
    """Twice the size less the rim: (…, h, w) becomes (…, 2h - 4, 2w - 4), smoothly."""
    middle = plane[..., 1:-1] * np.int16(3) + np.int16(2)  # 2 rounds
    wide = np.empty((*middle.shape, 2), np.int16)
    np.add(middle, plane[..., :-2], out=wide[..., 0])
    np.add(middle, plane[..., 2:], out=wide[..., 1])
    wide >>= 2
    return _doubled_down(wide.reshape(*middle.shape[:-1], -1))


def _doubled_down(plane: Plane) -> Plane:
    middle = plane[..., 1:-1, :] * np.int16(3) + np.int16(2)
    out = np.empty((*middle.shape[:-2], 2 * middle.shape[-2], middle.shape[-1]), np.int16)
    np.add(middle, plane[..., :-2, :], out=out[..., 0::2, :])
    np.add(middle, plane[..., 2:, :], out=out[..., 1::2, :])
    out >>= 2
    return out


def half_size(length: int) -> int:
    """The length that `doubled` turns into at least `length`."""
    return (length + 1) // 2 + 2


def natural(grain: Grain, height: int, width: int, coarsest: int = 6) -> Plane:
    """A plane of 1/f noise.

    Args:
        grain: Where randomness comes from.
        height: In pixels.
        width: In pixels.
        coarsest: Octaves are added down to a grid with fewer rows or columns than this.

    Returns:
        Noise around 0 with a standard deviation near 100.
    """
    plane = grain.plane(height, width).astype(np.int16)
    if min(height, width) > coarsest:
        coarse = doubled(natural(grain, half_size(height), half_size(width), coarsest))
        plane >>= 1  # white noise keeps all its strength at this octave, the doubled ones lose half
        plane += coarse[:height, :width]
    return plane
