"""Decoders of whole pictures, to be compared.

Two are ours: `turbojpeg`, which makes pixels of a part alone too, and `simplejpeg`, without it. Pillow
takes what no other takes. The choice follows measurement:
`smallfiles bench decode` makes the record again on any machine. TorchCodec, which torchvision names in
place of its own `decode_jpeg`, took 0.97 to 1.01 of that one's time: no gain, so it is left out.

The trap: most of the differences between decoders of one library (libjpeg-turbo is in all of these) are
in what is done beside decoding: copies, channel orders, a picture object in between. Notebook 08
measures it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from smallfiles.images import turbo
from smallfiles.images.crops import Box
from smallfiles.images.decoding import Pixels, decode_reduced
from smallfiles.images.faults import not_a_picture
from smallfiles.images.header import Header, read_header
from smallfiles.samples import Buffer


def _turbojpeg(data: Buffer) -> Pixels:
    header = _header(data)
    found = turbo.decode_part(data, header, Box(0, 0, header.height, header.width))
    if found is None:
        raise not_a_picture("TurboJPEG refuses it")
    return found


def _simplejpeg(data: Buffer) -> Pixels:
    return decode_reduced(data, _header(data), 1)


def _torchvision(data: Buffer) -> Pixels:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    encoded = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    found: Any = decode_jpeg(encoded, mode=ImageReadMode.RGB)
    pixels: Pixels = found.permute(1, 2, 0).numpy()
    return pixels


def _opencv(data: Buffer) -> Pixels:
    import cv2

    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    found: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if found is None:
        raise not_a_picture("OpenCV refuses it")
    pixels: Pixels = found
    return pixels


def _pillow(data: Buffer) -> Pixels:
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGB"))


def _header(data: Buffer) -> Header:
    header = read_header(data)
    if header is None:
        raise not_a_picture("it is no JPEG")
    return header


DECODERS: dict[str, Callable[[Buffer], Pixels]] = {
    "pillow": _pillow,
    "torchvision": _torchvision,
    "opencv": _opencv,
    "simplejpeg": _simplejpeg,
    "turbojpeg": _turbojpeg,
}
"""From a JPEG to RGB pixels, by the name in records; what one raises comes from its library."""
