"""Read the header of a picture before it is decoded, and choose the part of it to decode.

Knowing the part before decoding is what makes decoding cheap. The rules are those of torchvision, so
that published recipes mean here what they meant there. The trap: a crop "of 8 to 100 % of the area" is
drawn up to ten times and then given up for a centred one, which tiny and very long pictures meet
often; without that fallback their distribution is another one.

Reading the header of a JPEG costs microseconds and decoding costs a thousand, so the part to decode is chosen
from here. The trap: the size that files carry in EXIF or JFIF may be that of a preview; only the frame header
counts. Notebook 08 teaches it.

Packing looks for damage with it, so this module imports none of the packages that decode.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from smallfiles.samples import Buffer

_TRIES = 10


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


class View(NamedTuple):
    """What of a picture is seen: a part of it, scaled, a square cut out of that, perhaps mirrored.

    A mask and the boxes of the same picture get the same view. `part` is in pixels of the picture; `rows` and
    `columns` are its size after scaling, where the square of `size` begins at `top` and `left`.
    """

    part: Box
    rows: int
    columns: int
    size: int
    top: int = 0
    left: int = 0
    mirrored: bool = False


def random_resized(
    width: int, height: int, rng: np.random.Generator, scale: tuple[float, float], ratio: tuple[float, float]
) -> Box:
    """Draw a box of random area and shape at a random place, as torchvision's RandomResizedCrop does.

    Args:
        width: Width of the picture in pixels.
        height: Height of the picture in pixels.
        rng: Source of randomness.
        scale: Smallest and largest share of the area.
        ratio: Smallest and largest width divided by height, equally likely on a logarithmic scale.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * rng.random())
        shape = math.exp(low + (high - low) * rng.random())
        box_width, box_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(rng.random() * (height - box_height + 1))
            left = int(rng.random() * (width - box_width + 1))
            return Box(top, left, box_height, box_width)
    return _centred_within(width, height, ratio)


def _centred_within(width: int, height: int, ratio: tuple[float, float]) -> Box:
    """Return the largest centred box whose shape is allowed."""
    shape = width / height
    if shape < ratio[0]:
        box_width, box_height = width, max(1, round(width / ratio[0]))
    elif shape > ratio[1]:
        box_width, box_height = max(1, round(height * ratio[1])), height
    else:
        box_width, box_height = width, height
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def short_side(width: int, height: int, short: int) -> tuple[int, int]:
    """Width and height once the shorter side is scaled to `short`; the longer is cut to whole pixels."""
    if width <= height:
        return short, max(1, int(short * height / width))
    return max(1, int(short * width / height)), short


def centred(width: int, height: int, size: int) -> tuple[int, int]:
    """Left and top of a centred square, rounded as torchvision rounds; negative where it sticks out."""
    return round((width - size) / 2.0), round((height - size) / 2.0)


def random_square(width: int, height: int, rng: np.random.Generator, share: float) -> Box:
    """Draw a square at a random place whose side is a share of the shorter side."""
    side = max(1, round(min(width, height) * share))
    top = int(rng.random() * (height - side + 1))
    left = int(rng.random() * (width - side + 1))
    return Box(top, left, side, side)


_START = b"\xff\xd8\xff"
_END = b"\xff\xd9"
_SCAN = 0xDA
_COLOURS = ("Gray", "YCbCr", "RGB")  # CMYK is left to Pillow, whose colours published results were made with
_BLOCK_WIDTHS = {"Gray": 8, "444": 8, "440": 8, "422": 16, "420": 16, "411": 32}
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))


class Header(NamedTuple):
    """The frame header of a JPEG.

    Args:
        width: In pixels.
        height: In pixels.
        block_width: Pixels that are coded together, in a row (8 to 32).
        complete: Whether the file ends with the end marker; a file that was cut off does not.
    """

    width: int
    height: int
    block_width: int
    complete: bool


def is_jpeg(data: Buffer) -> bool:
    """Check whether bytes begin as a JPEG file does."""
    return bytes(data[:3]) == _START


def read_header(data: Buffer) -> Header | None:
    """Read the header of an 8-bit JPEG in grey or three colours. Return None for everything else."""
    import simplejpeg  # here, since packing looks for damage without it

    if not is_jpeg(data):
        return None
    try:
        height, width, colours, sampling = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    block_width = _BLOCK_WIDTHS.get(sampling)
    if colours not in _COLOURS or block_width is None:
        return None
    return Header(width, height, block_width, complete=bytes(data[-2:]) == _END)


def tidied(data: Buffer, *, padding: bool = True) -> bytes | None:
    """Remove the bytes between the parts of a JPEG's header and after its last end marker.

    Args:
        data: A file that begins as a JPEG.
        padding: Whether to keep zeros before the end marker.

    Returns:
        The shorter file, or None if the header does not end or no end marker follows it. The end marker of a
        preview comes before the end of the header.
    """
    whole, at, kept = bytes(data), 2, [_START[:2]]
    while (at := whole.find(b"\xff", at)) >= 0 and at + 4 <= len(whole):
        marker = whole[at + 1]
        if marker == _SCAN:
            end = whole.rfind(_END, at)
            picture = whole[at:end] if padding else whole[at:end].rstrip(b"\0")
            return None if end < 0 else b"".join(kept) + picture + _END
        if marker == _END[1]:
            return None
        if marker in (0, 0xFF) or marker in _STANDALONE:
            at += 1
            continue
        stop = at + 2 + (whole[at + 2] << 8 | whole[at + 3])
        kept.append(whole[at:stop])
        at = stop
    return None
