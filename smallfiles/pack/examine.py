"""Look at a sample's bytes before they are packed: a broken image found now costs a minute.

The header check is nearly free (2 µs). It finds empty files, files of another kind than their suffix says,
pointers of git-lfs, and JPEGs that were cut off. Decoding (3 ms) finds what any decoder can find, by the same
code as training. Arrays of NumPy (.npy) are decoded too; samples of any other kind are counted, and the
report says how many.
Formats: see `kinds`; a JPEG ends with FF D9 (ITU-T T.81 B.1.1.3), perhaps followed by padding.

The trap: a preview in the header ends with FF D9 too, so half a photograph has one; only an end marker
behind the header counts. Notebook 03 shows what it finds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from smallfiles import kinds, npy
from smallfiles.errors import SmallfilesError, SourceError
from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.progress import note

Examine = Callable[[str, memoryview], bool]
"""Whether EXIF says to turn it; raises a SourceError that names the path if its bytes cannot be packed."""

_END_OF_IMAGE = b"\xff\xd9"
_EXIF = b"Exif\0\0"
_EXIF_BEGINS_WITHIN = 64  # behind the start marker, or behind a JFIF segment of 18 bytes
_EXIF_BYTES = 1024
_ORIENTATION = 0x0112


def examiner(level: str) -> Examine:
    """The check of a level: `none`, `header` or `decode`."""
    if level == "none":
        return _nothing
    return partial({"header": check_header, "decode": check_decode}[level], noted=set())


def _nothing(path: str, data: memoryview) -> bool:
    """Take everything, as it is."""
    return False


def check_header(path: str, data: memoryview, noted: set[str] | None = None) -> bool:
    """Refuse empty files, files that are not of the kind that their suffix says, and JPEGs that are cut off.

    Args:
        path: The name of the file, with its suffix.
        data: All of its bytes.
        noted: Wrong suffixes that a note has named already; None notes nothing.

    Returns:
        Whether it is a JPEG that says in EXIF that viewers should turn or mirror it.

    Raises:
        SourceError: What is wrong, with the path.
    """
    if not len(data):
        raise _bad(path, "is empty (0 bytes)")
    head = bytes(data[:_EXIF_BEGINS_WITHIN])
    is_jpeg = head.startswith(b"\xff\xd8\xff") and path.lower().endswith(IMAGE_SUFFIXES)
    if not (is_jpeg and path.lower().endswith((".jpg", ".jpeg"))):  # nearly all files are
        _check_kind(path, data, noted)
    if not is_jpeg:
        return False
    if data[-2:] != _END_OF_IMAGE and _was_cut_off(data):
        raise _bad(path, "is a JPEG that was cut off (no end-of-image marker)")
    return _EXIF in head and _is_rotated(data, head.index(_EXIF) + len(_EXIF))


def _check_kind(path: str, data: memoryview, noted: set[str] | None) -> None:
    """Raise SourceError for a file whose first bytes are not those of its suffix."""
    if pointer := kinds.pointer(data):
        program, command = pointer
        raise _bad(
            path, f"is a pointer of {program}; fetch the file itself where the clone is: {command}", "data"
        )
    own = kinds.expected(path)
    if not own or kinds.kind_of(data, own):
        return
    if kind := kinds.alike(path, data):
        misnamed = f"{kind} as {path.rpartition('.')[2]}"
        if noted is not None and misnamed not in noted:
            noted.add(misnamed)
            note(f"{path} holds {kind}, not {own[0]}: it is packed as it is, like others of this kind")
        return
    if kinds.is_web_page(data):
        raise _bad(
            path, f"is a web page (HTML), not {own[0]}; download it again, logged in if need be", own[0]
        )
    kind = kinds.kind_of(data)
    begin = bytes(data[:8])
    raise _bad(path, f"holds {kind}" if kind else f"is not {own[0]} (it begins with {begin!r})", own[0])


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


def check_decode(path: str, data: memoryview, noted: set[str] | None = None) -> bool:
    """Refuse what does not decode to the last pixel, without a warning.

    Args:
        path: The name of the file, with its suffix.
        data: All of its bytes.
        noted: As for `check_header`.

    Returns:
        As `check_header`.

    Raises:
        SourceError: What is wrong, with the path.
    """
    rotated = check_header(path, data, noted)
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
