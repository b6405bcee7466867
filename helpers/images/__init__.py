"""Encoded bytes to augmented pixels, at the speed of libjpeg-turbo.

    transforms    decode, cut out, scale, mirror into a place of a batch: what a loader calls
    normalising   the last step, on the device
    picture       a picture of which only a part is decoded: header, turbo (the part of a JPEG)
    decoding      bytes to RGB; what is no picture is an `ImageError` (faults)
    crops         which part to take: random numbers only
    resizing      pixels to another size; colour: random changes of colour
    ahead         pictures scaled down before packing; resized: samples of them, in order
    decoders      which decoders are installed, and which one is used

The trap: each step done in the obvious order (decode all, make floats, scale all, crop) costs three
times what decoding does. Notebook 08 teaches it.
"""

from __future__ import annotations

from helpers.images.ahead import resize_ahead
from helpers.images.colour import ColourJitter
from helpers.images.decoders import DECODERS, best_decoder
from helpers.images.decoding import LARGEST_PIXELS, decode
from helpers.images.faults import ImageError
from helpers.images.normalising import IMAGENET_MEAN, IMAGENET_STD, normalise
from helpers.images.resized import ResizeReport, resized
from helpers.images.resizing import Filter, resize
from helpers.images.transforms import (
    CentreCrop,
    Normalised,
    RandomResizedCrop,
    RandomShortSide,
    Transform,
)

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CentreCrop",
    "ColourJitter",
    "Normalised",
    "RandomShortSide",
    "LARGEST_PIXELS",
    "Filter",
    "ImageError",
    "RandomResizedCrop",
    "Transform",
    "DECODERS",
    "ResizeReport",
    "best_decoder",
    "resize_ahead",
    "resized",
    "decode",
    "normalise",
    "resize",
]
