"""Errors for bytes that are no image; the caller adds which sample they were."""

from __future__ import annotations

import struct

from PIL import Image

from smallfiles.errors import SmallfilesError

PILLOW_RAISES = (
    *(OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError),
    *(struct.error, Image.DecompressionBombError),
)
"""What Pillow raises for bytes that are no picture, or a damaged one."""


class ImageError(SmallfilesError):
    """Bytes that cannot be decoded as a picture, or may not be."""


class DamagedImageError(ImageError):
    """A JPEG of which pixels can be made, but not those that were meant."""


def not_a_picture(reason: str) -> ImageError:
    """The error for bytes that no decoder takes."""
    return ImageError(
        f"the bytes of the image cannot be decoded ({reason})",
        expected="a complete JPEG, PNG or another image that Pillow opens",
        next_step="Fetch the file again, or leave it out of the manifest",
    )


def damaged(warning: str) -> DamagedImageError:
    """The error for a JPEG whose decoder warns and goes on, with wrong or grey pixels."""
    return DamagedImageError(
        f"the JPEG is damaged (libjpeg warns: {warning})",
        expected="one that decodes without a warning",
        next_step="Fetch the file again, or leave it out of the manifest",
    )


def too_large(size: str, limit: int) -> ImageError:
    """The error for a picture that would take all the memory."""
    return ImageError(
        f"the image has {size}",
        expected=f"at most {limit:,} pixels, or decoding would take all the memory of a worker",
        next_step="Scale it down before packing, or leave it out of the manifest",
    )
