"""Read shards where they lie in an object store, as fast as the network brings them.

    reader = objectstore.open("s3://course/train.tars")
    loader = make_loader(reader, LoaderConfig(order="stream", workers=4), transform=transform)

A stream knows which samples it will read, and in which order. So it asks for the parts of shards that hold
them before they are needed, several at once. It reads from twenty stretches of shards in turn, so that
classes that were packed one after the other are mixed, and a part of each lies in memory. Each block of a
part is compared with the digest taken while packing.

The trap: a request waits for 10 to 100 ms before its first byte, whatever its size. With one in flight the
network is idle nearly all the time; with many small ones the server is busy beginning answers. So a request
asks for 16 MiB, as the guidelines of Amazon S3 advise. Notebook 09 measures it.

Source: "Performance guidelines for Amazon S3" (byte-range fetches of 8 or 16 MB).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smallfiles import formats
from smallfiles.errors import DamagedFileError, ResourceError, UsageError
from smallfiles.formats import reader as formats_reader
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.tar import index
from smallfiles.formats.tar.reader import Shards, TarReader
from smallfiles.objectstore.catalog import Item, read_blocks
from smallfiles.objectstore.client import Store
from smallfiles.objectstore.config import PART_BYTES, StoreUrl
from smallfiles.objectstore.node_cache import NodeCache
from smallfiles.objectstore.requests import Extents, Numbers, Requests
from smallfiles.samples import Buffer, Reader

IN_FLIGHT = 4

STRETCH_PARTS = 3
"""Parts of a shard that one stream reads one after the other."""


def open(
    url: str, *, keep_bytes: int = 0, where: str | Path = "auto", in_flight: int = IN_FLIGHT
) -> RemoteTar:
    """Open pushed shards for streams; random access fetches whole blocks, 4 MiB for a sample of 100 kB.

    Args:
        url: Where they were pushed to: `s3://BUCKET/PREFIX`.
        keep_bytes: Keep shards of so many bytes on this node from the first epoch on.
        where: Where on this node: `auto`, or a directory.
        in_flight: Requests at once, in each process. A stream holds 16 MiB for each, and for each of the
            twenty stretches that it reads from in turn.

    Raises:
        NoObjectError: Nothing was pushed there, or not all of it.
        UsageError: There are no keys, or they are refused.
        ResourceError: There is no room on this node.
    """
    return open_store(Store(StoreUrl.parse(url)), keep_bytes=keep_bytes, where=where, in_flight=in_flight)


def open_store(
    store: Store, *, keep_bytes: int = 0, where: str | Path = "auto", in_flight: int = IN_FLIGHT
) -> RemoteTar:
    """`open` for a store whose server and keys the environment does not say."""
    if keep_bytes < 0 or in_flight < 1:
        raise UsageError(
            f"{keep_bytes} bytes to keep and {in_flight} requests in flight were asked for",
            expected="0 or more bytes, and 1 request or more",
            next_step="Choose other numbers",
        )
    return RemoteTar(store, NodeCache(store, keep_bytes, where), in_flight)


def open_anywhere(path: Path | str) -> Reader:
    """A packed file, or pushed shards by their URL, of which a `Path` keeps one slash only."""
    bare = str(path).removeprefix("s3:/")
    return formats.open(path) if bare == str(path) else open(f"s3://{bare.lstrip('/')}")


class RemoteShard:
    """The bytes of one shard in the store.

    Args:
        store: Where it is.
        item: What the manifest says of it.
    """

    def __init__(self, store: Store, item: Item) -> None:
        self._store, self._item = store, item
        self.path, self.size = Path(item.name), item.bytes
        self.block_bytes = item.digest.block_bytes
        self.step = item.blocks_of(PART_BYTES)

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`: their blocks in one request, each compared with its digest.

        Raises:
            DamagedFileError: One is not what was packed.
        """
        first, size = start // self.block_bytes, self.block_bytes
        data = read_blocks(self._store, self._item, first, -(-stop // size) - first)
        return memoryview(data)[start - first * size : stop - first * size].tobytes()

    def prefetch(self, start: int, stop: int) -> None:
        """Nothing: who knows what comes next reads by `RemoteTar.following`."""

    def block(self, number: int) -> Buffer:
        """A block, compared with its digest.

        Raises:
            DamagedFileError: It is not what was packed.
        """
        return read_blocks(self._store, self._item, number, 1)

    def blocks(self, first: int, stop: int) -> Buffer:
        """Some blocks, in one request, each compared with its digest.

        Raises:
            DamagedFileError: One is not what was packed.
        """
        return read_blocks(self._store, self._item, first, stop - first)


_Found: TypeAlias = "Buffer | ByteFile | BlockByBlock"


class RemoteShards(Shards):
    """What one process has opened: the indexes of all shards from this node, and their bytes far away."""

    def __init__(self, store: Store, cache: NodeCache, in_flight: int) -> None:
        folder, self.known = cache.begin(store)
        paths = [folder / item.name for item in self.known]
        indexes = [index.load(path, "mmap") for path in paths]
        for path, item, found in zip(paths, self.known, indexes, strict=True):
            index.check_size(path, item.bytes, found)
        super().__init__(paths, indexes, "pread")
        self.in_flight, self._remote, self._cache = in_flight, store, cache
        self._far = [RemoteShard(store, item) for item in self.known]
        self.pool = ThreadPoolExecutor(in_flight, "objectstore")
        weakref.finalize(self, self.pool.shutdown, wait=False, cancel_futures=True)

    def store(self, number: int) -> formats_reader.ByteSource:
        """A shard, from this node if it is kept here."""
        return self._cache.kept(self.known[number]) or self.far(number)

    def far(self, number: int) -> RemoteShard:
        """A shard in the store."""
        return self._far[number]

    def keeps(self, number: int) -> bool:
        """Whether a shard is kept on this node."""
        return self._cache.keeps(self.known[number])

    def extent(self, position: int) -> tuple[int, int, int]:
        """Shard, first byte and one after the last of a sample."""
        number, row = self.place(position)
        start = int(self.indexes[number].offsets[row])
        return number, start, start + int(self.indexes[number].sizes[row])

    def stretches(self) -> Numbers:
        """The first sample of each stretch, which one stream reads in order; and one after the last."""
        borders = [
            start
            + np.searchsorted(
                found.offsets, np.arange(0, far.size, far.step * far.block_bytes * STRETCH_PARTS)
            )
            for start, found, far in zip(self.starts, self.indexes, self._far, strict=False)
        ]
        return np.unique(np.concatenate([[0], *borders, self.starts[-1:]])).astype(np.int64)

    def requests(self, order: Sequence[int]) -> Requests:
        """What brings these samples, in this order."""
        numbers = np.asarray(order, np.int64)
        by_number = np.argsort(numbers)
        shards, first, stop = (np.zeros_like(numbers) for _ in range(3))
        cuts = np.searchsorted(numbers[by_number], self.starts)
        for shard in np.flatnonzero(np.diff(cuts)).tolist():
            own = by_number[cuts[shard] : cuts[shard + 1]]
            rows, found, step = (
                numbers[own] - self.starts[shard],
                self.indexes[shard],
                self.far(shard).block_bytes,
            )
            starts, sizes = found.offsets[rows], found.sizes[rows]
            shards[own], first[own] = shard, starts // step
            stop[own] = np.where(sizes > 0, -(-(starts + sizes) // step), starts // step)
        stretches = np.searchsorted(self.stretches(), numbers, "right")
        step = min((far.step for far in self._far), default=1)
        return Requests(numbers, Extents(shards, stretches, first, stop), step)

    def fetch(self, number: int, first: int, stop: int) -> _Found:
        """Some blocks of a shard; or all of it, from the file of this node if that has room for it."""
        far = self.far(number)
        try:
            if self.keeps(number):
                with suppress(ResourceError):
                    return self._cache.fetched(self.known[number], self._remote, self.pool)
            return far.blocks(first, stop)
        except DamagedFileError:  # it costs the samples of one block, and no others
            return BlockByBlock(far)


class BlockByBlock:
    """A shard that has no room on this node, or is damaged: read in order, one block after the other.

    Args:
        far: The shard.
    """

    def __init__(self, far: RemoteShard) -> None:
        self._far, self._number, self._block = far, -1, b""

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`."""
        size, parts = self._far.block_bytes, []
        for number in range(start // size, -(-stop // size)):
            if number != self._number:
                self._number, self._block = number, bytes(self._far.block(number))
            parts.append(self._block[max(0, start - number * size) : stop - number * size])
        return b"".join(parts)


class _Url(type(Path())):  # type: ignore[misc]
    """A path that begins with `s3://`, for messages."""

    def __str__(self) -> str:
        return str.replace(super().__str__(), "s3:/", "s3://", 1)


class RemoteTar(TarReader):
    """Random access to the samples of pushed shards, and streams of them.

    Args:
        store: Where they were pushed to.
        cache: What of them is kept on this node.
        in_flight: Requests at once, for each stream and each batch.
    """

    def __init__(self, store: Store, cache: NodeCache, in_flight: int) -> None:
        super().__init__(Path(), "pread")
        self.path = _Url(str(store.place))
        self._store, self._cache, self._in_flight = store, cache, in_flight

    def _open(self) -> RemoteShards:
        return RemoteShards(self._store, self._cache, self._in_flight)

    def _shards(self) -> RemoteShards:
        found = self._handle()
        assert isinstance(found, RemoteShards)
        return found

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the order asked for, with several requests in flight."""
        wanted = [self._checked(index) for index in indices]
        found: dict[int, Buffer] = {}
        for run in self._shards().pool.map(self._read_run, self._runs(sorted(set(wanted)))):
            found |= run
        return [found[index] for index in wanted]

    def _runs(self, order: Sequence[int]) -> list[list[int]]:
        """Samples that share blocks, put together: each block is fetched once."""
        shards, last = self._shards(), (-1, 0)
        runs: list[list[int]] = []
        for row in order:
            number, start, stop = shards.extent(row)
            size = shards.far(number).block_bytes
            if (number, start // size) > last:
                runs.append([])
            runs[-1].append(row)
            last = max(last, (number, (stop - 1) // size))
        return runs

    def _read_run(self, run: Sequence[int]) -> dict[int, Buffer]:
        extents = [self._shards().extent(row) for row in run]
        number, begin = extents[0][0], extents[0][1]
        data = memoryview(self._shards().store(number).read(begin, max(stop for _, _, stop in extents)))
        cuts = [data[start - begin : stop - begin].tobytes() for _, start, stop in extents]
        return dict(zip(run, cuts, strict=True))

    def shard_sizes(self) -> tuple[int, ...]:
        """Number of samples in each stretch of a shard, in stored order; loaders deal them whole."""
        return tuple(np.diff(self._shards().stretches()).tolist())

    def following(self, order: Sequence[int]) -> ReadAhead:
        """A reader for one that will read just these samples, in this order."""
        return ReadAhead(self, self._shards(), order)

    def close(self) -> None:
        """Let go of the store, and of what was kept on this node for it."""
        super().close()
        self._cache.end()

    def __repr__(self) -> str:
        return f"RemoteTar({self._store!r})"


class ReadAhead:
    """A reader of samples whose order is known: their parts are on the way before they are asked for.

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
        self._late: dict[int, Buffer | DamagedFileError] = {}
        self._whole = ThreadPoolExecutor(1, "objectstore-shard")  # one shard after the other is kept
        weakref.finalize(self, self._whole.shutdown, wait=False, cancel_futures=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __len__(self) -> int:
        return len(self._reader)

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """The next samples of the order; where one fails, `read` gives the others."""
        found = [self._attempt(index) for index in indices]
        for one in found:
            if isinstance(one, DamagedFileError):
                self._late = dict(zip(indices, found, strict=True))
                raise one
        return [data for data in found if not isinstance(data, DamagedFileError)]

    def read(self, index: int) -> Buffer:
        """Any sample, by blocks of its own, compared with their digests."""
        late = self._late.pop(index, None)
        if isinstance(late, DamagedFileError):
            raise late
        if late is not None:
            return late
        number, start, stop = self._shards.extent(index)
        return BlockByBlock(self._shards.far(number)).read(start, stop)

    def _attempt(self, index: int) -> Buffer | DamagedFileError:
        number, start, stop = self._shards.extent(index)
        needed = self._requests.of(index)
        for request in needed:
            if request not in self._held:
                self._held[request] = self._take(request)
        found: Buffer | DamagedFileError
        try:
            parts = [(self._requests.blocks(request), self._held[request].result()) for request in needed]
            step = self._shards.far(number).block_bytes
            found = _cut([(first * step, part) for (_, first, _), part in parts], start, stop)
        except DamagedFileError as error:
            found = error
        for request in self._requests.read(index):
            del self._held[request]
        return found

    def _take(self, request: int) -> Future[_Found]:
        """The next request of the plan; others behind it are begun."""
        self._ask()
        planned, future = self._coming.popleft()
        assert planned == request, f"{request} is read where {planned} was planned"
        self._ask()
        return future

    def _ask(self) -> None:
        while len(self._coming) < self._shards.in_flight:
            following = next(self._planned, None)
            if following is None:
                return
            blocks = self._requests.blocks(following)
            pool = self._whole if self._shards.keeps(blocks[0]) else self._shards.pool
            self._coming.append((following, pool.submit(self._shards.fetch, *blocks)))


def _cut(parts: Sequence[tuple[int, _Found]], start: int, stop: int) -> Buffer:
    """The bytes of a sample, copied, or its parts would live as long as the last sample in them.

    Args:
        parts: What was fetched, and where each begins.
        start: First byte of the sample.
        stop: One after its last byte.
    """
    views = []
    for begin, part in parts:
        if isinstance(part, ByteFile | BlockByBlock):
            return bytes(part.read(start, stop))
        views.append(memoryview(part)[max(0, start - begin) : stop - begin])
    return b"".join(views)
