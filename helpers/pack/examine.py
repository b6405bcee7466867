"""Look at a sample's bytes before they are packed: a broken image found now costs a minute.

The header check is nearly free (2 µs) and finds empty files, files that are no image, and JPEGs
that were cut off; decoding (3 ms) finds what any decoder can find, by the same code as training.
Formats: a JPEG begins with FF D8 and ends with FF D9 (ITU-T T.81 B.1.1.3), perhaps followed by padding.

The trap: a preview in the header ends with FF D9 too, so half a photograph has one; only an end marker
behind the header counts. Notebook 03 shows what it finds.
"""

from __future__ import annotations

from collections.abc import Callable

from helpers.errors import HelpersError, SourceError
from helpers.sources.record import IMAGE_SUFFIXES

Examine = Callable[[str, memoryview], None]
"""Raises a SourceError that names the path if its bytes cannot be packed."""

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"RIFF", "WebP"),
    *((b"P%d" % number, "PPM") for number in range(1, 8)),
)
_END_OF_IMAGE = b"\xff\xd9"


def examiner(level: str) -> Examine:
    """The check of a level: `none`, `header` or `decode`."""
    return {"none": _nothing, "header": check_header, "decode": check_decode}[level]


def _nothing(path: str, data: memoryview) -> None:
    """Take everything, as it is."""


def check_header(path: str, data: memoryview) -> None:
    """Refuse empty files and, by suffix, images that are none or are cut off.

    Raises:
        SourceError: What is wrong, with the path.
    """
    if not len(data):
        raise _bad(path, "is empty (0 bytes)")
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return
    head = bytes(data[:8])
    if head.startswith(b"\xff\xd8\xff") and data[-2:] == _END_OF_IMAGE:
        return  # nearly all files, in a millionth of a second
    kind = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    if kind is None:
        raise _bad(path, f"is no image (it begins with {head!r})")
    if kind == "JPEG" and _was_cut_off(data):
        raise _bad(path, "is a JPEG that was cut off (no end-of-image marker)")


def check_decode(path: str, data: memoryview) -> None:
    """Refuse what does not decode to the last pixel, without a warning.

    Raises:
        SourceError: What is wrong, with the path.
    """
    check_header(path, data)
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return
    from helpers.images.decoding import decode

    try:
        decode(data)
    except HelpersError as error:
        raise _bad(path, f"does not decode: {error.got}") from error


def _was_cut_off(data: memoryview) -> bool:
    """Whether a JPEG has no end marker behind its header."""
    from helpers.images.header import tidied

    return tidied(data) is None


def _bad(path: str, what: str) -> SourceError:
    return SourceError(
        f"{path} {what}",
        expected="a whole image",
        next_step="Replace or remove it, or pack with --on-error skip to leave it out and have it reported",
    )
