"""Read shards where they are in an object store, as fast as the network delivers them.

    reader = objectstore.open("s3://course/train")
    loader = make_loader(reader, LoaderConfig(order="stream", workers=4), transform=transform)

A stream knows which samples it will read, and in which order. So it requests the parts of shards that hold
them before they are needed, several at once. It reads from twenty stretches of shards in turn, so that
classes that were packed one after the other are mixed; one part of each stretch is in memory. Each block of a
part is compared with the digest taken while packing.

Which requests fetch the samples of a known order is arithmetic, without a network (`Requests`). A request
fetches whole blocks, since each has a digest. Adjacent samples of one stretch come in few long requests; each
is made once, and its bytes are released after its last sample.

The traps: the last sample of a part nearly always reaches into the next part. A stream that is dealt single
parts of 16 MiB fetches one extra 4 MiB block per part. So the plan deals stretches of three parts. And a
request waits for 10 to 100 ms before its first byte, whatever its size. With one in flight the network is
idle nearly all the time; with many small ones the server spends its time on starting answers. So a request
asks for 16 MiB, as the guidelines of Amazon S3 advise. Notebook 09 measures it.

Source: "Performance guidelines for Amazon S3" (byte-range fetches of 8 or 16 MB).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from smallfiles import formats
from smallfiles.errors import DamagedFileError, ResourceError, StorageError, UsageError
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.reader import TableReader
from smallfiles.formats.table import ByteSource
from smallfiles.formats.tar import LocateShards, index
from smallfiles.formats.tar.index import Shards, TarTable
from smallfiles.objectstore.access import PART_BYTES, StoreUrl
from smallfiles.objectstore.catalog import Item, read_blocks
from smallfiles.objectstore.client import Store
from smallfiles.objectstore.node_cache import NodeCache
from smallfiles.samples import Buffer, Reader
from smallfiles.staging.copying import blocks_per_part
from smallfiles.storage import ReadingPool

Numbers: TypeAlias = npt.NDArray[np.int64]


class Extents(NamedTuple):
    """Where samples are; each field is an array with one number per sample.

    Args:
        shards: The shard.
        stretches: The stretch; no request reaches over the end of one.
        first: The block in which the sample begins.
        stop: One after the block in which it ends; equal to `first` for a sample without bytes.
    """

    shards: Numbers
    stretches: Numbers
    first: Numbers
    stop: Numbers


class Requests:
    """The requests for samples, numbered by position in the shards.

    Args:
        order: Numbers of the samples in the order in which they are read.
        extents: Where they are.
        step: Blocks per request, about.
    """

    def __init__(self, order: Numbers, extents: Extents, step: int) -> None:
        self._order = order
        by_number = np.argsort(self._order, kind="stable")
        by_number = by_number[(extents.stop > extents.first)[by_number]]
        self._numbers = self._order[by_number]
        shards, stretches, first, stop = (each[by_number] for each in extents)
        apart = (stretches[1:] != stretches[:-1]) | (first[1:] > stop[:-1])
        begins = np.flatnonzero(np.append(np.ones(min(len(first), 1), bool), apart))
        run = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(first))))
        self._shards, self._begins = shards[begins], first[begins]
        self._blocks = (np.maximum.reduceat(stop, begins) if len(begins) else begins) - self._begins
        self._pieces = np.maximum(1, np.rint(self._blocks / step)).astype(np.int64)
        self._before = np.cumsum(self._pieces) - self._pieces
        self._low, self._high = (self._holding(run, block) for block in (first, stop - 1))
        uses = np.zeros(int(self._pieces.sum()) + 1, np.int64)
        np.add.at(uses, self._low, 1)
        np.add.at(uses, self._high + 1, -1)
        self._uses = np.cumsum(uses)[:-1].tolist()

    def _holding(self, run: Numbers, block: Numbers) -> Numbers:
        """Return the request that fetches a block of a run.

        The requests of a run differ by at most one block in length.
        """
        within = ((block - self._begins[run] + 1) * self._pieces[run] - 1) // self._blocks[run]
        found: Numbers = self._before[run] + within
        return found

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[int]:
        """Yield each request once, in the order in which it is needed."""
        made = bytearray(len(self._uses))
        for sample in self._order.tolist():
            for number in self.of(sample):
                if not made[number]:
                    made[number] = 1
                    yield number

    def of(self, index: int) -> range:
        """Return the requests that fetch a sample: none for a sample without bytes."""
        place = int(np.searchsorted(self._numbers, index))
        if place == len(self._numbers) or self._numbers[place] != index:
            return range(0)
        return range(int(self._low[place]), int(self._high[place]) + 1)

    def blocks(self, number: int) -> tuple[int, int, int]:
        """Return what a request fetches: shard, first block, and end (exclusive)."""
        run = int(np.searchsorted(self._before, number, "right")) - 1
        piece, pieces = number - int(self._before[run]), int(self._pieces[run])
        blocks = int(self._blocks[run])
        first, stop = (int(self._begins[run]) + blocks * part // pieces for part in (piece, piece + 1))
        return int(self._shards[run]), first, stop

    def read(self, index: int) -> list[int]:
        """Count a sample as read; returns the requests that no later sample needs."""
        for number in self.of(index):
            self._uses[number] -= 1
        return [number for number in self.of(index) if not self._uses[number]]


IN_FLIGHT = 4

STRETCH_PARTS = 3
"""Parts of a shard that one stream reads one after the other."""


def open(
    url: str | Store, *, keep_bytes: int = 0, where: str | Path = "auto", in_flight: int = IN_FLIGHT
) -> RemoteTar:
    """Open pushed shards for streams; random access fetches whole blocks, 4 MiB for a sample of 100 kB.

    Args:
        url: Where they were pushed to: `s3://BUCKET/PREFIX`; or a store with keys of its own.
        keep_bytes: Size of the shards that are kept on this node from the first epoch on.
        where: Where on this node: `auto`, or a directory.
        in_flight: Requests in flight, per process. A stream holds 16 MiB for each request, and for each of
            the twenty stretches that it reads from in turn.

    Raises:
        NoObjectError: Nothing was pushed there, or a push has not ended.
        UsageError: There are no keys, or the store refuses them.
        ResourceError: This node has no room.
    """
    if keep_bytes < 0 or in_flight < 1:
        raise UsageError(
            f"{keep_bytes:,} bytes to keep and {in_flight:,} requests in flight",
            expected="0 or more bytes, and 1 or more requests",
            next_step="Choose other numbers",
        )
    store = url if isinstance(url, Store) else Store(StoreUrl.parse(url))
    return RemoteTar(store, NodeCache(store, keep_bytes, where), in_flight)


def open_anywhere(path: Path | str) -> Reader:
    """Open a packed file, or pushed shards by their URL; a `Path` keeps only one slash of `s3://`."""
    bare = str(path).removeprefix("s3:/")
    return formats.open(path) if bare == str(path) else open(f"s3://{bare.lstrip('/')}")


class RemoteShard:
    """The bytes of one shard in the store.

    Args:
        store: Where it is.
        item: What the manifest says of it.
    """

    is_stored = True

    def __init__(self, store: Store, item: Item) -> None:
        self._store, self._item = store, item
        self.path, self.size = Path(item.name), item.bytes
        self.block_bytes = item.digest.block_bytes
        self.step = blocks_per_part(item, PART_BYTES)

    def read(self, start: int, stop: int) -> Buffer:
        """Read the bytes from `start` to `stop`. All blocks that contain them are fetched in one request.

        Raises:
            DamagedFileError: A block differs from what was packed.
        """
        first, size = start // self.block_bytes, self.block_bytes
        data = self.blocks(first, -(-stop // size))
        return memoryview(data)[start - first * size : stop - first * size].tobytes()

    def prefetch(self, start: int, stop: int) -> None:
        """Do nothing: `RemoteTar.following` reads ahead."""

    def blocks(self, first: int, stop: int) -> Buffer:
        """Read some blocks in one request, and compare each with its digest.

        Raises:
            DamagedFileError: A block differs from what was packed.
        """
        return read_blocks(self._store, self._item, first, stop - first)


_Found: TypeAlias = "Buffer | ByteFile | BlockByBlock"


class RemoteShards(Shards):
    """What one process has opened: the indexes of all shards on this node, and their bytes in the store."""

    def __init__(self, store: Store, cache: NodeCache, in_flight: int) -> None:
        folder, self.known = cache.begin(store), cache.shards
        paths = [folder / item.name for item in self.known]
        indexes = [index.load(path, "mmap") for path in paths]
        for path, item, found in zip(paths, self.known, indexes, strict=True):
            index.check_size(path, item.bytes, found)
        super().__init__(paths, indexes, "pread")
        self.added = sorted(folder.glob("*.fields.arrow"))
        self.in_flight, self._remote, self._cache = in_flight, store, cache
        self._far = [RemoteShard(store, item) for item in self.known]
        self.pool = ReadingPool(in_flight, "objectstore")
        weakref.finalize(self, self.pool.abandon)
        borders = [
            start
            + np.searchsorted(
                found.blobs[""].offsets, np.arange(0, far.size, far.step * far.block_bytes * STRETCH_PARTS)
            )
            for start, found, far in zip(self.starts, indexes, self._far, strict=False)
        ]
        ends = np.concatenate([[0], *borders, self.starts[-1:]])
        self.stretches: Numbers = np.unique(ends).astype(np.int64)
        """The first sample of each stretch, which one stream reads in order; and one after the last."""

    def store(self, number: int) -> ByteSource:
        """Return a shard: the copy on this node if there is one, or else the shard in the store."""
        return self._cache.kept(self.known[number]) or self.far(number)

    def far(self, number: int) -> RemoteShard:
        """Return a shard in the store."""
        return self._far[number]

    def keeps(self, number: int) -> bool:
        """Check whether this node keeps a copy of a shard."""
        return self._cache.keeps(self.known[number])

    def extent(self, position: int) -> tuple[int, int, int]:
        """Return shard, first byte, and end (exclusive) of a sample's files, which are stored together."""
        number, row = self.place(position)
        starts, stops = _extents(self.indexes[number], np.array([row]))
        return number, int(starts[0]), int(stops[0])

    def requests(self, order: Sequence[int]) -> Requests:
        """Plan the requests that fetch these samples, in this order."""
        numbers = np.asarray(order, np.int64)
        by_number = np.argsort(numbers)
        shards, first, stop = (np.zeros_like(numbers) for _ in range(3))
        cuts = np.searchsorted(numbers[by_number], self.starts)
        for shard in np.flatnonzero(np.diff(cuts)).tolist():
            own = by_number[cuts[shard] : cuts[shard + 1]]
            starts, stops = _extents(self.indexes[shard], numbers[own] - self.starts[shard])
            step = self.far(shard).block_bytes
            shards[own], first[own] = shard, starts // step
            stop[own] = np.where(stops > starts, -(-stops // step), starts // step)
        stretches = np.searchsorted(self.stretches, numbers, "right")
        step = min((far.step for far in self._far), default=1)
        return Requests(numbers, Extents(shards, stretches, first, stop), step)

    def traffic(self, order: Numbers) -> tuple[int, int]:
        """Return the bytes that streams of these samples request, and those that they use."""
        requests, read, used = self.requests(order.tolist()), 0, 0
        for shard, first, stop in map(requests.blocks, range(len(requests))):
            far = self.far(shard)
            read += min(stop * far.block_bytes, far.size) - first * far.block_bytes
        cuts = np.searchsorted(order, self.starts).tolist()
        for found, start, own in zip(self.indexes, self.starts, pairwise(cuts), strict=False):
            rows = order[slice(*own)] - start
            used += sum(int(each.sizes[rows].sum()) for each in found.blobs.values())
        return read, used

    def fetch(self, number: int, first: int, stop: int) -> _Found:
        """Fetch some blocks of a shard, or the whole shard if this node keeps a copy and has room for it."""
        far = self.far(number)
        try:
            if self.keeps(number):
                try:
                    return self._cache.fetched(self.known[number], self._remote, self.in_flight)
                except StorageError:
                    raise
                except ResourceError:  # this node has no room for it
                    pass
            return far.blocks(first, stop)
        except DamagedFileError:  # only the samples of one block are lost
            return BlockByBlock(far)


def _extents(found: index.Index, rows: Numbers) -> tuple[Numbers, Numbers]:
    """First byte, and one after the last, of all files of these samples of a shard."""
    every = [(each.offsets, each.sizes) for each in found.blobs.values()]
    starts = np.minimum.reduce([offsets[rows] for offsets, _ in every])
    return starts, np.maximum.reduce([offsets[rows] + sizes[rows] for offsets, sizes in every])


class BlockByBlock:
    """A shard with a damaged block, read in order, one block after the other.

    Args:
        far: The shard.
    """

    def __init__(self, far: RemoteShard) -> None:
        self._far, self._number, self._block = far, -1, b""

    def read(self, start: int, stop: int) -> Buffer:
        """Read the bytes from `start` to `stop`."""
        size, parts = self._far.block_bytes, []
        for number in range(start // size, -(-stop // size)):
            if number != self._number:
                self._number, self._block = number, bytes(self._far.blocks(number, number + 1))
            parts.append(self._block[max(0, start - number * size) : stop - number * size])
        return b"".join(parts)


class _Url(type(Path())):  # type: ignore[misc]
    """A path that begins with `s3://`, for messages."""

    def __str__(self) -> str:
        return str.replace(super().__str__(), "s3:/", "s3://", 1)


class RemoteTable(TarTable):
    """The samples of pushed shards."""

    outlives_fork = False  # connections and threads belong to the process that opened it
    shards: RemoteShards

    def added_files(self) -> list[Path]:
        """Return the files with values that were added later, which are on this node."""
        return self.shards.added

    def shard_sizes(self) -> tuple[int, ...]:
        """Return the number of samples in each stretch of a shard; a loader never divides a stretch."""
        return tuple(np.diff(self.shards.stretches).tolist())


class RemoteTar(TableReader):
    """Random access to the samples of pushed shards, and streams of them.

    Args:
        store: Where they were pushed to.
        cache: What of them is kept on this node.
        in_flight: Requests in flight.
    """

    def __init__(self, store: Store, cache: NodeCache, in_flight: int) -> None:
        super().__init__(Path(), LocateShards("pread", (), False))
        self.path = _Url(str(store.place))
        self._store, self._cache, self._in_flight = store, cache, in_flight

    def _open(self) -> RemoteTable:
        shards = RemoteShards(self._store, self._cache, self._in_flight)
        return RemoteTable(self.path, shards, (), indexed=True, access="pread", member_suffixes=[])

    def _shards(self) -> RemoteShards:
        table = self._table()
        assert isinstance(table, RemoteTable)
        return table.shards

    def read_fields(self, indices: Sequence[int], fields: Sequence[str]) -> list[list[Buffer]]:
        """Return the blobs of several samples and fields, with several requests in flight."""
        wanted = [self._checked(index) for index in indices]
        order, default = sorted(set(wanted)), self._table().first
        stored = ["" if self._extents(field) is default else field for field in fields]
        found = self.following(order).read_fields(order, stored)
        return [[each[number] for number in np.searchsorted(order, wanted).tolist()] for each in found]

    def following(self, order: Sequence[int]) -> ReadAhead:
        """Return a reader that fetches only these samples, in this order."""
        return ReadAhead(self, self._shards(), order)

    def traffic(self, order: Numbers) -> tuple[int, int]:
        """Return the bytes that streams of these samples request in an epoch, and those that they use."""
        return self._shards().traffic(order)

    def close(self) -> None:
        """Close the store, and give up what is kept on this node for this reader."""
        super().close()
        self._cache.end()

    def __repr__(self) -> str:
        return f"RemoteTar({self._store!r})"


class ReadAhead:
    """A reader of samples in a known order, whose parts are requested before they are needed.

    Args:
        reader: Of all samples.
        shards: What this process opened.
        order: The samples that will be read.
    """

    def __init__(self, reader: RemoteTar, shards: RemoteShards, order: Sequence[int]) -> None:
        self._reader, self._shards = reader, shards
        self._requests = shards.requests(order)
        self._planned = iter(self._requests)
        self._coming: deque[tuple[int, Future[_Found]]] = deque()
        self._held: dict[int, Future[_Found]] = {}
        self._late: dict[int, dict[str, Buffer] | DamagedFileError] = {}
        self._whole = ReadingPool(1, "objectstore-shard")  # keeps one shard after the other
        weakref.finalize(self, self._whole.abandon)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __len__(self) -> int:
        return len(self._reader)

    def read_many(self, indices: Sequence[int], field: str = "") -> list[Buffer]:
        """Return one blob of each of the next samples; see `read_fields`."""
        return self.read_fields(indices, [field])[0]

    def read_fields(self, indices: Sequence[int], fields: Sequence[str]) -> list[list[Buffer]]:
        """Return the blobs of the next samples of the order; if one is damaged, `read` returns the others."""
        found = {index: self._attempt(index, fields) for index in indices}
        for one in found.values():
            if isinstance(one, DamagedFileError):
                self._late = found
                raise one
        whole = [each for each in found.values() if not isinstance(each, DamagedFileError)]
        return [[each[field] for each in whole] for field in fields]

    def read(self, index: int, field: str = "") -> Buffer:
        """Return any blob, fetched by itself unless `read_fields` has it."""
        late = self._late.get(index, {})
        if isinstance(late, DamagedFileError):
            raise late
        if field in late:
            return late.pop(field)
        number, start, stop = self._shards.span(index, field)
        return BlockByBlock(self._shards.far(number)).read(start, stop)

    def _attempt(self, index: int, fields: Sequence[str]) -> dict[str, Buffer] | DamagedFileError:
        number, start, stop = self._shards.extent(index)
        needed = self._requests.of(index)
        for request in needed:
            if request not in self._held:
                self._held[request] = self._take(request)
        found: dict[str, Buffer] | DamagedFileError
        try:
            parts = [(self._requests.blocks(request), self._held[request].result()) for request in needed]
            step = self._shards.far(number).block_bytes
            data = _cut([(first * step, part) for (_, first, _), part in parts], start, stop)
            spans = {field: self._shards.span(index, field)[1:] for field in fields}
            found = {field: data[first - start : last - start] for field, (first, last) in spans.items()}
        except DamagedFileError as error:
            found = error
        for request in self._requests.read(index):
            del self._held[request]
        return found

    def _take(self, request: int) -> Future[_Found]:
        """Return the next request of the plan, and start the requests after it."""
        self._request_more()
        planned, future = self._coming.popleft()
        assert planned == request, f"request {request} came before {planned}"
        self._request_more()
        return future

    def _request_more(self) -> None:
        while len(self._coming) < self._shards.in_flight:
            following = next(self._planned, None)
            if following is None:
                return
            blocks = self._requests.blocks(following)
            pool = self._whole if self._shards.keeps(blocks[0]) else self._shards.pool
            self._coming.append((following, pool.submit(self._shards.fetch, *blocks)))


def _cut(parts: Sequence[tuple[int, _Found]], start: int, stop: int) -> Buffer:
    """Copy the bytes of a sample out of fetched parts. A view would keep the parts in memory.

    Args:
        parts: The fetched parts, each with its first byte.
        start: First byte of the sample.
        stop: End of the sample (exclusive).
    """
    views = []
    for begin, part in parts:
        if isinstance(part, ByteFile | BlockByBlock):
            return bytes(part.read(start, stop))
        views.append(memoryview(part)[max(0, start - begin) : stop - begin])
    return b"".join(views)
