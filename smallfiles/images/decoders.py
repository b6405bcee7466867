"""Which decoders are installed, and which one is used.

Two are ours: `turbojpeg` makes pixels of the wanted part alone, `simplejpeg` of whole pictures. The
others are for comparison, and for Pillow to take what no other takes. The choice follows measurement:
`smallfiles bench decode` makes the record again on any machine. TorchCodec, which torchvision names in
place of its own `decode_jpeg`, took 0.97 to 1.01 of that one's time: no gain, so it is left out.

The trap: most of the differences between decoders of one library (libjpeg-turbo is in all of these) are
in what is done beside decoding: copies, channel orders, a picture object in between. Notebook 08
measures it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from smallfiles.images import turbo
from smallfiles.images.crops import Box
from smallfiles.images.decoding import Pixels, decode_reduced
from smallfiles.images.faults import not_a_picture
from smallfiles.images.header import Header, read_header
from smallfiles.samples import Buffer


@dataclass(frozen=True)
class Decoder:
    """A way from a JPEG to RGB pixels.

    Args:
        name: As in records.
        decode: A whole picture; uint8, rows x columns x 3. Whatever it raises comes from its library.
        installed: Whether it can be called here.
        parts: Whether it can make a part alone.
        note: What is special about it.
    """

    name: str
    decode: Callable[[Buffer], Pixels]
    installed: Callable[[], bool]
    parts: bool
    note: str


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


def _package(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is not None


DECODERS: dict[str, Decoder] = {
    decoder.name: decoder
    for decoder in (
        Decoder("turbojpeg", _turbojpeg, lambda: turbo.library() is not None, True, "TurboJPEG 3, by parts"),
        Decoder("simplejpeg", _simplejpeg, lambda: True, False, "with a libjpeg-turbo of its own"),
        Decoder("torchvision", _torchvision, _package("torchvision"), False, "gives tensors"),
        Decoder("opencv", _opencv, _package("cv2"), False, "of the extra `compare`"),
        Decoder("pillow", _pillow, lambda: True, False, "for everything that others refuse"),
    )
}
"""By name, the one that is used first on top."""


def best_decoder() -> Decoder:
    """The decoder that the transforms use here."""
    return next(decoder for decoder in DECODERS.values() if decoder.installed())
