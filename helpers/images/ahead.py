"""Pictures scaled down before packing, so that no epoch has to do it again.

    jpeg   encoded again: smaller files, a second loss, still decoded in each epoch
    raw    pixels as they are, in a binary PPM (a line of text, then bytes; Pillow and many others open
           it): never decoded again, and 2 to 4 times the bytes

A picture whose shorter side is not longer than asked is never enlarged: its JPEG is kept as it is.

The trap: training crops are cut from what was stored. From a shorter side of 256 a crop of 8 % of the
area is 62 pixels wide and is enlarged to 224, where the full picture would have had detail. Say so where
you publish an accuracy. Notebook 08 measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import simplejpeg

from helpers.errors import UsageError
from helpers.images.crops import Box
from helpers.images.crops import short_side as scaled_size
from helpers.images.decoding import Pixels, decode, orientation, turned
from helpers.images.picture import Picture, open_picture
from helpers.images.resizing import resize
from helpers.samples import Buffer

Store: TypeAlias = Literal["jpeg", "raw"]

QUALITY = 90
_GAP = 2.0


@dataclass(frozen=True)
class Resized:
    """One picture that was scaled ahead.

    Args:
        data: The new file.
        kept: True if these are the old bytes.
        error: Mean absolute difference to the scaled pixels before they were encoded, of 255;
            None unless it was asked for.
    """

    data: bytes
    kept: bool
    error: float | None = None


def resize_ahead(
    data: Buffer, short_side: int = 256, store: Store = "jpeg", quality: int = QUALITY, *, exif: bool = False
) -> bytes:
    """Scale a picture down until its shorter side has `short_side` pixels.

    Args:
        data: A picture of any kind that `decode` takes.
        short_side: In pixels; a picture that is smaller stays as it is.
        store: `jpeg` or `raw` (PPM).
        quality: Of the JPEG, 1 to 100.
        exif: Turn the picture as its EXIF orientation says; that note is lost in any case.

    Returns:
        The new file.

    Raises:
        ImageError: No complete picture.
        UsageError: An option makes no sense.
    """
    return resize_one(data, short_side, store, quality, exif=exif).data


def resize_one(
    data: Buffer, short: int, store: Store, quality: int, *, exif: bool = False, measure: bool = False
) -> Resized:
    """What `resize_ahead` does, with what it did; `measure` decodes the result again for its error."""
    check_options(short, store, quality)
    picture = open_picture(data)
    turn = orientation(data) if exif else 1
    small = min(picture.width, picture.height) <= short
    if small and turn == 1 and store == "jpeg" and picture.header is not None:
        decode(data)  # a damaged file shall be found now rather than in each epoch
        return Resized(bytes(data), kept=True, error=0.0 if measure else None)
    pixels = np.ascontiguousarray(turned(_scaled(picture, short), turn))
    if store == "raw":
        return Resized(to_ppm(pixels), kept=False, error=0.0 if measure else None)
    encoded: bytes = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420")
    error = float(np.abs(decode(encoded) - pixels.astype(np.int16)).mean()) if measure else None
    return Resized(encoded, kept=False, error=error)


def check_options(short: int, store: str, quality: int) -> None:
    """Refuse what makes no sense before the first picture is read.

    Raises:
        UsageError: An option makes no sense.
    """
    if store not in get_args(Store) or short < 1 or not 1 <= quality <= 100:
        raise UsageError(
            f"a shorter side of {short}, stored as {store!r} with quality {quality}, is asked for",
            expected="1 pixel or more, jpeg or raw, and a quality of 1 to 100",
            next_step="Start with a shorter side of 256 as jpeg",
        )


def to_ppm(pixels: Pixels) -> bytes:
    """RGB pixels as a binary PPM file."""
    height, width = pixels.shape[:2]
    return b"P6\n%d %d\n255\n" % (width, height) + pixels.tobytes()


def _scaled(picture: Picture, short: int) -> Pixels:
    """The pixels of a picture, scaled down if its shorter side is longer than `short`."""
    whole = Box(0, 0, picture.height, picture.width)
    if min(picture.width, picture.height) <= short:
        return picture.part(whole, picture.height, picture.width, None)
    columns, rows = scaled_size(picture.width, picture.height, short)
    scaled = np.empty((rows, columns, 3), np.uint8)
    resize(picture.part(whole, rows, columns, _GAP), scaled)
    return scaled
