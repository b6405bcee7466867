"""What became of an image's bytes: decoded, encoded again, spelled out, or another image's.

The trap: a picture that was decoded and saved again looks the same, is another file, and has lost a
little quality; nobody can compare it with its source any more.
"""

from __future__ import annotations

import io

from exercises.checks.ex03_pack_arrow.folders import Truth


def bytes_problem(name: str, expected: bytes, given: bytes | None, truth: Truth) -> tuple[str, str]:
    """What was got, and the diagnosis.

    Args:
        name: Of the image.
        expected: Bytes of its file.
        given: What the packed file holds; not equal to `expected`.
        truth: The folder, to recognise another image's bytes.
    """
    if given is None:
        return "null", "the bytes of this image are lost"
    if not given:
        return "no bytes", "the file was opened, but nothing was read from it"
    got = f"{len(given):,} bytes"
    if given.startswith((b"b'", b'b"')):
        return got, "str() of bytes gives their Python spelling; store what read_bytes() gives"
    if given.endswith(name.encode()):
        return got, "the path of the image was stored, not what is in it"
    if expected.startswith(given):
        return got, "the image is cut short"
    if not given.startswith((b"\xff\xd8", b"\x89PNG", b"RIFF")):
        size = _size(expected)
        if size and len(given) in (size * 3, size):
            return got, "these are decoded pixels, ten times the size; store the file as it is"
        return got, "these are not the bytes of the file; store what read_bytes() gives"
    if any(truth.data(other) == given for other in truth.names if other != name):
        return got, "these are the bytes of another image: names and images went out of step"
    return got, "the image was decoded and encoded again, which loses quality; store the file as it is"


def _size(data: bytes) -> int:
    """Pixels of an image; 0 if it is none."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return int(image.width * image.height)
    except (OSError, ValueError):
        return 0
