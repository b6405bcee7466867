"""Find every value of an LMDB file once, and read by position from then on.

A few NumPy gathers over whole levels of the tree find all values: half a second for 1.28 million entries.
Every number in a page is checked against the page and the file before it is used.

The trap: a tree can lead in a circle, or name one page a thousand times, and then a file of a kilobyte would
fill the memory. A page that is named twice is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smallfiles import kinds
from smallfiles.errors import FormatError
from smallfiles.formats import provenance
from smallfiles.formats.blob import NAMES, Blob
from smallfiles.formats.bytefile import ByteFile, damaged
from smallfiles.formats.lmdb import writing as form
from smallfiles.formats.placed import FileReader
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Buffer

_Places = npt.NDArray[np.int64]
_KINDS = 0x6F  # bits for the kind of a page; a process that writes uses the others
_UNSUPPORTED = 6  # flags of nodes: a nested database, several values for one key
_PAGES_AT_ONCE = 256
_DEEPEST = 32
_PAGE_SIZES = tuple(1 << power for power in range(9, 16))
_CHECKED = 4096
_HEAD_BYTES = 16


@dataclass(frozen=True)
class _Entries:
    """Where keys and values are in the file, in the order of the keys."""

    keys: _Places
    key_sizes: _Places
    starts: _Places
    sizes: _Places

    def last(self, count: int) -> range:
        """The last `count` rows, or all."""
        return range(max(0, len(self.keys) - count), len(self.keys))

    def key(self, file: ByteFile, index: int) -> bytes:
        start = self.keys.item(index)
        return bytes(file.view[start : start + self.key_sizes.item(index)])


class _Tree:
    """The tree as of the last finished transaction."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._bytes = np.frombuffer(file.view, np.uint8)
        self._words = self._bytes[: file.size // 2 * 2].view("<u2")
        self._page_bytes, self._depth, self._count, self._root = self._meta()

    def _meta(self) -> tuple[int, int, int, int]:
        """Page size, levels, entries and root, from the later of the two meta pages."""
        first = self._meta_at(0)
        page_bytes = first[4] if first else 0
        second = self._meta_at(page_bytes) if page_bytes in _PAGE_SIZES else None
        if first is None or second is None:
            raise FormatError(
                f"{self._file.path} is no LMDB file for this kind of machine, or is unfinished",
                expected="two meta pages: data version 1, little-endian, 64 bits",
                next_step="Check the path, or copy or pack it again",
            )
        found = max(first, second, key=lambda meta: meta[-1])
        return page_bytes, found[14], found[18], found[19]

    def _meta_at(self, place: int) -> tuple[int, ...] | None:
        place += form.HEAD.size
        if place + form.META.size > self._file.size:
            return None
        found = form.META.unpack_from(self._file.view, place)
        return found if found[:2] == (form.MAGIC, form.VERSION) else None

    def entries(self) -> _Entries:
        """All of them.

        Raises:
            FormatError: Values are databases, or keys have several values.
            DamagedFileError: The tree cannot be right.
        """
        pages = np.array([] if self._root == form.NO_PAGE else [min(self._root, form.NO_PAGE >> 2)], np.int64)
        if self._depth > _DEEPEST:
            raise self._damaged(f"its tree has {self._depth} levels")
        for _ in range(self._depth - 1):
            half = self._nodes(pages, form.BRANCH)[0] >> 1
            pages = self._number(half) | self._words[half + 2].astype(np.int64) << 32
        self._check_pages(pages)
        for page in pages.tolist():
            self._file.prefetch(page * self._page_bytes, (page + 1) * self._page_bytes)
        parts = [self._leaves(pages[at : at + _PAGES_AT_ONCE]) for at in range(0, len(pages), _PAGES_AT_ONCE)]
        columns = zip(*parts, strict=True) if parts else [[np.zeros(0, np.int64)]] * 4
        found = _Entries(*(np.concatenate(column) for column in columns))
        if len(found.keys) != self._count:
            raise self._damaged(f"its tree has {len(found.keys):,} entries of {self._count:,}")
        return found

    def _damaged(self, what: str) -> FormatError:
        return damaged(self._file.path, what)

    def _number(self, half: _Places) -> _Places:
        """32 bits at twice these places."""
        return self._words[half].astype(np.int64) | self._words[half + 1].astype(np.int64) << 16

    def _check_pages(self, pages: _Places) -> None:
        whole = self._file.size // self._page_bytes
        if ((pages < 2) | (pages >= whole)).any() or len(np.unique(pages)) < len(pages):
            raise self._damaged("its tree leads out of the file, or to the same page twice")

    def _nodes(self, pages: _Places, kind: int) -> tuple[_Places, _Places]:
        """Places of the nodes in some pages, and where the page of each ends."""
        self._check_pages(pages)
        places = pages * self._page_bytes
        half = places >> 1
        lower, upper = (self._words[half + word].astype(np.int64) for word in (6, 7))
        counts = (lower - form.HEAD.size) >> 1
        if (
            (self._words[half + 5] & _KINDS != kind)
            | (counts < 0)
            | (lower > upper)
            | (upper + 8 * counts > self._page_bytes)
        ).any():
            raise self._damaged("a page of its tree is of another kind")
        first = np.repeat(places, counts)
        number = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = self._words[(first >> 1) + form.HEAD.size // 2 + number].astype(np.int64)
        ends = first + self._page_bytes
        if ((offsets < np.repeat(upper, counts)) | (offsets + 8 > self._page_bytes) | (offsets & 1)).any():
            raise self._damaged("an entry of its tree is outside its page")
        return first + offsets, ends

    def _leaves(self, pages: _Places) -> tuple[_Places, _Places, _Places, _Places]:
        nodes, ends = self._nodes(pages, form.LEAF)
        half = nodes >> 1
        sizes, flags, key_sizes = self._number(half), self._words[half + 2], self._words[half + 3]
        if (flags & _UNSUPPORTED).any():
            raise FormatError(
                f"{self._file.path} holds nested databases, or several values for one key",
                expected="one value per key",
                next_step="Copy the database that you want with: mdb_dump -s NAME OLD | mdb_load NEW",
            )
        keys, apart = nodes + 8, (flags & form.OWN_PAGES).astype(bool)
        starts = keys + key_sizes
        if (starts + np.where(apart, 8, sizes) > ends).any():
            raise self._damaged("a key or a value of its tree reaches beyond its page")
        numbers = self._bytes[starts[apart, None] + np.arange(8)].view("<u8")[:, 0]
        starts[apart] = (
            np.minimum(numbers, form.NO_PAGE >> 24).astype(np.int64) * self._page_bytes + form.HEAD.size
        )
        if (starts + sizes > self._file.size).any():
            raise self._damaged("a value is beyond its end")
        return keys, key_sizes.astype(np.int64), starts, sizes


class _Opened(Blob):
    """Where the samples are; files of other programs have no arrays, so these are made up."""

    def __init__(self, file: ByteFile) -> None:
        found = _Tree(file).entries()
        names = [found.key(file, row).decode("utf-8", "replace") for row in found.last(len(NAMES) + 1)]
        rows = dict(zip(names, found.last(len(NAMES) + 1), strict=True))
        self.layout = "indexed" if form.PROVENANCE in rows else "foreign"
        if self.layout == "indexed":
            arrays = {name: _numbers(file, found, rows[name], name) for name in NAMES if name in rows}
            record = provenance.loads(_numbers(file, found, rows[form.PROVENANCE], "_data").tobytes())
        else:
            _refuse_non_images(file, found)
            arrays, record = _foreign_arrays(file, found), {}
        samples = len(found.starts) - (len(arrays) + 1 if record else 0)
        self._starts, self._sizes = found.starts[:samples], found.sizes[:samples]
        super().__init__(file, arrays, record)

    def rows(self) -> int:
        return len(self._starts)

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        start = self._starts.item(index)
        return self.file, start, start + self._sizes.item(index)

    def payload_bytes(self) -> int:
        return int(self._sizes.sum())


def _numbers(file: ByteFile, found: _Entries, row: int, name: str) -> np.ndarray:
    """One of our arrays, as a view of the file."""
    kind = np.dtype("u1" if name.endswith("_data") else "<i8" if name == "labels" else "<u8")
    return np.frombuffer(file.view, kind, found.sizes.item(row) // kind.itemsize, found.starts.item(row))


def _refuse_non_images(file: ByteFile, found: _Entries) -> None:
    """Check values before any is returned: pickles and protobufs are no samples.

    A parallel file system must fetch a page for each check. So in a large file only values with an odd size
    or key are checked here, and each of the others when it is read.
    """
    if not len(found.starts):
        raise damaged(file.path, "it has no entries")
    for row in _suspects(file, found):
        start = found.starts.item(row)
        if not _is_image(file.view[start : start + min(found.sizes.item(row), _HEAD_BYTES)]):
            raise _no_image(file.path, found.key(file, row))


def _suspects(file: ByteFile, found: _Entries) -> list[int]:
    count = len(found.starts)
    if count <= _CHECKED:
        return list(range(count))
    by_size, own = np.argsort(found.sizes, kind="stable"), [found.key(file, row) for row in range(count)]
    spread = np.linspace(0, count - 1, _CHECKED // 4).astype(int)
    kept = [row for row, key in enumerate(own) if key.startswith(b"__")]
    return sorted({*spread.tolist(), *by_size[:64].tolist(), *by_size[-64:].tolist(), *kept})


def _is_image(data: Buffer) -> bool:
    return kinds.kind_of(data[:_HEAD_BYTES], kinds.PICTURES) is not None


def _no_image(path: Path, key: bytes) -> FormatError:
    return FormatError(
        f"{path} holds {ascii(key)[1:]}, which is no encoded image",
        expected="an encoded image for each key, or a file that was packed here",
        next_step="Write the images out with the program that wrote it (pickles and protobufs are "
        "not opened here), then pack that folder",
    )


def _foreign_arrays(file: ByteFile, found: _Entries) -> dict[str, np.ndarray]:
    """The arrays for a file of another program: its keys, and no targets."""
    count = len(found.starts)
    warnings.warn(
        f"{file.path}: {plural(count, 'sample')} without a target: label {UNLABELLED}", stacklevel=5
    )
    keys = [found.key(file, row) for row in range(count)]
    offsets = np.concatenate([[0], np.cumsum(found.key_sizes)]).astype(np.uint64)
    data = np.frombuffer(b"".join(keys), np.uint8)
    return {"labels": np.full(count, UNLABELLED), "key_data": data, "key_offsets": offsets}


class LMDBReader(FileReader[_Opened]):
    """Random access to an LMDB file; see `smallfiles.formats.lmdb.open`."""

    format = "lmdb"
    _outlives_fork = True

    def read(self, index: int) -> Buffer:
        return self._image(index, super().read(index))

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        return [
            self._image(index, data) for index, data in zip(indices, super().read_many(indices), strict=True)
        ]

    def _image(self, index: int, data: Buffer) -> Buffer:
        """A value of another program must be an image; one of ours may be anything."""
        if self._handle().layout == "foreign" and not _is_image(data):
            raise _no_image(self.path, self.key(index).encode())
        return data

    def _open(self) -> _Opened:
        path = self.path / "data.mdb" if self.path.is_dir() else self.path
        return _Opened(ByteFile(path, self._access))
