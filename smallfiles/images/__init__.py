"""Encoded bytes to augmented pixels, at the speed of libjpeg-turbo.

    transforms    decode, cut out, scale, mirror into a place of a batch: what a loader calls
    normalising   the last step, on the device
    picture       a picture of which only a part is decoded: header, turbo (the part of a JPEG)
    decoding      bytes to RGB; what is no picture is an `ImageError` (faults)
    crops         which part to take: random numbers only
    resizing      pixels to another size; colour: random changes of colour
    decoders      decoders of whole pictures, to be compared
    downscaling   pictures scaled down before packing, and samples of them, in order

The trap: each step done in the obvious order (decode all, make floats, scale all, crop) costs three
times what decoding does. Notebook 08 teaches it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smallfiles.images.colour import ColourJitter
    from smallfiles.images.decoding import decode, recovered
    from smallfiles.images.downscaling import resize_ahead, resized
    from smallfiles.images.faults import DamagedImageError, ImageError
    from smallfiles.images.normalising import IMAGENET_MEAN, IMAGENET_STD, normalise
    from smallfiles.images.resizing import Filter, resize
    from smallfiles.images.transforms import (
        CentreCrop,
        Normalised,
        RandomResizedCrop,
        RandomShortSide,
        Transform,
    )

_HOMES = {
    "downscaling": ("resize_ahead", "resized"),
    "colour": ("ColourJitter",),
    "decoding": ("decode", "recovered"),
    "faults": ("DamagedImageError", "ImageError"),
    "normalising": ("IMAGENET_MEAN", "IMAGENET_STD", "normalise"),
    "resizing": ("Filter", "resize"),
    "transforms": ("CentreCrop", "Normalised", "RandomResizedCrop", "RandomShortSide", "Transform"),
}

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CentreCrop",
    "ColourJitter",
    "DamagedImageError",
    "Filter",
    "ImageError",
    "Normalised",
    "RandomResizedCrop",
    "RandomShortSide",
    "Transform",
    "decode",
    "normalise",
    "recovered",
    "resize",
    "resize_ahead",
    "resized",
]


def __getattr__(name: str) -> Any:
    """Import PyTorch when pictures are scaled, not when packing looks whether they decode."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"smallfiles.images.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
