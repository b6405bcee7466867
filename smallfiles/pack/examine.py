"""Look at a sample's bytes before they are packed: a broken image found now costs a minute.

The header check is nearly free (2 µs) and finds empty files, files that are no image, and JPEGs
that were cut off; decoding (3 ms) finds what any decoder can find, by the same code as training. Arrays of
NumPy (.npy) are decoded too; samples of any other kind are counted, and the report says how many.
Formats: a JPEG begins with FF D8 and ends with FF D9 (ITU-T T.81 B.1.1.3), perhaps followed by padding.

The trap: a preview in the header ends with FF D9 too, so half a photograph has one; only an end marker
behind the header counts. Notebook 03 shows what it finds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from smallfiles import npy
from smallfiles.errors import SmallfilesError, SourceError
from smallfiles.folders import IMAGE_BEGINNINGS, IMAGE_SUFFIXES

Examine = Callable[[str, memoryview], bool]
"""Whether EXIF says to turn it; raises a SourceError that names the path if its bytes cannot be packed."""

_END_OF_IMAGE = b"\xff\xd9"
_EXIF = b"Exif\0\0"
_EXIF_BEGINS_WITHIN = 64  # behind the start marker, or behind a JFIF segment of 18 bytes
_EXIF_BYTES = 1024
_ORIENTATION = 0x0112


def examiner(level: str) -> Examine:
    """The check of a level: `none`, `header` or `decode`."""
    return {"none": _nothing, "header": check_header, "decode": check_decode}[level]


def _nothing(path: str, data: memoryview) -> bool:
    """Take everything, as it is."""
    return False


def check_header(path: str, data: memoryview) -> bool:
    """Refuse empty files and, by suffix, images that are none or are cut off.

    Returns:
        Whether it is a JPEG that says in EXIF that viewers should turn or mirror it.

    Raises:
        SourceError: What is wrong, with the path.
    """
    if not len(data):
        raise _bad(path, "is empty (0 bytes)")
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return False
    head = bytes(data[:_EXIF_BEGINS_WITHIN])
    if head.startswith(b"\xff\xd8\xff") and data[-2:] == _END_OF_IMAGE:
        return _EXIF in head and _is_rotated(
            data, head.index(_EXIF) + len(_EXIF)
        )  # nearly all files, in a millionth of a second
    kind = next((name for magic, name in IMAGE_BEGINNINGS.items() if head.startswith(magic)), None)
    if kind is None:
        raise _bad(path, f"is no image (it begins with {head[:8]!r})")
    if kind == "JPEG" and _was_cut_off(data):
        raise _bad(path, "is a JPEG that was cut off (no end-of-image marker)")
    return kind == "JPEG" and _EXIF in head and _is_rotated(data, head.index(_EXIF) + len(_EXIF))


def _is_rotated(data: memoryview, begin: int) -> bool:
    """Whether the EXIF that begins here holds an orientation from 2 to 8; broken EXIF is only a note."""
    exif = bytes(data[begin : begin + _EXIF_BYTES])
    order = "<" if exif.startswith(b"II") else ">"
    try:
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", exif, entry)
            if tag == _ORIENTATION:
                return int(value) in range(2, 9)
    except struct.error:
        pass
    return False


def check_decode(path: str, data: memoryview) -> bool:
    """Refuse what does not decode to the last pixel, without a warning.

    Returns:
        As `check_header`.

    Raises:
        SourceError: What is wrong, with the path.
    """
    rotated = check_header(path, data)
    if path.lower().endswith(npy.SUFFIX):
        try:
            npy.view(data)
        except ValueError as error:
            raise _bad(path, f"does not decode as an array of NumPy ({error})", "a whole array") from error
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return rotated
    from smallfiles.images.decoding import decode

    try:
        decode(data)
    except SmallfilesError as error:
        raise _bad(path, f"does not decode: {error.got}") from error
    return rotated


def not_decodable(paths: pa.ChunkedArray | pa.Array) -> int:
    """How many samples `decode` looks at no closer than `header`, since no decoder is known for their suffix.

    Args:
        paths: Of all samples.
    """
    suffixes = "|".join(suffix.replace(".", r"\.") for suffix in (*IMAGE_SUFFIXES, npy.SUFFIX))
    known = pc.match_substring_regex(paths, f"(?:{suffixes})$", ignore_case=True)
    return len(paths) - int(pc.sum(known).as_py() or 0)


def _was_cut_off(data: memoryview) -> bool:
    """Whether a JPEG has no end marker behind its header."""
    from smallfiles.images.header import tidied

    return tidied(data) is None


def _bad(path: str, what: str, expected: str = "a whole image") -> SourceError:
    return SourceError(
        f"{path} {what}",
        expected=expected,
        next_step="Replace or remove it, or pack with --on-error skip to leave it out and have it reported",
    )
