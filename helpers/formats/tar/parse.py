"""Walk through the headers of any tar: ours, webdataset's, tarp's, GNU's, tarfile's.

Only regular files are members; folders and links are passed over. Nothing in a header is believed
before it was checked against the file, so a hostile tar costs a sentence, not memory or time.

The trap: `tarfile` and webdataset take a tar that was cut at a block border for a complete one. Here
the two blocks of zeros at the end must be there. Notebook 05 cuts a shard.

Source: POSIX.1-2001 (ustar, pax); GNU tar manual, "Basic Tar Format" (long names, base-256 numbers).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import DamagedFileError, FormatError
from helpers.formats import provenance
from helpers.formats.placed import Store
from helpers.formats.tar.headers import BLOCK_BYTES, COMMENT, RECORD_BYTES
from helpers.formats.tar.stores import peek

_MAX_EXTENDED_BYTES = 16 << 20
_OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_REGULAR, _WITHOUT_DATA = b"0\0 7", b"123456"


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in a tar: where its bytes are."""

    name: str
    offset: int
    size: int


class Walk:
    """All members of one tar, front to back; iterate once.

    Args:
        path: The tar, for messages.
        store: Its (unpacked) bytes.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self.provenance: dict[str, Any] = {}
        self._path, self._store = path, store
        self._extended: dict[str, str] = {}

    @property
    def is_ours(self) -> bool:
        """Whether this package wrote the tar; known from the first member on."""
        return self.provenance.get("package") == provenance.PACKAGE

    def __iter__(self) -> Iterator[Member]:
        position = 0
        while (block := self._header(position)) is not None:
            kind, data = block[156:157], position + BLOCK_BYTES
            size = self._size(block, position)
            if kind in _WITHOUT_DATA and kind:
                size = 0
            if data + size > self._store.size:
                raise self._damaged(position, f"names a member of {size:,} bytes, which go beyond the end")
            if kind in b"xXgLK":
                self._extend(kind, position, size)
            else:
                if kind in _REGULAR:
                    yield Member(self._name(block, position), data, size)
                self._extended = {}
            position = data + size + -size % BLOCK_BYTES

    def _header(self, position: int) -> bytes | None:
        """The header at `position`, checked; None at the end of the archive."""
        block = bytes(peek(self._store, position, BLOCK_BYTES))
        if len(block) < BLOCK_BYTES:
            raise self._damaged(position, "ends without the two blocks of zeros that end a tar")
        if block == _ZERO_BLOCK:
            self._check_end(position)
            return None
        stated = self._number(block[148:156], position)
        unsigned = sum(block) - sum(block[148:156]) + 8 * 32
        if stated != unsigned and stated != _signed(block):
            raise self._damaged(position, "has no valid header (its checksum is wrong)")
        return block

    def _check_end(self, position: int) -> None:
        """Two blocks of zeros, and nothing but zeros behind."""
        if bytes(peek(self._store, position + BLOCK_BYTES, BLOCK_BYTES)) != _ZERO_BLOCK:
            raise self._damaged(position, "has one block of zeros where a tar ends with two")
        if self.is_ours and self._store.size % RECORD_BYTES:
            raise self._damaged(self._store.size, "is cut in the zeros at its end")
        for start in range(position, self._store.size, 1 << 20):
            if any(peek(self._store, start, 1 << 20)):
                raise self._damaged(start, "has data behind the end of the archive")

    def _size(self, block: bytes, position: int) -> int:
        text = self._extended.get("size")
        if text is None or block[156:157] in b"xXgLK":
            return self._number(block[124:136], position)
        if not re.fullmatch(r"[0-9]{1,19}", text):
            raise self._damaged(position, f"has the size {text!r}")
        return int(text)

    def _number(self, field: bytes, position: int) -> int:
        if field[0] & 0x80:  # base 256; 0xff would be negative
            number = int.from_bytes(field[1:], "big")
            if field[0] != 0x80 or number >= 1 << 63:
                raise self._damaged(position, "has a number that is negative or absurd")
            return number
        octal = _OCTAL.match(field)
        if octal is None or (octal.end() != len(field) and field[octal.end()] != 0):
            raise self._damaged(position, f"has {field!r} where a number should be")
        return int(octal[1] or b"0", 8)

    def _name(self, block: bytes, position: int) -> str:
        name = self._extended.get("path")
        if any(keyword.startswith("GNU.sparse") for keyword in self._extended):
            raise self._sparse(position)
        if name is None:
            raw = block[:100].split(b"\0", 1)[0]
            prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
            name = _text(prefix + b"/" + raw if prefix else raw)
        while name.startswith("./"):
            name = name[2:].lstrip("/")
        return name

    def _extend(self, kind: bytes, position: int, size: int) -> None:
        """Read what a pax header or a GNU long name says of what follows."""
        if size > _MAX_EXTENDED_BYTES:
            raise self._damaged(position, f"has an extended header of {size:,} bytes")
        data = bytes(peek(self._store, position + BLOCK_BYTES, size))
        if kind == b"L":
            self._extended["path"] = _text(data.split(b"\0", 1)[0])
        elif kind == b"g":
            comment = self._records(data, position).get("comment", "")
            if comment.startswith(COMMENT):
                self.provenance = provenance.loads(comment.removeprefix(COMMENT))
        elif kind != b"K":
            self._extended.update(self._records(data, position))

    def _records(self, data: bytes, position: int) -> dict[str, str]:
        records: dict[str, str] = {}
        start = 0
        while start < len(data) and data[start]:
            digits, space, _ = data[start : start + 20].partition(b" ")
            length = int(digits) if digits.isdigit() and space else 0
            body = data[start + len(digits) + 1 : start + length]
            keyword, equals, value = body.partition(b"=")
            if not equals or not value.endswith(b"\n") or start + length > len(data):
                raise self._damaged(position, "has an extended header that cannot be read")
            records[_text(keyword)] = _text(value[:-1])
            start += length
        return records

    def _sparse(self, position: int) -> FormatError:
        return FormatError(
            f"{self._path} holds a sparse file at byte {position:,}",
            expected="plain files",
            next_step="Pack it again without tar's --sparse",
        )

    def _damaged(self, position: int, problem: str) -> DamagedFileError:
        return DamagedFileError(
            f"{self._path} {problem} (at byte {position:,} of {self._store.size:,})",
            expected="a complete tar",
            next_step="Copy or pack it again; the transfer was cut or the file was changed",
        )


def _signed(block: bytes) -> int:
    """The checksum as some old tars counted it, with signed bytes."""
    rest = block[:148] + b" " * 8 + block[156:]
    return sum(rest) - 256 * sum(byte > 127 for byte in rest)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
