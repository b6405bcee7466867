"""Names and headers of the members of a tar: what is written before the bytes of each file.

Keys become member names so that webdataset groups members correctly and every key is recovered exactly. It
cuts a name at the *first* dot of its last component, drops names with a line feed in a folder, and skips
first folders like `__this__` (its `base_plus_ext` and `tar_file_iterator`). Headers are built in about two
microseconds instead of tarfile's thirty. Time, owner and mode are constants, so equal samples give equal
bytes. A member that does not fit the plain `ustar` header (a name of more than 100 bytes or beyond ASCII, 8
GiB or more) gets an additional pax header.

The traps: `cat.v2.jpg` and `cat.v3.jpg` become one sample in webdataset. So a key that does not survive
these rules is written with percent escapes (`cat%2Ev2%2Ejpg.jpg`), and a `%` in the last component's stem
marks the name as escaped. And a tar has no table and no total; only two blocks of zeros show that it is
complete. Most tools read a shard that was cut at a block boundary without an error. Notebook 05 shows both.

Source: POSIX.1-2001, pax interchange format.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any
from urllib.parse import unquote

from smallfiles.formats import provenance

ANNOTATIONS = ("cls", "json", "txt", "meta")
"""Suffixes of the members that hold a sample's label, captions and JSON object."""

RESERVED = frozenset({*ANNOTATIONS, "idx"})
_CONTROL = r"\x00-\x1f\x7f"
_PLAIN = re.compile(
    rf"(?!__[^/]*__/|(?:[^/]*/)*\.\.?/)((?:[^/{_CONTROL}]+/)*[^/%.{_CONTROL}]+)\.([A-Za-z0-9]+)"
)
_IN_FOLDER = re.compile(rf"[%{_CONTROL}]")
_IN_STEM = re.compile(rf"[%.{_CONTROL}]")
_SKIPPED_FOLDER = re.compile(r"__[^/]*__/")
_SUFFIX = re.compile(r"[A-Za-z0-9]+")

BLOCK_BYTES = 512
RECORD_BYTES = 20 * BLOCK_BYTES
END = bytes(2 * BLOCK_BYTES)
COMMENT = "smallfiles "
"""Start of the comment that holds the provenance; every tar ignores the keyword `comment`."""

_ZEROS = bytes(BLOCK_BYTES)
_USTAR_MAX_BYTES = 8 << 30
_LAYOUT = (
    b"%b0000644\x000000000\x000000000\x00%b00000000000\x00%06o\x00 %b"
    + bytes(100)
    + b"ustar\x0000"
    + bytes(64)
    + b"0000000\x000000000\x00"
    + bytes(167)
)
_CONSTANT_SUM = sum(_LAYOUT.replace(b"%b", b"").replace(b"%06o\x00 ", b" " * 8))


def split_key(key: str, shared_stems: Container[str] = ()) -> tuple[str, str]:
    """Stem and suffix under which a sample's members are stored.

    Args:
        key: A valid key (see `smallfiles.keys`).
        shared_stems: Stems that several keys of the set have.

    Returns:
        (stem, suffix): the data's member is `stem.suffix`, the label's is `stem.cls`.
    """
    plain = _PLAIN.fullmatch(key)
    if plain is not None and plain[2].lower() not in RESERVED and plain[1] not in shared_stems:
        return plain[1], plain[2]
    return _escaped(key)


def _escaped(key: str) -> tuple[str, str]:
    folder, slash, base = key.rpartition("/")
    stem = _IN_STEM.sub(_percent, base)
    if "%" not in stem:
        stem = stem[:-1] + "".join(f"%{byte:02X}" for byte in stem[-1].encode())
    folder = _IN_FOLDER.sub(_percent, folder)
    if _SKIPPED_FOLDER.match(folder + slash):
        folder = "%5F" + folder[1:]
    suffix = base.rpartition(".")[2] if "." in base else ""
    if not _SUFFIX.fullmatch(suffix) or suffix.lower() in RESERVED:
        suffix = "bin"
    return folder + slash + stem, suffix


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def key_of(name: str) -> str:
    """The key of the member `name` of a shard that we wrote."""
    folder, slash, base = name.rpartition("/")
    stem = base.partition(".")[0]
    if "%" not in stem:
        return name
    return unquote(folder) + slash + unquote(stem)


def member(name: str, size: int) -> bytes:
    """Header of a regular file.

    Args:
        name: Member name; any valid UTF-8 without NUL.
        size: Bytes of data that follow.
    """
    if name.isascii() and len(name) <= 100 and size < _USTAR_MAX_BYTES:
        return _ustar(name.encode(), size)
    records = _record("path", name)
    if size >= _USTAR_MAX_BYTES:
        records += _record("size", str(size))
    short = name.encode("ascii", "replace")[:100]
    return _pax("././@PaxHeader", b"x", records) + _ustar(short, size % _USTAR_MAX_BYTES)


def origin(record: dict[str, Any]) -> bytes:
    """A pax global header with `record`, as `git archive` stores its commit."""
    return _pax("pax_global_header", b"g", _record("comment", COMMENT + provenance.dumps(record)))


def small_member(name: str, data: bytes) -> bytes:
    """A whole member: header, data and the zeros that fill its last block."""
    return member(name, len(data)) + data + padding(len(data))


def padding(size: int) -> bytes:
    """Zeros that fill the last block of `size` bytes of data."""
    return _ZEROS[: -size % BLOCK_BYTES]


def end(position: int) -> bytes:
    """End of the archive: two blocks of zeros, then zeros up to a whole record, as tar writes them."""
    return END + bytes(-(position + len(END)) % RECORD_BYTES)


def _ustar(name: bytes, size: int, kind: bytes = b"0") -> bytes:
    octal = b"%011o\0" % size
    checksum = _CONSTANT_SUM + sum(name) + sum(octal) + kind[0]
    return _LAYOUT % (name.ljust(100, b"\0"), octal, checksum, kind)


def _pax(name: str, kind: bytes, records: bytes) -> bytes:
    return _ustar(name.encode(), len(records), kind) + records + padding(len(records))


def _record(keyword: str, value: str) -> bytes:
    body = f" {keyword}={value}\n".encode()
    length = len(body)
    while length != len(body) + len(str(length)):  # the length counts its own digits
        length = len(body) + len(str(length))
    return str(length).encode() + body
