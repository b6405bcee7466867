"""Encoded bytes to augmented pixels, at the speed of libjpeg-turbo.

    transforms    decode, cut out, scale, mirror into a place of a batch: what a loader calls; `normalise` is
                  the last step, on the device
    picture       an image of which only a part is decoded, by TurboJPEG
    decoding      bytes to RGB; anything else raises `ImageError`
    header        size and sampling of a JPEG
    crops         which part to take: random numbers only
    downscaling   images scaled down before packing

The trap: each step done in the obvious order (decode all, make floats, scale all, crop) costs three
times what decoding does. Notebook 08 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.images.decoding import DamagedImageError as DamagedImageError
    from smallfiles.images.decoding import ImageError as ImageError
    from smallfiles.images.decoding import decode as decode
    from smallfiles.images.decoding import recovered as recovered
    from smallfiles.images.downscaling import resize_ahead as resize_ahead
    from smallfiles.images.downscaling import resize_values as resize_values
    from smallfiles.images.downscaling import scaled_pixels as scaled_pixels
    from smallfiles.images.transforms import IMAGENET_MEAN as IMAGENET_MEAN
    from smallfiles.images.transforms import IMAGENET_STD as IMAGENET_STD
    from smallfiles.images.transforms import CentreCrop as CentreCrop
    from smallfiles.images.transforms import ColourJitter as ColourJitter
    from smallfiles.images.transforms import Filter as Filter
    from smallfiles.images.transforms import RandomResizedCrop as RandomResizedCrop
    from smallfiles.images.transforms import RandomShortSide as RandomShortSide
    from smallfiles.images.transforms import Transform as Transform
    from smallfiles.images.transforms import normalise as normalise
    from smallfiles.images.transforms import resize as resize

__getattr__ = lazy.names(__name__)
