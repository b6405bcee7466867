"""A part of a JPEG through TurboJPEG 3: only the pixels that are wanted leave the decoder.

A JPEG can only be read from its top, and reading its codes is two thirds of the work. Making pixels of
them is the rest, and is done here for the wanted columns and rows alone; rows below the part are not
even read.

The library is found in the system (from 3.0 on), in a conda environment, or inside the wheels of
packages that bring it along. Its functions take handles and plain numbers, so it is called without a
compiler. Without it `smallfiles.images` decodes whole pictures.

The trap: the smooth upsampling of colours looks one pixel beyond a part, so a part cut out exactly
differs at its border from the same part of the whole picture; one block more on each side is decoded
here, and then both are equal. Notebook 08 teaches it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from smallfiles.images.crops import Box
from smallfiles.images.decoding import Pixels
from smallfiles.images.header import Header
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
    """The first TurboJPEG 3 found; None where there is none."""
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
    """The pixels of a part of a JPEG, equal to those of the whole picture.

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
