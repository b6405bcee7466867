"""Decode encoded bytes to pixels: libjpeg-turbo for JPEG, Pillow for everything else.

Pillow decides what is a picture: what the fast decoder refuses goes there (PNG, CMYK, files with
garbage between the parts of their header), and what Pillow refuses is refused. The orientation that a
camera noted in EXIF is ignored, as torchvision's ImageFolder and `decode_image` do:
networks were trained that way. An `ImageError` does not say which sample it was; the caller adds that.

The trap: a JPEG that was cut off, or in which bytes were changed, decodes "successfully" in many programs,
Pillow among them: libjpeg only warns, and paints what it lacks grey. Here its warnings about the picture
are errors; `recovered` still gives the pixels. Damage after which the codes happen
to fit again gives no warning; only a digest finds that. Notebook 08 teaches it.
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from smallfiles.contents import array_view
from smallfiles.errors import SmallfilesError
from smallfiles.images.crops import Header, is_jpeg, read_header, tidied
from smallfiles.samples import Buffer

PILLOW_RAISES = (
    *(OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError),
    *(struct.error, Image.DecompressionBombError),
)
"""The exceptions of Pillow for damaged pictures, and for bytes of anything else."""


class ImageError(SmallfilesError):
    """Bytes that cannot be decoded as a picture, or may not be."""


class DamagedImageError(ImageError):
    """A JPEG of which pixels can be made, but not those that were meant."""


def not_a_picture(reason: str) -> ImageError:
    """Return the error for bytes that no decoder accepts."""
    return ImageError(
        f"the bytes of the image cannot be decoded ({reason})",
        expected="a complete JPEG, PNG or another image that Pillow opens",
        next_step="Fetch the file again, or leave it out of the manifest",
    )


def damaged(warning: str) -> DamagedImageError:
    """Return the error for a JPEG whose decoder warns and continues with wrong or grey pixels."""
    return DamagedImageError(
        f"the JPEG is damaged (libjpeg warns: {warning})",
        expected="one that decodes without a warning",
        next_step="Fetch the file again, or leave it out of the manifest",
    )


def too_large(size: str, limit: int) -> ImageError:
    """Return the error for a picture that would need too much memory."""
    return ImageError(
        f"the image has {size}",
        expected=f"at most {limit:,} pixels, or decoding would take all the memory of a worker",
        next_step="Scale it down before packing, or leave it out of the manifest",
    )


Pixels: TypeAlias = npt.NDArray[np.uint8]

LARGEST_PIXELS = 100_000_000
"""Of a picture, 300 MB as RGB; the largest of ImageNet has about 60 million."""

_ORIENTATION = 0x0112
_OF_THE_PICTURE = ("Corrupt JPEG data", "Premature end of JPEG")
"""How libjpeg's warnings begin that mean wrong pixels; others are of notes in the header."""


def decode(data: Buffer) -> Pixels:
    """Decode a whole picture.

    Args:
        data: A JPEG, PNG or another file that Pillow opens, or a `.npy` file of pixels.

    Returns:
        uint8, rows x columns x 3, owned by the caller.

    Raises:
        ImageError: No complete picture, a damaged one (`DamagedImageError`), or more than
            `LARGEST_PIXELS`.
    """
    header = read_header(data)
    if header is None:
        pixels = stored_pixels(data)
        return decode_by_pillow(data) if pixels is None else pixels.copy()
    check_size(header.width, header.height)
    return decode_reduced(data, header, 1)


def stored_pixels(data: Buffer) -> Pixels | None:
    """Return a view of the pixels in a `.npy` file (uint8, rows x columns x 3); None for anything else."""
    with contextlib.suppress(ValueError):
        array: Pixels = array_view(data)
        if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3 and array.size:
            check_size(array.shape[1], array.shape[0])
            return array
    return None


def recovered(data: Buffer) -> bytes:
    """Decode what can still be read of a damaged picture, and return it as a binary PPM file.

    Raises:
        ImageError: Nothing of the picture can be read.
    """
    pixels = _by_pillow(data)
    return b"P6\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()


def orientation(data: Buffer) -> int:
    """Return the EXIF orientation, 1 to 8. It is 1 where it is missing or damaged."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            found = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow's parsers raise what they like on broken EXIF, and it is only a note
        return 1
    return found if found in range(1, 9) else 1


def decode_reduced(data: Buffer, header: Header, denominator: int) -> Pixels:
    """Decode a whole JPEG to RGB at its full size (1), or at 1/2, 1/4, or 1/8 of it.

    Raises:
        ImageError: The data is not a complete picture.
    """
    import simplejpeg  # here, since Pillow decodes what people look at without it

    least_height, least_width = -(-header.height // denominator), -(-header.width // denominator)
    try:
        found: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=least_height, min_width=least_width, min_factor=denominator
        )
    except ValueError:  # also for a mere warning, which Pillow ignores
        return decode_by_pillow(data)
    return found


def check_size(width: int, height: int) -> None:
    """Refuse a picture that would take all the memory.

    Raises:
        ImageError: More than `LARGEST_PIXELS`.
    """
    if width * height > LARGEST_PIXELS:
        raise too_large(f"{width:,} x {height:,} pixels", LARGEST_PIXELS)


def decode_by_pillow(data: Buffer) -> Pixels:
    """Decode a whole picture of any kind that Pillow knows, where the fast decoder cannot.

    Raises:
        ImageError: The picture is incomplete, damaged, or has more than `LARGEST_PIXELS`.
    """
    pixels = _by_pillow(data)
    warning = _warning(data) if is_jpeg(data) else None
    if warning is not None:
        raise damaged(warning)
    return pixels


def _by_pillow(data: Buffer) -> Pixels:
    try:
        with Image.open(io.BytesIO(data)) as picture:
            check_size(*picture.size)
            pixels = np.array(_eight_bits(picture).convert("RGB"))
    except Image.DecompressionBombError as error:
        raise too_large(" ".join(re.findall(r"\d+ pixels", str(error))[:1]), LARGEST_PIXELS) from error
    except PILLOW_RAISES as error:
        raise not_a_picture(_reason(data, error)) from error
    return pixels


def _warning(data: Buffer) -> str | None:
    """Return libjpeg's warning about the picture itself, which Pillow does not report, or None.

    Bytes between the parts of a header and zeros before the end marker are tolerated.
    """
    tidy = tidied(data)
    found = None if tidy is None else _warned(tidy)
    return found and _warned(tidied(data, padding=False) or b"")


def _warned(data: bytes) -> str | None:
    try:
        import simplejpeg
    except ModuleNotFoundError:  # it alone tells of them
        return None
    for colours in ("CMYK", "GRAY"):  # the first fails at once on what is not CMYK
        try:
            simplejpeg.decode_jpeg(data, colours)
        except ValueError as error:
            if str(error).startswith(_OF_THE_PICTURE):
                return str(error)
        else:
            break
    return None


def _eight_bits(picture: Any) -> Any:
    """Sixteen bits a pixel scaled to eight; Pillow alone would cut off everything above 255.

    Raises:
        ValueError: Pixels whose values for black and white are unknown.
    """
    if picture.mode == "F" or (picture.mode == "I" and picture.format == "TIFF"):
        kind = "floating-point numbers" if picture.mode == "F" else "integers of 32 bits"
        raise ValueError(f"its pixels are {kind}, of which nothing says what is black and what is white")
    if not picture.mode.startswith("I"):
        return picture
    wide = np.asarray(picture).astype(np.int64).clip(0, 65535)
    return Image.fromarray((wide >> 8).astype(np.uint8))


def _reason(data: Buffer, error: Exception) -> str:
    """Return the reason in a few words. Pillow would name an object in memory."""
    start = bytes(data[:64]).lstrip().lower()
    if len(data) == 0:
        return "it has no bytes"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, as an interrupted download leaves it"
    if "cannot identify" in str(error):
        return f"no known kind of image; it begins with {bytes(data[:8]).hex(' ')}"
    return str(error)


def turned(pixels: Pixels, found: int) -> Pixels:
    """Turn pixels the right way up for an EXIF orientation."""
    if found >= 5:
        pixels = pixels.swapaxes(0, 1)
    if found in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if found in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
