"""Read many small files at once and hand them on in order, within bounded memory.

On a parallel file system an open costs a round trip of a millisecond or more. One reader that waits
for each is idle nearly all the time; 32 of them hide the wait. Threads suffice, since system calls
release the interpreter's lock. Samples travel in chunks of about 1 MiB, so that the hand-over
between threads costs little where opens are fast (a warm page cache, a local disk).

The trap: a sample's bytes are a view of a chunk's buffer, and one sample that is kept keeps all of its
chunk. A buffer is used again when nobody holds a sample of it. Notebook 01 measures the effect.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import xxhash

from smallfiles.errors import ResourceError, SmallfilesError, SourceError
from smallfiles.pack.examine import Examine
from smallfiles.samples import ByteStore

CHUNK_BYTES = 1 << 20
CHUNK_SAMPLES = 32
WINDOW_BYTES = 96 << 20
_USUAL_BYTES = CHUNK_BYTES + CHUNK_SAMPLES


class Paths(Protocol):
    """Paths that are made into strings a slice at a time: a million of them never exist at once."""

    def __getitem__(self, span: slice) -> Sequence[str]: ...


class Read(NamedTuple):
    """One sample that was read, or the reason why it could not be.

    Args:
        position: Place in the order of packing.
        data: The bytes; empty if there is an error.
        checksum: 64-bit xxh3 of the bytes (0 when not asked for).
        error: Why this sample cannot be packed.
        exif_rotated: Whether EXIF says to turn the picture.
    """

    position: int
    data: memoryview
    checksum: int = 0
    error: SmallfilesError | None = None
    exif_rotated: bool = False


def chunk_borders(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut a sequence of samples into chunks of about 1 MiB and at most 32 samples.

    Args:
        sizes: Bytes of each sample, int64.

    Yields:
        Half-open ranges that cover all samples; a larger sample is a chunk of its own.
    """
    start = 0
    while start < len(sizes):
        ends = np.cumsum(sizes[start : start + CHUNK_SAMPLES])
        stop = start + max(1, int(np.searchsorted(ends, CHUNK_BYTES, side="right")))
        yield start, stop
        start = stop


def read_in_order(
    store: ByteStore,
    paths: Paths,
    sizes: np.ndarray,
    *,
    in_flight: int,
    examine: Examine,
    checksums: bool = True,
) -> Iterator[Read]:
    """Yield every sample in order while `in_flight` threads read ahead.

    Args:
        store: Where the bytes come from.
        paths: Paths in the order wanted.
        sizes: Expected bytes of each, int64; a file of another size has changed and is an error.
        in_flight: Number of threads, each with one file open; 1 reads without threads.
        examine: Says what is wrong with a sample's bytes, or None.
        checksums: Whether to compute `Read.checksum` (in the reading thread).

    Yields:
        One `Read` a path. At most about 96 MiB (or one sample, if larger) wait at any time.
    """
    reader = _ChunkReader(store, examine, checksums)
    for reads in _chunks_in_order(reader, paths, sizes, in_flight):
        yield from reads
        del reads  # or its buffer could not be used again while the next chunk is read


def _chunks_in_order(
    reader: _ChunkReader, paths: Paths, sizes: np.ndarray, in_flight: int
) -> Iterator[list[Read]]:
    tasks = ((start, paths[start:stop], sizes[start:stop]) for start, stop in chunk_borders(sizes))
    if in_flight == 1:
        for task in tasks:
            yield reader.read(*task)
        return
    with ThreadPoolExecutor(in_flight, thread_name_prefix="pack-read") as pool:
        waiting: deque[tuple[Future[list[Read]], int]] = deque()
        ahead_bytes = 0
        try:
            for task in tasks:
                need = _buffer_bytes(task[2])
                while waiting and (ahead_bytes + need > WINDOW_BYTES or len(waiting) >= 2 * in_flight):
                    done, its_bytes = waiting.popleft()
                    yield done.result()
                    ahead_bytes -= its_bytes
                waiting.append((pool.submit(reader.read, *task), need))
                ahead_bytes += need
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _buffer_bytes(sizes: np.ndarray) -> int:
    # One byte more for each sample: a file that has grown fills it and is found out.
    return int(sizes.sum()) + len(sizes)


class _ChunkReader:
    """Reads one chunk into one buffer."""

    def __init__(self, store: ByteStore, examine: Examine, checksums: bool) -> None:
        self._store = store
        self._examine = examine
        self._checksums = checksums
        self._buffers = _Buffers()

    def read(self, start: int, paths: Sequence[str], sizes: np.ndarray) -> list[Read]:
        view = self._buffers.take(_buffer_bytes(sizes))
        reads, begin = [], 0
        for offset, (path, size) in enumerate(zip(paths, sizes.tolist(), strict=True)):
            reads.append(self._read_one(start + offset, path, view[begin : begin + size + 1]))
            begin += size + 1
        return reads

    def _read_one(self, position: int, path: str, room: memoryview) -> Read:
        try:
            got = self._store.read_into(path, room)
            if got != len(room) - 1:
                raise _changed(self._store, path, got, len(room) - 1)
            data = room[:got]
            turned = self._examine(path, data)
        except SmallfilesError as error:
            return Read(position, room[:0], error=error)
        checksum = xxhash.xxh3_64_intdigest(data) if self._checksums else 0
        return Read(position, data, checksum, exif_rotated=turned)


class _Buffers:
    """Memory for chunks, used again as soon as nobody holds a part of it.

    Fresh memory costs a page fault for each 4 KB, as much as reading from a warm cache does.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()

    def take(self, size: int) -> memoryview:
        """So many bytes; all views of them hold the array that they were lent as."""
        try:
            # A small chunk takes no large buffer, which a sample of it that is kept would keep.
            if not _USUAL_BYTES // 4 <= size <= _USUAL_BYTES:
                return np.empty(size, np.uint8).data
            whole = self._free.popleft() if self._free else np.empty(_USUAL_BYTES, np.uint8)
        except MemoryError:
            raise ResourceError(
                f"a sample of {size:,} bytes does not fit in memory",
                expected="each sample to fit in memory at once",
                next_step="Ask for more memory, or pack without it",
            ) from None
        lent = whole[:size]
        weakref.finalize(lent, self._free.append, whole).atexit = False
        return lent.data


def _changed(store: ByteStore, path: str, got: int, expected: int) -> SourceError:
    grown = "more than " if got > expected else ""
    return SourceError(
        f"{path} in {store.describe()} has {grown}{min(got, expected) if grown else got:,} bytes",
        expected=f"the {expected:,} bytes that the manifest says",
        next_step="Make the manifest again if the data changed; copy the data again if it did not",
    )
