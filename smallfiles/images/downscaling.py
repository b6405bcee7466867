"""Images scaled down before packing, so that no epoch has to do it again.

    resize_ahead   a JPEG again: smaller files, a second loss, still decoded in each epoch
    scaled_pixels  pixels, which are packed as `.npy` files: never decoded again, and 2 to 4 times the bytes

Images are never enlarged. The bytes of the source are kept wherever no pixel changes; a JPEG that is encoded
here never takes more bytes than its source, so that a bound of every size is known beforehand.

The trap: training crops are cut from what was stored. From a shorter side of 256 a crop of 8 % of the
area is 62 pixels wide and is enlarged to 224, where the full image would have had detail. Say so where
you publish an accuracy. Notebook 08 measures it.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from smallfiles.errors import UsageError
from smallfiles.images.crops import Box, is_jpeg
from smallfiles.images.crops import short_side as scaled_size
from smallfiles.images.decoding import (
    PILLOW_RAISES,
    ImageError,
    Pixels,
    decode,
    not_a_picture,
    orientation,
    stored_pixels,
    turned,
)
from smallfiles.images.picture import Picture, open_picture
from smallfiles.images.transforms import resize
from smallfiles.samples import Buffer

QUALITY = 90
_QUALITY_STEP = 5
_VALUES = {"1": "single bits", "P": "numbers of a palette", "PA": "numbers of a palette"}


def resize_ahead(data: Buffer, short_side: int = 256, quality: int = QUALITY) -> bytes:
    """Scale an image down until its shorter side has `short_side` pixels, turned as its EXIF says.

    Args:
        data: An image of any kind that `decode` takes.
        short_side: In pixels; a smaller image keeps its size.
        quality: Of the JPEG, 1 to 100; lower where the JPEG would be larger than `data`.

    Returns:
        The new file, or the bytes of `data` if no pixel changes; at most `len(data)` bytes.

    Raises:
        ImageError: No complete image, one whose values would change, or one that would take more bytes.
        UsageError: An option makes no sense.
    """
    _check_options(short_side, quality)
    picture = open_picture(data)
    if min(picture.width, picture.height) <= short_side and orientation(data) == 1:
        if picture.header is not None:
            decode(data)  # damage is found now instead of in each epoch
        return bytes(data)
    return _encoded(_scaled_upright(picture, short_side), quality, len(data))


def scaled_pixels(data: Buffer, short_side: int = 256) -> Pixels:
    """Decode an image, and scale it down as `resize_ahead` does.

    Args:
        data: An image of any kind that `decode` takes.
        short_side: In pixels; a smaller image keeps its size.

    Returns:
        uint8, rows x columns x 3, turned as its EXIF says.

    Raises:
        ImageError: No complete image, or one whose values would change.
        UsageError: An option makes no sense.
    """
    _check_options(short_side, QUALITY)
    return _scaled_upright(open_picture(data), short_side)


def _scaled_upright(picture: Picture, short_side: int) -> Pixels:
    _refuse_values(picture.data)
    small = min(picture.width, picture.height) <= short_side
    scaled = _scaled(picture, None if small else short_side)
    return np.ascontiguousarray(turned(scaled, orientation(picture.data)))


def resize_values(data: Buffer, short_side: int) -> bytes:
    """Scale a picture of values, such as a mask, down as `resize_ahead` scales its image.

    Args:
        data: A PNG; a palette stays, and no value becomes another.
        short_side: In pixels; a smaller picture keeps its bytes.

    Returns:
        A PNG of the nearest pixels, at most `len(data)` bytes.

    Raises:
        ImageError: No picture, or one that would take more bytes.
    """
    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()
            if min(picture.size) <= short_side:
                return bytes(data)
            _refuse_deep_colours(data)
            size = scaled_size(*picture.size, short_side)
            scaled = picture.resize(size, Image.Resampling.NEAREST)
            palette, most = scaled.getpalette() or [], int(np.asarray(scaled).max())
            if scaled.mode == "P" and len(palette) <= 3 * most:  # else larger numbers would be cut
                scaled.putpalette(palette + [0] * (3 * most + 3 - len(palette)))
            out = io.BytesIO()
            scaled.save(out, "PNG", optimize=True)
    except PILLOW_RAISES as error:
        raise not_a_picture(str(error)) from error
    if out.tell() > len(data):
        raise _larger(size, out.tell(), len(data))
    return out.getvalue()


def _refuse_deep_colours(data: Buffer) -> None:
    """Refuse a PNG of several channels of 16 bits, of which Pillow reads 8."""
    bits, colours = bytes(data[24:26])
    if bits == 16 and colours:
        raise ImageError(
            "its channels have 16 bits, of which scaling would keep 8",
            expected="a mask of one channel, or channels of 8 bits",
            next_step="Pack it without --resize, or leave it out with --on-error skip",
        )


def _encoded(pixels: Pixels, quality: int, most: int) -> bytes:
    """Encode pixels in at most `most` bytes.

    The quality is lowered until the file fits. Flat colours fit as a PNG.
    """
    data: bytes = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420")
    if len(data) <= most:
        return data
    for lower in range(quality, 0, -_QUALITY_STEP):
        if len(data := _saved(pixels, "JPEG", quality=lower)) <= most:
            return data
    if len(data := _saved(pixels, "PNG")) <= most:
        return data
    raise _larger((pixels.shape[1], pixels.shape[0]), len(data), most)


def _larger(size: tuple[int, int], found: int, most: int) -> ImageError:
    return ImageError(
        f"at {size[0]} x {size[1]} pixels it takes {found:,} bytes, its source {most:,}",
        expected="images that become smaller when they are scaled",
        next_step="Pack it without --resize, or leave it out with --on-error skip",
    )


def _saved(pixels: Pixels, kind: str, **options: Any) -> bytes:
    """Return the smallest file that Pillow makes of pixels. Grey pixels are stored in one channel."""
    out = io.BytesIO()
    grey = (pixels == pixels[:, :, :1]).all()
    Image.fromarray(pixels[:, :, 0] if grey else pixels).save(out, kind, optimize=True, **options)
    return out.getvalue()


def _refuse_values(data: Buffer) -> None:
    """Refuse what is no photograph: scaled as 8 bits of colour, the classes of a mask would be other classes.

    Raises:
        ImageError: A palette, or 1, 16 or 32 bits per pixel.
    """
    if is_jpeg(data) or stored_pixels(data) is not None:
        return
    with Image.open(io.BytesIO(data)) as found:  # it was decoded before
        mode = found.mode
    if mode in _VALUES or mode.startswith("I"):
        raise ImageError(
            f"its pixels are {_VALUES.get(mode, 'numbers of 16 or 32 bits')} (mode {mode}), which scaling to "
            "8 bits of red, green and blue would change",
            expected="photographs to scale",
            next_step="Pack these without --resize, or leave them out with --on-error skip",
        )


def _check_options(short: int, quality: int) -> None:
    """Refuse what makes no sense.

    Raises:
        UsageError: An option makes no sense.
    """
    if short < 1 or not 1 <= quality <= 100:
        raise UsageError(
            f"a shorter side of {short} with quality {quality} is asked for",
            expected="1 pixel or more, and a quality of 1 to 100",
            next_step="Start with a shorter side of 256",
        )


def _scaled(picture: Picture, short: int | None) -> Pixels:
    """Return the pixels of an image, scaled down to a shorter side of `short`. None keeps its size."""
    whole = Box(0, 0, picture.height, picture.width)
    if short is None:
        return picture.part(whole, picture.height, picture.width)
    columns, rows = scaled_size(picture.width, picture.height, short)
    scaled = np.empty((rows, columns, 3), np.uint8)
    resize(picture.part(whole, rows, columns), scaled)
    return scaled
