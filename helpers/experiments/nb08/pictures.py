"""Large pictures, as a camera makes them, and what decoding them at a reduced size saves.

Pictures like those of ImageNet are 500 pixels wide and gain nothing. So some are enlarged four times.

The trap: a reduced picture is another picture. How far the views differ is told beside the seconds. Notebook
08 measures it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
from PIL import Image

from helpers.experiments.nb08.clock import one_thread
from smallfiles.images import CentreCrop, RandomResizedCrop, Transform
from smallfiles.images.decoding import Pixels
from smallfiles.measure.record import Spread
from smallfiles.samples import Reader

ENLARGED = 4
_QUALITY = 90


@dataclass(frozen=True)
class Reduced:
    """What decoding at a reduced size does to one kind of view.

    Args:
        full_s: Seconds for a picture that is decoded at full size, one a run.
        reduced_s: Seconds for one that may be decoded at a reduced size.
        difference: Mean distance of the pixels, of 255.
        pixels: Width and height of the pictures.
    """

    full_s: tuple[float, ...]
    reduced_s: tuple[float, ...]
    difference: float
    pixels: tuple[int, int]

    @property
    def sentence(self) -> str:
        """Both in one sentence."""
        full, reduced = median(self.full_s), median(self.reduced_s)
        overlap = Spread.of(self.full_s).overlaps(Spread.of(self.reduced_s))
        factor = "no clear difference" if overlap else f"{full / reduced:.1f} times as fast"
        return (
            f"{self.pixels[0]} x {self.pixels[1]} pixels: {1e3 * full:.1f} ms at full size, "
            f"{1e3 * reduced:.1f} ms if it may be reduced: **{factor}**; "
            f"pixels differ by {self.difference:.1f} of 255"
        )


def enlarged(reader: Reader, count: int) -> list[bytes]:
    """Some pictures of a packed file, four times as wide and high.

    Args:
        reader: Of pictures.
        count: How many.
    """
    return [_larger(bytes(reader.read(index))) for index in range(min(count, len(reader)))]


def _larger(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        found = picture.convert("RGB").resize((ENLARGED * picture.width, ENLARGED * picture.height))
    target = io.BytesIO()
    found.save(target, "JPEG", quality=_QUALITY)
    return target.getvalue()


def reduce(files: Sequence[bytes], *, validation: bool = False, rounds: int = 3) -> Reduced:
    """Time the views of some pictures, decoded at full and at a reduced size.

    Args:
        files: JPEGs.
        validation: The whole picture for validation, not a random part for training.
        rounds: How often.
    """
    kind = CentreCrop if validation else RandomResizedCrop
    full, reduced = kind(reducing_gap=None), kind()
    times: dict[bool, list[float]] = {False: [], True: []}
    with one_thread():
        _views(full, files[:1]), _views(reduced, files[:1])
        for _ in range(rounds):
            began = perf_counter()
            first = _views(full, files)
            times[False].append((perf_counter() - began) / len(files))
            began = perf_counter()
            second = _views(reduced, files)
            times[True].append((perf_counter() - began) / len(files))
    pairs = zip(first, second, strict=True)
    difference = float(np.mean([np.abs(a.astype(np.int16) - b).mean() for a, b in pairs]))
    with Image.open(io.BytesIO(files[0])) as picture:
        return Reduced(tuple(times[False]), tuple(times[True]), difference, picture.size)


def _views(transform: Transform, files: Sequence[bytes]) -> list[Pixels]:
    return [transform(data, np.random.default_rng(number)) for number, data in enumerate(files)]


def cost_of(
    transforms: dict[str, Transform], files: Sequence[bytes], rounds: int = 5
) -> dict[str, list[float]]:
    """Seconds a picture of several transforms, one of each a round.

    Args:
        transforms: By name.
        files: Encoded pictures.
        rounds: How often.
    """
    times: dict[str, list[float]] = {name: [] for name in transforms}
    with one_thread():
        for number in range(-1, rounds):
            for name, transform in transforms.items():
                began = perf_counter()
                _views(transform, files)
                if number >= 0:
                    times[name].append((perf_counter() - began) / len(files))
    return times
