"""What the header of a JPEG holds: size, sampling, and whether its end is there.

Reading it costs microseconds and decoding costs a thousand, so the part to decode is chosen from here.
The trap: the size that files carry in EXIF or JFIF may be that of a preview; only the frame header
counts. Notebook 08 teaches it.
"""

from __future__ import annotations

from typing import NamedTuple

from smallfiles.samples import Buffer

_START = b"\xff\xd8\xff"
_END = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN = 0xDA
_COMPONENTS = (1, 3)  # CMYK is left to Pillow, whose colours published results were made with
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
    if not is_jpeg(data):
        return None
    try:
        return _parsed(data)
    except (IndexError, ValueError):
        return None


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


def _parsed(data: Buffer) -> Header | None:
    at, frame = 2, 0
    while True:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == _SCAN:
            break
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _STANDALONE:
            at += 2
        else:
            if marker in _FRAMES:
                frame = at + 4
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    return _frame(data, frame) if frame else None


def _frame(data: Buffer, at: int) -> Header | None:
    bits, components = data[at], data[at + 5]
    height, width = data[at + 1] << 8 | data[at + 2], data[at + 3] << 8 | data[at + 4]
    sampling = [data[at + 7 + 3 * number] for number in range(components)]
    if bits != 8 or components not in _COMPONENTS or not width or not height:
        return None
    return Header(
        width=width,
        height=height,
        block_width=8 * max(each >> 4 for each in sampling) if components > 1 else 8,
        complete=bytes(data[-2:]) == _END,
    )
