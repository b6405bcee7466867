"""Open an encoded picture whose size is known and whose pixels are made only where they are wanted.

A training crop needs on average half of a picture, and often at a third of its size. So the size is
read first, the part is chosen, and then only this part is decoded, at a half, a quarter or an eighth
where that still leaves more than enough pixels to scale from.

TurboJPEG 3 decodes a part of a JPEG. A JPEG can only be read from its top, and reading its codes is two
thirds of the work. Making pixels of them is the rest, and is done for the wanted columns and rows alone;
rows below the part are not even read. The library is found in the system (from 3.0 on), in a conda
environment, or inside the wheels of packages that bring it along. Its functions take handles and plain
numbers, so it is called without a compiler. Without it whole pictures are decoded.

The traps: the smooth upsampling of colours looks one pixel beyond a part, so a part cut out exactly
differs at its border from the same part of the whole picture; one block more on each side is decoded
here, and then both are equal. And decoding at a half already averages pixels, so scaling after it is not
quite what scaling the whole picture gives. How many pixels must be left over is Pillow's `reducing_gap`:
with 2 no difference is seen, and pictures like those of ImageNet (500 x 375) are never touched. Notebook 08
measures it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi
import numpy as np
from PIL import Image

from smallfiles.images.crops import Box, Header, read_header
from smallfiles.images.decoding import (
    PILLOW_RAISES,
    Pixels,
    check_size,
    decode_by_pillow,
    decode_reduced,
    not_a_picture,
    stored_pixels,
)
from smallfiles.samples import Buffer

_DECLARATIONS = """
typedef struct { int num; int denom; } tjscalingfactor;
typedef struct { int x; int y; int w; int h; } tjregion;
void *tj3Init(int initType);
void tj3Destroy(void *handle);
int tj3Set(void *handle, int param, int value);
int tj3DecompressHeader(void *handle, const unsigned char *jpegBuf, size_t jpegSize);
int tj3SetScalingFactor(void *handle, tjscalingfactor scalingFactor);
int tj3SetCroppingRegion(void *handle, tjregion croppingRegion);
int tj3Decompress8(void *handle, const unsigned char *jpegBuf, size_t jpegSize,
                   unsigned char *dstBuf, int pitch, int pixelFormat);
"""
_DECOMPRESS = 1
_RGB = 0
_STOP_ON_WARNING = 0
_SYSTEM = "libturbojpeg.so.0"
_WHEELS = (("pylibjxl", "_pylibjxl"), ("turbojpeg", "libturbojpeg"))
"""Packages on PyPI, and what their shared library is called; the first is 3 % faster (libjpeg-turbo 3.1)."""

ffi = cffi.FFI()
ffi.cdef(_DECLARATIONS)


@dataclass(frozen=True)
class Library:
    """TurboJPEG 3, loaded.

    Args:
        functions: The library as cffi sees it.
        origin: Where it came from: `system`, `conda` or the name of a package.
    """

    functions: Any
    origin: str


@functools.cache
def library() -> Library | None:
    """Return the first TurboJPEG 3 that is found, or None."""
    for origin, name in _candidates():
        try:
            functions = ffi.dlopen(name)
            functions.tj3SetCroppingRegion  # noqa: B018 - an older one lacks it
        except (OSError, AttributeError):
            continue
        return Library(functions, origin)
    return None


def _candidates() -> Iterator[tuple[str, str]]:
    yield "conda", str(Path(sys.prefix) / "lib" / _SYSTEM)
    yield "system", _SYSTEM
    for package, stem in _WHEELS:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        yield from (
            (package, str(file.locate()))
            for file in files
            if file.name.startswith(stem) and ".so" in file.name
        )


class _Handle(threading.local):
    """The decoder of this thread; for one image at a time."""

    def __init__(self) -> None:
        found = library()
        assert found is not None
        self.functions = found.functions
        self.region = ffi.new("tjregion *")
        self.scaling = ffi.new("tjscalingfactor *", {"num": 1, "denom": 1})
        self.renew()

    def renew(self) -> None:
        """Take a new decoder: one that gave up in a header would go on there with the next picture."""
        self.decoder = ffi.gc(self.functions.tj3Init(_DECOMPRESS), self.functions.tj3Destroy)
        self.functions.tj3Set(self.decoder, _STOP_ON_WARNING, 1)


@functools.cache
def _handle() -> _Handle:
    return _Handle()


def decode_part(data: Buffer, header: Header, box: Box, denominator: int = 1) -> Pixels | None:
    """Decode a part of a JPEG to the same pixels as in the whole picture.

    Args:
        data: The complete file.
        header: Its header.
        box: The part, in pixels of the whole picture.
        denominator: 1, or 2, 4, 8 to get the part at a half, a quarter, an eighth of its size.

    Returns:
        uint8, rows x columns x 3, perhaps a view of something larger; None if the library refuses.
    """
    if not header.complete:
        return None
    own = _handle()
    left, right = _columns(header, box)
    region = own.region
    region.x, region.y = left // denominator, box.top // denominator
    region.w = -(-right // denominator) - region.x
    region.h = max(1, box.height // denominator)
    own.scaling.denom = denominator
    pixels = np.empty((region.h, region.w, 3), np.uint8)
    if not _decompressed(own, data, pixels):
        own.renew()
        return None
    first = box.left // denominator - region.x
    return pixels[:, first : first + max(1, box.width // denominator)]


def _columns(header: Header, box: Box) -> tuple[int, int]:
    """First and last column to decode: whole blocks, and one more where colours are upsampled.

    At least one block: of less than three pixels of colour the decoder makes no smooth transition.
    """
    block = header.block_width
    margin = 1 if block > 8 else 0
    left = max(0, min(box.left - margin, header.width - block)) // block * block
    return left, min(header.width, max(box.left + box.width + margin, left + block))


def _decompressed(own: _Handle, data: Buffer, pixels: Pixels) -> bool:
    tj, decoder = own.functions, own.decoder
    source = ffi.from_buffer("unsigned char[]", data)
    target = ffi.from_buffer("unsigned char[]", pixels, require_writable=True)
    return not (
        tj.tj3DecompressHeader(decoder, source, len(source))
        or tj.tj3SetScalingFactor(decoder, own.scaling[0])
        or tj.tj3SetCroppingRegion(decoder, own.region[0])
        or tj.tj3Decompress8(decoder, source, len(source), target, 0, _RGB)
    )


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
        """Decode the pixels of a part that will be scaled to `rows` x `columns`.

        A JPEG is decoded at a reduced size if that still gives at least `REDUCING_GAP` times the pixels that
        scaling needs in each direction.

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
        if library() is not None:
            found = decode_part(self.data, self.header, box, denominator)
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
    """Return the largest denominator for decoding that leaves enough pixels to scale from."""
    spare = min(box.height / rows, box.width / columns) / REDUCING_GAP
    return next((each for each in _DENOMINATORS if spare >= each), 1)
