"""Encoded bytes to augmented pixels, at the speed of libjpeg-turbo.

    decoding      bytes to RGB; what is no picture is an `ImageError`
    crops         which part to take: random numbers only; resizing: pixels to another size
    transforms    decode, cut, scale, mirror into a place of a batch: what a loader calls
    normalising   the last step, on the device

The trap: each step done in the obvious order (decode all, make floats, scale all, crop) costs three
times what decoding does. Notebook 08 teaches it.
"""

from __future__ import annotations

from helpers.images.decoding import LARGEST_PIXELS, decode
from helpers.images.faults import ImageError
from helpers.images.normalising import IMAGENET_MEAN, IMAGENET_STD, normalise
from helpers.images.resizing import Filter, resize
from helpers.images.transforms import RandomResizedCrop, Transform

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "LARGEST_PIXELS",
    "Filter",
    "ImageError",
    "RandomResizedCrop",
    "Transform",
    "decode",
    "normalise",
    "resize",
]
