"""Ways to turn a JPEG into a training picture: ours, by each decoder; others are brought by a module.

Each is a function from bytes to 224 x 224 x 3 uint8, a random resized crop, mirrored half of the time; or
to the whole picture where only decoding is measured. The filter is in the name: a picture scaled with
another filter is another picture, and rates are compared within one filter (`area` is antialiased too).

A module of others holds `METHODS`, which run in our processes, and `PEERS`, which bring their own threads.

The trap: a loader that works ahead does so between two runs as well, and seems twice as fast as it is.
Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np

from smallfiles.images import DECODERS, RandomResizedCrop, resize
from smallfiles.images.crops import random_resized
from smallfiles.images.decoding import Pixels
from smallfiles.images.resizing import Filter

Kind: TypeAlias = Literal["decode", "augment"]
One: TypeAlias = Callable[[bytes, np.random.Generator], Any]
Epoch: TypeAlias = Callable[[], int]
"""Runs through all pictures once; returns how many."""
Scale: TypeAlias = Callable[[Any, bool], Any]
"""Scales a part of a picture to the square, mirrored or not."""

SIZE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Method:
    """A way to measure.

    Args:
        name: In records; says the filter.
        kind: What it does.
        make: Gives the function; called once in each process that works.
        modules: What it imports, to know whether it can run here.
    """

    name: str
    kind: Kind
    make: Callable[[], One]
    modules: tuple[str, ...] = ()

    def installed(self) -> bool:
        """Whether it can run here."""
        return all(find_spec(module) is not None for module in self.modules)


@dataclass(frozen=True)
class Peer:
    """A loader of others that decodes in threads of its own.

    Args:
        name: In records; says the filter.
        modules: What it imports.
        start: Gives its epoch for as long as the block lasts.
    """

    name: str
    modules: tuple[str, ...]
    start: Callable[[Sequence[bytes], int], contextlib.AbstractContextManager[Epoch]]

    def installed(self) -> bool:
        """Whether it can run here."""
        try:
            return all(find_spec(module) is not None for module in self.modules)
        except ModuleNotFoundError:  # the parent of a dotted name is missing
            return False


def candidates(others: str) -> tuple[dict[str, Method], dict[str, Peer]]:
    """Methods and peers by name; those of others come first.

    Args:
        others: Name of the module with the tables of others; "" has ours only.
    """
    more = importlib.import_module(others) if others else None
    return (METHODS, {}) if more is None else ({**more.METHODS, **METHODS}, more.PEERS)


def composed(decode: Callable[[Any], Pixels], scale: Callable[[], Scale]) -> One:
    """Decode all, cut out, scale: what one writes from a decoder and a function that scales."""
    scaled = scale()

    def one(data: bytes, rng: np.random.Generator) -> Any:
        pixels = decode(data)
        box = random_resized(pixels.shape[1], pixels.shape[0], rng, SCALE, RATIO)
        part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        return scaled(part, rng.random() < 0.5)

    return one


def _by_us(filter: Filter) -> Callable[[], Scale]:
    def scaled(part: Any, flip: bool) -> Any:
        out = np.empty((SIZE, SIZE, 3), np.uint8)
        resize(part, out, filter, flip=flip)
        return out

    return lambda: scaled


def plain(decoder: str, scale: Callable[[], Scale]) -> Callable[[], One]:
    """A method of a decoder and something that scales."""
    return lambda: composed(DECODERS[decoder].decode, scale)


def _only(decoder: str) -> Method:
    found = DECODERS[decoder]
    modules = {"opencv": ("cv2",), "torchvision": ("torchvision",)}.get(decoder, ())
    return Method(decoder, "decode", lambda: lambda data, rng: found.decode(data), modules)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("ours without TurboJPEG 3, antialias", "augment", plain("simplejpeg", _by_us("antialias"))),
        Method("ours, antialias", "augment", lambda: RandomResizedCrop(SIZE, filter="antialias")),
        Method("ours, linear", "augment", lambda: RandomResizedCrop(SIZE, filter="linear")),
        *(_only(name) for name in ("pillow", "torchvision", "opencv", "simplejpeg", "turbojpeg")),
    )
}
"""By the name that the records carry."""
