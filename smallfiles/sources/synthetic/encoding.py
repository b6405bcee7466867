"""Pixels become the bytes of a file: a JPEG of a wanted size, or one of ImageNet's odd ones.

Real data sets hold a PNG named .JPEG, CMYK and grey files, EXIF that turns the picture, EXIF that is
broken. Who has not met them in a small set meets them at image 700,000 of an overnight job. The
trap: a decoder that ignores EXIF, as training code does, sees the turned picture. Notebook 02 counts them.
"""

from __future__ import annotations

import io
import math

import numpy as np
import simplejpeg
from PIL import Image

from smallfiles.sources.synthetic.pictures import Picture

ODD = ("png", "cmyk", "gray", "exif_rotated", "exif_broken")
BROKEN = ("empty", "truncated")
_QUALITIES = (40, 98)


def encode(picture: Picture, target_bytes: int, oddity: str | None = None) -> bytes:
    """Encode a picture.

    Args:
        picture: RGB pixels.
        target_bytes: Wanted size; met within about 15 % where a quality of 40 to 98 allows it.
        oddity: One of `ODD` or `BROKEN`, or None for an ordinary JPEG.
    """
    match oddity:
        case "png":
            return _by_pillow(Image.fromarray(picture), "PNG", compress_level=1)
        case "cmyk":
            return _by_pillow(Image.fromarray(picture).convert("CMYK"), "JPEG", quality=85)
        case "gray":
            return _by_pillow(Image.fromarray(picture).convert("L"), "JPEG", quality=90)
        case "exif_rotated":  # stored lying on its side; orientation 6 says: turn clockwise to view
            return _with_exif(_sized(np.ascontiguousarray(np.rot90(picture)), target_bytes), _turned_exif())
        case "exif_broken":
            return _with_exif(_sized(picture, target_bytes), b"Exif\0\0MM\0*\xff\xff\xff\xf0cut off")
        case "empty":
            return b""
        case "truncated":
            whole = _sized(picture, target_bytes)
            return whole[: len(whole) * 2 // 5]
        case _:
            return _sized(picture, target_bytes)


def _sized(picture: Picture, target_bytes: int) -> bytes:
    """Search the quality whose file comes near the wanted size, in at most three tries."""
    quality, best = 85, b""
    for _ in range(3):
        data: bytes = simplejpeg.encode_jpeg(picture, quality, colorsubsampling="420")
        if not best or _distance(data, target_bytes) < _distance(best, target_bytes):
            best = data
        following = _better_quality(quality, target_bytes / len(data))
        if following == quality or _distance(data, target_bytes) < 0.12:
            break
        quality = following
    return best


def _distance(data: bytes, target_bytes: int) -> float:
    return abs(math.log(len(data) / target_bytes))


def _better_quality(quality: int, factor: float) -> int:
    """The quality that makes a file `factor` times as large: size falls as (103 - quality)^-0.72."""
    wanted: float = 103 - (103 - quality) * factor ** (-1 / 0.72)
    return max(_QUALITIES[0], min(_QUALITIES[1], round(wanted)))


def _by_pillow(image: Image.Image, format: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def _turned_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


def _with_exif(jpeg: bytes, exif: bytes) -> bytes:
    """Put an APP1 segment right after the start of the image, where cameras put it."""
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    return jpeg[:2] + segment + jpeg[2:]
