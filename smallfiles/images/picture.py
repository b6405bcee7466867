"""An encoded picture whose size is known and whose pixels are made only where they are wanted.

A training crop needs on average half of a picture, and often at a third of its size. So the size is
read first, the part is chosen, and then only this part is decoded, at a half, a quarter or an eighth
where that still leaves more than enough pixels to scale from.

The trap: decoding at a half already averages pixels, so scaling after it is not quite what scaling the
whole picture gives. How many pixels must be left over is Pillow's `reducing_gap`: with 2 no difference
is seen, and pictures like those of ImageNet (500 x 375) are never touched. Notebook 08 measures it.

Short, since it chooses which part to decode, and `decoding` and `turbo` decode it.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image

from smallfiles.images import turbo
from smallfiles.images.crops import Box
from smallfiles.images.decoding import Pixels, check_size, decode_by_pillow, decode_reduced, stored_pixels
from smallfiles.images.faults import PILLOW_RAISES, not_a_picture
from smallfiles.images.header import Header, read_header
from smallfiles.samples import Buffer

REDUCING_GAP = 2.0
"""With so many times the pixels that are needed left over, the loss cannot be seen."""

_DENOMINATORS = (8, 4, 2)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, decoded or not yet.

    Args:
        data: The encoded bytes.
        width: In pixels.
        height: In pixels.
        header: Of a JPEG that is not decoded yet.
        pixels: Of everything else.
    """

    data: Buffer
    width: int
    height: int
    header: Header | None
    pixels: Pixels | None

    def part(self, box: Box, rows: int, columns: int) -> Pixels:
        """The pixels of a part that will be scaled to `rows` x `columns`.

        A JPEG is decoded at a reduced size if at least `REDUCING_GAP` times the pixels that scaling needs, in
        each direction, are left.

        Args:
            box: The part, in pixels of the whole picture.
            rows: Height after scaling.
            columns: Width after scaling.

        Returns:
            uint8, rows x columns x 3 of the part, perhaps reduced; not to be written to.

        Raises:
            ImageError: No complete picture.
        """
        if self.header is None:
            return self._cut(box, self.pixels)
        denominator = _denominator(box, rows, columns)
        if turbo.library() is not None:
            found = turbo.decode_part(self.data, self.header, box, denominator)
            if found is not None:
                return found
        return self._cut(box, decode_reduced(self.data, self.header, denominator))

    def _cut(self, box: Box, pixels: Pixels | None) -> Pixels:
        if pixels is None or pixels.shape[0] > self.height or pixels.shape[1] > self.width:
            raise not_a_picture("its header and its pixels do not agree")
        denominator = round(self.height / pixels.shape[0])
        top, left = box.top // denominator, box.left // denominator
        bottom = top + max(1, box.height // denominator)
        return pixels[top:bottom, left : left + max(1, box.width // denominator)]


def open_picture(data: Buffer) -> Picture:
    """Look at a picture without decoding it, if it is a JPEG or an array of pixels; else decode it.

    Raises:
        ImageError: Not a picture, or one that is too large.
    """
    header = read_header(data)
    if header is not None:
        check_size(header.width, header.height)
        return Picture(data, header.width, header.height, header, None)
    pixels = stored_pixels(data)
    if pixels is None:
        pixels = decode_by_pillow(data)
    return Picture(data, pixels.shape[1], pixels.shape[0], None, pixels)


def size_of(data: Buffer) -> tuple[int, int]:
    """Width and height in pixels as stored, from the header alone.

    Raises:
        ImageError: Not a picture.
    """
    header = read_header(data)
    if header is not None:
        return header.width, header.height
    if (pixels := stored_pixels(data)) is not None:
        return pixels.shape[1], pixels.shape[0]
    try:
        with Image.open(io.BytesIO(data)) as picture:
            width, height = picture.size
    except PILLOW_RAISES as error:
        raise not_a_picture("its header is not that of a picture") from error
    return width, height


def _denominator(box: Box, rows: int, columns: int) -> int:
    """The strongest reduction in decoding that leaves enough pixels to scale from."""
    spare = min(box.height / rows, box.width / columns) / REDUCING_GAP
    return next((each for each in _DENOMINATORS if spare >= each), 1)
