"""Compare the bytes of a file with what its suffix says, and view those of an array.

A clone without git-lfs, a download that needed a login and a wrong `mv` all leave files of the right names
with the wrong contents. Packing reads the bytes anyway, so looking at the first few costs nothing.

The trap: a wrong alarm. Texts have no signature, and many formats have several: an mp3 may begin with tags or
with zeros, a wav with RF64, and HDF5 behind a user block. A suffix without an entry here is not checked.

`array_view` reads arrays of NumPy in files that a stranger may have written. `numpy.load` believes the
header: brackets in brackets end its parser, a shape of terabytes asks for the memory, and pickled objects
would run code. Here the header is compared with the bytes that follow before anything is reserved.

Sources: the specifications of the formats; `file` (magic); numpy.lib.format, versions 1.0 and 2.0 (3.0 is for
records whose fields have names beyond Latin-1). Notebook 03 packs a broken file, and notebook 13 packs
arrays.
"""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from smallfiles.errors import SourceError
from smallfiles.samples import Buffer

_SIGNATURES = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "GIF": rb"GIF8",
    "BMP": rb"BM",
    "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
    "WebP": rb"RIFF.{4}WEBP",
    "PPM": rb"P[1-7]",
    "WAV": rb"(?:RIFF|RF64|RIFX|BW64).{4}WAVE|riff\x2e\x91\xcf\x11|NIST_1A",
    "AVI": rb"RIFF.{4}AVI",
    "FLAC": rb"fLaC",
    "Ogg": rb"OggS",
    "AVIF": rb".{4}ftyp(?:avi[fs]|mif1|msf1)",
    "HEIF": rb".{4}ftyp(?:hei|hev)",
    "MP4": rb".{4}(?:ftyp|moov|mdat|free|skip|wide|pnot)",
    "Matroska": rb"\x1aE\xdf\xa3",
    "JPEG XL": rb"\xff\x0a|\0\0\0\x0cJXL ",
    "JPEG 2000": rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51",
    "OpenEXR": rb"v/1\x01",
    "NumPy": rb"\x93NUMPY",
    "zip": rb"PK(?:\x03\x04|\x05\x06)",
    "HDF5": rb"(?:.{512}|.{1024}|.{2048}|.{4096}|.{8192})?\x89HDF\r\n\x1a\n",
    "netCDF": rb"CDF[\x01\x02\x05]",
    "NIfTI": rb"\x5c\x01\0\0|\0\0\x01\x5c|\x1c\x02\0\0|\0\0\x02\x1c",
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh",
    "xz": rb"\xfd7zXZ\0",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    "Parquet": rb"PAR[1E]",
    "Arrow": rb"ARROW1|FEA1|\xff\xff\xff\xff",
    "PDF": rb".{0,1024}?%PDF",
    "DICOM": rb".{128}DICM|[\x02\x08]\0",
    "FITS": rb"SIMPLE  =",
    "PLY": rb"ply",
    "LAS": rb"LASF",
    "safetensors": rb".{7}\0\{",
    "pickle": rb"\x80[\x02-\x05]|L119547037146038801333356L",
    "tar": rb".{257}ustar",
    "sound with ID3 tags": rb"ID3",
    "MP3": rb"APETAGEX|\0*\xff[\xe2-\xff]",
    "MP3 after other bytes": rb".{0,65536}?\xff[\xe2-\xff]",
}
"""How the files of each kind begin."""

_PATTERNS = {kind: re.compile(pattern, re.DOTALL) for kind, pattern in _SIGNATURES.items()}
_STRONG = tuple(_PATTERNS)[:-2]  # the others are too short to be looked for where they are not expected
PICTURES = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WebP", "PPM")
_SOUNDS = ("WAV", "FLAC", "Ogg", "MP4", "sound with ID3 tags", "MP3")
_VIDEOS = ("MP4", "AVI", "Matroska", "Ogg")
_EXPECTED = {
    ".jpg .jpeg": ("JPEG",),
    ".png": ("PNG",),
    ".gif": ("GIF",),
    ".bmp": ("BMP",),
    ".tif .tiff": ("TIFF",),
    ".webp": ("WebP",),
    ".ppm": ("PPM",),
    ".wav": ("WAV",),
    ".flac": ("FLAC", "sound with ID3 tags"),
    ".ogg .opus": ("Ogg", "sound with ID3 tags"),
    ".mp3": ("MP3", "sound with ID3 tags", "MP3 after other bytes"),
    ".mp4 .mov .m4a .m4v": ("MP4",),
    ".avi": ("AVI",),
    ".mkv .webm": ("Matroska",),
    ".avif": ("AVIF",),
    ".heic .heif": ("HEIF", "AVIF"),
    ".jxl": ("JPEG XL",),
    ".jp2": ("JPEG 2000",),
    ".exr": ("OpenEXR",),
    ".npy": ("NumPy",),
    ".npz .zip": ("zip",),
    ".pt .pth": ("zip", "pickle", "tar"),
    ".h5 .hdf5": ("HDF5",),
    ".nc": ("netCDF", "HDF5"),
    ".nii": ("NIfTI",),
    ".gz": ("gzip",),
    ".bz2": ("bzip2",),
    ".xz": ("xz",),
    ".zst": ("zstd",),
    ".parquet": ("Parquet",),
    ".arrow .feather": ("Arrow", "Parquet"),
    ".pdf": ("PDF",),
    ".dcm": ("DICOM",),
    ".fits": ("FITS",),
    ".ply": ("PLY",),
    ".las": ("LAS",),
    ".safetensors": ("safetensors",),
}
_KINDS = {suffix: kinds for suffixes, kinds in _EXPECTED.items() for suffix in suffixes.split()}
_ALIKE = (PICTURES, _SOUNDS, _VIDEOS, ("NumPy", "zip"))
"""Kinds whose programs look at the bytes, not at the suffix, so that a wrong suffix does no harm."""

_POINTERS = {
    b"version https://git-lfs": ("git-lfs", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get ."),
}
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)


def pointer(data: Buffer) -> tuple[str, str] | None:
    """Return the program that left a text in place of the file, and the command that fetches the file.

    Args:
        data: The whole file.
    """
    return next((found for begin, found in _POINTERS.items() if data[: len(begin)] == begin), None)


def refuse_pointer(path: Path) -> None:
    """Raise SourceError for a file that is only the text which git-lfs or git-annex left for it."""
    with path.open("rb") as file:
        program, command = pointer(file.read(32)) or ("", "")
    if program:
        got = f"{path} is a pointer of {program}, not the file itself"
        raise SourceError(got, expected="the file", next_step=f"Fetch it where the clone is: {command}")


def is_web_page(data: Buffer) -> bool:
    """Return whether a file is an HTML page, as servers send it in place of a file."""
    return _PAGE.match(data) is not None


def expected(name: str) -> tuple[str, ...]:
    """Return the kinds that a file of this name may have; none if its suffix has no signature."""
    return _KINDS.get(name[name.rfind(".") :].lower(), ())


def kind_of(data: Buffer, kinds: tuple[str, ...] = _STRONG) -> str | None:
    """Return the kind of a file by its first bytes; None if it is none of these.

    Args:
        data: The whole file, or its first bytes.
        kinds: Where to look.
    """
    return next((kind for kind in kinds if _PATTERNS[kind].match(data)), None)


def alike(name: str, data: Buffer) -> str | None:
    """Return the kind of a file if programs that read its suffix read that kind, too.

    Args:
        name: The name of a file whose kind is not one of `expected(name)`.
        data: Its bytes.
    """
    own = expected(name)
    return kind_of(data, tuple(kind for kinds in _ALIKE if own[0] in kinds for kind in kinds))


NPY_SUFFIX = ".npy"
_MOST_HEADER = 12 + 10_000
"""The longest header that NumPy reads, in bytes."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def array_view(data: Buffer) -> npt.NDArray[Any]:
    """Return the array in the bytes of a `.npy` file, without a copy.

    Args:
        data: The whole file.

    Returns:
        The array; read-only if the bytes are.

    Raises:
        ValueError: The bytes are not a `.npy` file, are truncated, continue after the array, or contain
            pickled objects.
    """
    file = io.BytesIO(data[:_MOST_HEADER])
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version[0]}.{version[1]} of the format, where 1.0 and 2.0 can be read")
    try:
        shape, by_columns, dtype = _HEADERS[version](file)
    except (SyntaxError, TokenError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header makes no sense: {type(error).__name__}") from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{dtype} elements: pickled objects could run code, and others have bytes")
    count, start = math.prod(shape), file.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - start:
        raise ValueError(
            f"{dtype} {list(shape)} takes {count * dtype.itemsize:,} bytes, and {len(data) - start:,} follow"
        )
    return np.ndarray(shape, dtype, data, start, order="F" if by_columns else "C")
