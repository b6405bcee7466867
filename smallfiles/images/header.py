"""What the header of a JPEG holds: size, sampling, and whether its end is there.

Reading it costs microseconds and decoding costs a thousand, so the part to decode is chosen from here.
The trap: the size that files carry in EXIF or JFIF may be that of a preview; only the frame header
counts. Notebook 08 teaches it.

Short, since packing looks for damage with it, without the packages that decode.
"""

from __future__ import annotations

from typing import NamedTuple

from smallfiles.samples import Buffer

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
    """Whether bytes begin as a JPEG file does."""
    return bytes(data[:3]) == _START


def read_header(data: Buffer) -> Header | None:
    """The header of a JPEG of 8 bits, grey or in three colours; None for everything else."""
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
    """A JPEG without bytes between the parts of its header, or behind its last end marker.

    Args:
        data: A file that begins as a JPEG.
        padding: Keep zeros before that end marker.

    Returns:
        None if the header does not end, or no end marker is behind it (that of a preview is before).
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
