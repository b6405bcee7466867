"""Read a zarr group by position: its metadata tell where bytes lie, and a raw shard is just those bytes.

The trap: the zarr library reads the index of a shard and every chunk that a sample touches, through a thread
of its own: right, and slow for one sample at a time. It is asked here only for columns of others that are
compressed, once, before anything is forked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles.errors import FormatError, MissingPackageError
from smallfiles.formats import provenance
from smallfiles.formats.blob import NAMES, Blob, BlobReader
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.reader import Store
from smallfiles.formats.zarr import writing as form
from smallfiles.samples import Buffer

_MOST_NUMBERS = 1 << 62
_MOST_RATIO = 1_100  # as in HDF5: what deflate can reach, rounded up


@dataclass(frozen=True)
class _Array:
    """What the metadata of an array in one dimension say.

    Args:
        folder: Where it lies.
        count: Its length.
        kind: Type of its numbers.
        chunk: Numbers per file.
        name: What the name of a file begins with; the number of the chunk follows.
        codecs: What was done to the bytes of a file.
        attributes: What its writer added.
    """

    folder: Path
    count: int
    kind: np.dtype[Any]
    chunk: int
    name: str
    codecs: list[Any]
    attributes: Any

    def file(self, number: int, access: Access = "mmap") -> ByteFile:
        """The file of a chunk, opened."""
        return ByteFile(self.folder / f"{self.name}{number}", access)


def _metadata(folder: Path) -> dict[str, Any]:
    """What a group or an array says of itself; {} if there is none."""
    path = folder / form.METADATA
    if not path.is_file():
        return {}
    file = ByteFile(path, "pread")
    try:
        found = json.loads(file.fetch(0, file.size))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is no JSON ({error})") from error
    if not isinstance(found, dict) or found.get("zarr_format") != 3:
        raise damaged(path, "it is no metadata of zarr's version 3")
    return found


def _array(folder: Path) -> _Array | None:
    found = _metadata(folder)
    if not found:
        return None
    try:
        (count,), (chunk,) = found["shape"], found["chunk_grid"]["configuration"]["chunk_shape"]
        encoding = found["chunk_key_encoding"]
        separator = encoding.get("configuration", {}).get("separator", "/")
        kind = np.dtype(str(found["data_type"])).newbyteorder("<")
        if (found["chunk_grid"]["name"], encoding["name"]) != ("regular", "default") or separator not in "/.":
            raise ValueError("another grid, or other names of chunks")
        if kind.kind not in "iu" or not 0 <= index(count) <= _MOST_NUMBERS >= index(chunk) >= 1:
            raise ValueError(f"{count} times {kind} in chunks of {chunk}")
        return _Array(
            folder, count, kind, chunk, f"c{separator}", list(found["codecs"]), found.get("attributes")
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unknown(folder, f"{type(error).__name__}: {error}") from error


def _unknown(folder: Path, what: str) -> FormatError:
    return FormatError(
        f"{folder} is not stored as samples are ({what})",
        expected="integers in one dimension, and those of data uncompressed, in shards or a single chunk",
        next_step="Write it in shards and without compressors (zarr.create_array), or pack the data here",
    )


def _numbers(array: _Array) -> np.ndarray:
    """All of a column: a view of its file, or what the library makes of it."""
    if not array.count:
        return np.zeros(0, array.kind)
    if array.codecs in (form.RAW, form.LITTLE) and array.chunk >= array.count:
        file = array.file(0)
        if file.size != array.chunk * array.kind.itemsize:
            raise damaged(file.path, f"it has {file.size:,} bytes for {array.chunk:,} numbers")
        return np.frombuffer(file.view, array.kind, array.count)
    stored = sum(path.stat().st_size for path in array.folder.rglob("*") if path.is_file())
    if array.count * array.kind.itemsize > stored * _MOST_RATIO:
        raise damaged(array.folder, f"it names {array.count:,} numbers, which are not stored")
    try:
        zarr = importlib.import_module("zarr")
    except ImportError as error:
        raise MissingPackageError.of("zarr", "formats", "zarr arrays in chunks or compressed") from error
    try:
        return np.asarray(zarr.open_array(str(array.folder), mode="r")[:])
    except Exception as error:  # the library and its codecs have no common exception
        raise damaged(array.folder, str(error).partition("\n")[0] or type(error).__name__) from error


class _Data:
    """The bytes of all samples as one run, whichever files they lie in."""

    def __init__(self, array: _Array, access: Access) -> None:
        self.path, self.size, self.shard = array.folder, array.count, array.chunk
        self._array, self._access = array, access
        self._chunk, self._tail = _layout(array)
        self._files: dict[int, ByteFile] = {}

    def file(self, number: int) -> ByteFile:
        """A shard, opened and compared with what its index must be."""
        found = self._files.get(number)
        if found is None:
            found = self._files[number] = self._array.file(number, self._access)
            self._check(found, min(self.shard, self.size - number * self.shard))
        return found

    def _check(self, file: ByteFile, used: int) -> None:
        stored = used + -used % self._chunk if self._chunk else self.shard
        end = stored + (self.shard // self._chunk * 16 if self._chunk else 0)
        right = file.size == end + self._tail  # else an index might be made that fills the memory
        if right and self._chunk:
            right = file.view[stored:end] == form.shard_index(used, self._chunk, self.shard).tobytes()
        if not right:
            raise damaged(file.path, "it does not hold its chunks one after the other, and their index")

    def where(self, start: int, stop: int) -> tuple[Store, int, int]:
        """The file of these bytes and their place in it; the run itself if they lie in several."""
        number = min(start, max(self.size - 1, 0)) // self.shard
        first = number * self.shard
        if stop > first + self.shard or not self.size:
            return self, start, stop
        return self.file(number), start - first, stop - first

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Store, int, int]]:
        while start < stop:
            end = min(stop, start - start % self.shard + self.shard)
            yield self.where(start, end)
            start = end

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`, joined."""
        return b"".join(store.read(first, last) for store, first, last in self._pieces(start, stop))

    def expect(self, start: int, stop: int) -> None:
        """Have the kernel fetch these bytes; see `ByteFile.expect`."""
        for store, first, last in self._pieces(start, stop):
            store.expect(first, last)


def _layout(array: _Array) -> tuple[int, int]:
    """Bytes of a chunk in a shard (0 without shards), and of the checksum behind the index."""
    if array.kind.itemsize == 1 and array.codecs in (form.RAW, form.LITTLE):
        return 0, 0
    with contextlib.suppress(KeyError, TypeError, IndexError, ValueError):
        chunk = index(array.codecs[0]["configuration"]["chunk_shape"][0])
        for inner in (form.RAW, form.LITTLE):
            for codecs, tail in ((form.CHECKED, form.CHECKSUM_BYTES), (form.LITTLE, 0)):
                same = array.codecs == form.sharded(chunk, inner, codecs) and array.kind.itemsize == 1
                if same and chunk > 0 == array.chunk % chunk:
                    return chunk, tail
    raise _unknown(array.folder, "compressed, or in shards of another kind")


class _Opened(Blob):
    """A group whose metadata were read; shards are opened when a sample in them is."""

    def __init__(self, path: Path, access: Access) -> None:
        group = _metadata(path)
        if group.get("node_type") != "group":
            raise FormatError(
                f"{path} holds no {form.METADATA} of a group",
                expected="a finished zarr group of version 3 with the arrays data, offsets and labels",
                next_step="Check the path; write one of version 2 again with zarr, or pack the data here",
            )
        found = {name: array for name in ("data", *NAMES) if (array := _array(path / name)) is not None}
        if "data" not in found:
            raise _unknown(path, "it has no array data")
        data = found.pop("data")
        self.data = _Data(data, access)
        record = data.attributes.get(form.ATTRIBUTE) if isinstance(data.attributes, dict) else None
        arrays = {name: _numbers(array) for name, array in found.items()}
        super().__init__(path, arrays, provenance.loads(json.dumps(record)))

    def rows(self) -> int:
        return len(self.array("offsets")) - 1

    def place(self, index: int) -> tuple[Store, int, int]:
        return self.data.where(*self.borders(index, self.data.size))

    def payload_bytes(self) -> int:
        return int(self.array("offsets").item(self.count))

    def about(self) -> dict[str, Any]:
        sizes = [file.stat().st_size for file in self.path.rglob("*") if file.is_file()]
        shards = -(-self.data.size // self.data.shard)
        return {**super().about(), "shards": shards, "files": len(sizes), "file_bytes": sum(sizes)}


class ZarrReader(BlobReader[_Opened]):
    """Random access to a zarr group; see `smallfiles.formats.zarr.open`."""

    format = "zarr"
    _outlives_fork = True

    def _open(self) -> _Opened:
        return _Opened(self.path, self._access)

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """File and byte range of a sample; None if it lies in two shards."""
        store, start, stop = self._place(self._checked(index))
        return (store.path, start, stop) if isinstance(store, ByteFile) else None
