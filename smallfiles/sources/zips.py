"""Zip files as sources, read in place like tars: see `tarball`.

The directory at the end of the file is read by Python's zipfile; members are read here by position, so that
threads and forked processes may share a descriptor. They are stored or deflated, and checked by their CRC.

The trap: a zip of a few megabytes may claim to hold petabytes, also by naming the same bytes many times. So
members that overlap are refused, nothing is inflated beyond the size it claims, and all sizes together have
a limit. docs/recipes.md packs one.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smallfiles.errors import FormatError, first_few
from smallfiles.formats.bytefile import ByteFile, RawFile, damage_reported, damaged
from smallfiles.formats.tar import archive as tar
from smallfiles.formats.tar.members import MAX_CONTENT_BYTES, Link, Members
from smallfiles.progress import plural
from smallfiles.sources.scanning import in_flight

SUFFIX = ".zip"
_HEADER_BYTES = 30
_ENCRYPTED, _WINDOWS = 1, 0
_LONGEST_TARGET = 4096  # bytes of a path
Table = npt.NDArray[np.void]
_ROW = np.dtype([("offset", "<i8"), ("packed", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("method", "<u2")])


@dataclass(frozen=True)
class ZipArchive(tar.Archive):
    """The files of a zip, or of a folder of zips; `offsets` are those of the headers before them.

    Args:
        members: What its directory says of each member, by offset; of a folder by the name of the zip.
    """

    members: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class ZippedFile:
    """An open zip whose members are read by the position of their headers."""

    file: ByteFile
    members: Table

    def read_into(self, start: int, buffer: memoryview) -> None:
        """A whole member into a buffer of its size."""
        buffer[:] = self.read(start, start + len(buffer))

    def read(self, start: int, stop: int) -> bytes:
        """The first `stop - start` bytes of the member at `start`; all of them are checked.

        Raises:
            DamagedFileError: It is not what the directory says.
        """
        row = bisect_left(self.members["offset"], start)  # numpy would copy the whole column first
        _, packed, size, crc, method = self.members[row].tolist()
        header = bytes(self.file.read(start, start + _HEADER_BYTES))
        begin = start + _HEADER_BYTES + sum(struct.unpack("<HH", header[26:]))
        data, wanted = bytes(self.file.read(begin, begin + packed)), stop - start
        try:
            if method == zipfile.ZIP_DEFLATED:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, wanted + 1)
        except zlib.error:
            data = b""
        if wanted < size and len(data) > wanted:
            return data[:wanted]
        if not header.startswith(b"PK\3\4") or len(data) != size or zlib.crc32(data) != crc:
            raise damaged(self.file.path, f"the member at byte {start:,} is not what its directory says")
        return data


def index(path: Path) -> ZipArchive:
    """Index a zip by its directory, and read its annotations.

    Raises:
        FormatError: It is damaged, hostile, or needs a password or another method.
    """
    with damage_reported(path, "as a zip file:"):
        return _indexed(path, _directory(path))


def _indexed(path: Path, infos: list[zipfile.ZipInfo]) -> ZipArchive:
    found, files, links = Members(), list[zipfile.ZipInfo](), list[tuple[bytes, zipfile.ZipInfo]]()
    for info in infos:
        name = (info.orig_filename if "\0" in info.orig_filename else info.filename).encode()
        if info.create_system == _WINDOWS:  # whose .NET wrote backslashes for years
            name = name.replace(b"\\", b"/")
        if name.endswith(b"/"):
            found.folders.append(name.rstrip(b"/"))
        elif stat.S_ISLNK(info.external_attr >> 16):
            links.append((name, info))
        else:
            found.names.append(name)
            found.offsets.append(info.header_offset)
            found.sizes.append(info.file_size)
            files.append(info)
    stored = [*files, *(info for _, info in links)]
    rows = ((i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type) for i in stored)
    file, members = ByteFile(path, "pread"), np.sort(np.fromiter(rows, _ROW, len(stored)), order="offset")
    _refuse_unreadable(path, infos)
    ends = members["offset"] + _HEADER_BYTES + members["packed"]
    if (ends[:-1] > members["offset"][1:]).any():
        raise damaged(path, "members overlap, so that they unpack to more than they are")
    texts = [
        row
        for row, size in enumerate(found.sizes)
        if found.names[row].lower().endswith(tar.CONTENTS_OF) and size <= MAX_CONTENT_BYTES
    ]
    tar.KeptTexts(path, file.size).add(sum(found.sizes[row] for row in texts))
    opened = ZippedFile(file, members)
    read = in_flight(
        lambda row: opened.read(found.offsets[row], found.offsets[row] + found.sizes[row]), texts
    )
    found.contents.update(zip(texts, read, strict=True))
    for name, info in links:
        if info.file_size > _LONGEST_TARGET:
            raise damaged(path, f"the target of the link {info.filename} has {info.file_size:,} bytes")
        target = opened.read(info.header_offset, info.header_offset + info.file_size)
        found.links.append(Link(name, target.rstrip(b"\0"), False, info.header_offset))
    return ZipArchive(**vars(tar.columns_of(path, None, file.size, found)), members={"": members})


def _directory(path: Path) -> list[zipfile.ZipInfo]:
    """The entries; names in UTF-8 that are not marked as such, as macOS writes them, are taken so too."""
    file = ByteFile(path, "pread")
    for encoding in ("utf-8", None):
        try:
            with zipfile.ZipFile(RawFile(file), metadata_encoding=encoding) as archive:
                return archive.infolist()
        except UnicodeDecodeError:
            continue
    raise AssertionError("the second encoding has all bytes")


def _refuse_unreadable(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    odd = [
        info.filename for info in infos if info.flag_bits & _ENCRYPTED or info.compress_type not in methods
    ]
    if odd:
        raise FormatError(
            f"{path} has {plural(len(odd), 'member')} encrypted or compressed by a rare method: "
            f"{first_few(odd, len(odd))}",
            expected="stored or deflated members without a password",
            next_step="Unzip it to a local disk, and pack that folder",
        )
