"""Read many small files at once, look at their bytes, and hand them on in order, within bounded memory.

On a parallel file system an open costs a round trip of a millisecond or more. One reader that waits
for each is idle nearly all the time; 32 of them hide the wait. Threads suffice, since system calls
(and the decoders that scale images) release the interpreter's lock. Samples travel in chunks of about
1 MiB, so that the hand-over between threads costs little where opens are fast (a warm page cache, a local
disk).

A broken image that is found before it is packed costs a minute. The header check is nearly free (2 µs). It
finds empty files, files of another kind than their suffix says (`contents`), pointers of git-lfs, and
truncated JPEGs. Decoding (3 ms) finds what any decoder can find, by the code of training. Arrays of NumPy
(.npy) are decoded too; samples of any other kind are counted, and the report says how many.

The traps: a sample's bytes are a view of a chunk's buffer, and one sample that is kept keeps all of its
chunk. A buffer is used again when nothing refers to a sample of it; notebook 01 measures the effect. And a
preview in the header of a JPEG ends with FF D9 (ITU-T T.81 B.1.1.3) too, so half a photograph has such an
end; only an end marker behind the header counts. Notebook 03 shows what is found.
"""

from __future__ import annotations

import resource
import statistics
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from smallfiles import contents
from smallfiles.contents import NPY_SUFFIX, array_view
from smallfiles.errors import ResourceError, SmallfilesError, SourceError
from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.progress import note
from smallfiles.samples import ByteStore
from smallfiles.storage import ReadingPool

Examine = Callable[[str, memoryview], bool]
"""Type of `examine(path, data)`, which returns whether EXIF says to turn the image.

It raises a SourceError that names the path if the bytes cannot be packed.
"""

_END_OF_IMAGE = b"\xff\xd9"
_EXIF = b"Exif\0\0"
_EXIF_BEGINS_WITHIN = 64  # behind the start marker, or behind a JFIF segment of 18 bytes
_EXIF_BYTES = 1024
_ORIENTATION = 0x0112


def examiner(level: str) -> Examine:
    """Return the function that checks files at a level: `none`, `header` or `decode`."""
    if level == "none":
        return _nothing
    return partial({"header": check_header, "decode": check_decode}[level], noted=set())


def _nothing(path: str, data: memoryview) -> bool:
    """Accept any file as it is."""
    return False


def check_header(path: str, data: memoryview, noted: set[str] | None = None) -> bool:
    """Refuse empty files, files whose kind differs from their suffix, and truncated JPEGs.

    Args:
        path: The name of the file, with its suffix.
        data: All of its bytes.
        noted: Wrong suffixes that a note has already named. If it is None, no note is written.

    Returns:
        Whether the file is a JPEG that says in EXIF that viewers should turn or mirror it.

    Raises:
        SourceError: The file is refused. The message says what is wrong, with the path.
    """
    if not len(data):
        raise _bad(path, "is empty (0 bytes)")
    head = bytes(data[:_EXIF_BEGINS_WITHIN])
    is_jpeg = head.startswith(b"\xff\xd8\xff") and path.lower().endswith(IMAGE_SUFFIXES)
    if not (is_jpeg and path.lower().endswith((".jpg", ".jpeg"))):  # nearly all files are
        _check_kind(path, data, noted)
    if not is_jpeg:
        return False
    if data[-2:] != _END_OF_IMAGE and _was_cut_off(data):
        raise _bad(path, "is a JPEG that was cut off (no end-of-image marker)")
    return _EXIF in head and _is_rotated(data, head.index(_EXIF) + len(_EXIF))


def _check_kind(path: str, data: memoryview, noted: set[str] | None) -> None:
    """Raise SourceError if the first bytes of a file do not match its suffix."""
    if pointer := contents.pointer(data):
        program, command = pointer
        raise _bad(
            path, f"is a pointer of {program}; fetch the file itself where the clone is: {command}", "data"
        )
    own = contents.expected(path)
    if not own or contents.kind_of(data, own):
        return
    if kind := contents.alike(path, data):
        misnamed = f"{kind} as {path.rpartition('.')[2]}"
        if noted is not None and misnamed not in noted:
            noted.add(misnamed)
            note(f"{path} holds {kind}, not {own[0]}: it is packed as it is, like others of this kind")
        return
    if contents.is_web_page(data):
        raise _bad(
            path, f"is a web page (HTML), not {own[0]}; download it again, logged in if need be", own[0]
        )
    kind = contents.kind_of(data)
    begin = bytes(data[:8])
    raise _bad(path, f"holds {kind}" if kind else f"is not {own[0]} (it begins with {begin!r})", own[0])


def _is_rotated(data: memoryview, begin: int) -> bool:
    """Check whether the EXIF data that begins at `begin` holds an orientation from 2 to 8.

    Broken EXIF data counts as no orientation.
    """
    exif = bytes(data[begin : begin + _EXIF_BYTES])
    order = "<" if exif.startswith(b"II") else ">"
    try:
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", exif, entry)
            if tag == _ORIENTATION:
                return int(value) in range(2, 9)
    except struct.error:
        pass
    return False


def check_decode(path: str, data: memoryview, noted: set[str] | None = None) -> bool:
    """Refuse a file that does not decode to the last pixel without a warning.

    Args:
        path: The name of the file, with its suffix.
        data: All of its bytes.
        noted: As for `check_header`.

    Returns:
        As for `check_header`.

    Raises:
        SourceError: The file is refused. The message says what is wrong, with the path.
    """
    rotated = check_header(path, data, noted)
    if path.lower().endswith(NPY_SUFFIX):
        try:
            array_view(data)
        except ValueError as error:
            raise _bad(path, f"does not decode as an array of NumPy ({error})", "a whole array") from error
    if not path.lower().endswith(IMAGE_SUFFIXES):
        return rotated
    from smallfiles.images.decoding import decode

    try:
        decode(data)
    except SmallfilesError as error:
        raise _bad(path, f"does not decode: {error.got}") from error
    return rotated


def not_decodable(paths: pa.ChunkedArray | pa.Array) -> int:
    """Count the samples that the level `decode` checks no further than the level `header`.

    No decoder is known for their suffix.

    Args:
        paths: Paths of all samples.
    """
    suffixes = "|".join(suffix.replace(".", r"\.") for suffix in (*IMAGE_SUFFIXES, NPY_SUFFIX))
    known = pc.match_substring_regex(paths, f"(?:{suffixes})$", ignore_case=True)
    return len(paths) - int(pc.sum(known).as_py() or 0)


def _was_cut_off(data: memoryview) -> bool:
    """Check whether a JPEG has no end marker behind its header."""
    from smallfiles.images.crops import tidied

    return tidied(data) is None


def _bad(path: str, what: str, expected: str = "a whole image") -> SourceError:
    return SourceError(
        f"{path} {what}",
        expected=expected,
        next_step="Replace or remove it, or pack with --on-error skip to leave it out and have it reported",
    )


CHUNK_BYTES = 1 << 20
CHUNK_SAMPLES = 32
WINDOW_BYTES = 96 << 20
WAIT_S = 100e-6
"""Waiting time of a read in seconds. Reads that wait longer are worth a thread each."""

_USUAL_BYTES = CHUNK_BYTES + CHUNK_SAMPLES
_TRIED = 24
_NOTHING = memoryview(b"")
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # of this thread alone, on Linux

Scale = Callable[[str, memoryview], bytes]
"""Type of `scale(path, data)`, which returns the bytes to pack instead of those of the source.

It raises an error that names the path if the image cannot be scaled.
"""


class Paths(Protocol):
    """A sequence of paths that are converted to strings a slice at a time.

    So a million strings never exist at once.
    """

    def __getitem__(self, span: slice) -> Sequence[str]: ...


class Read(NamedTuple):
    """One sample that was read, or the reason why it could not be read.

    Args:
        position: Position in the order of packing.
        data: The bytes to pack. It is empty if there is an error.
        checksum: 64-bit xxh3 of the bytes. It is 0 if no checksum was requested.
        error: Why this sample cannot be packed. It is None if the sample can be packed.
        exif_rotated: Whether EXIF says to turn the image.
    """

    position: int
    data: memoryview
    checksum: int = 0
    error: SmallfilesError | None = None
    exif_rotated: bool = False


def is_latency_bound(store: ByteStore, paths: pa.Array) -> bool:
    """Check whether reads from a store must be waited for, as from a disk or a server.

    If the data is in memory, an additional thread only costs time. On a busy machine everything takes longer,
    even if the data is in memory. But the kernel counts how often a thread went to sleep by itself, and not
    because its time slice was used up. Only such reads are timed.

    Args:
        store: Where the bytes come from.
        paths: Paths of the samples. A few of them are read.
    """
    buffer, waited_s = memoryview(bytearray(1)), []
    for row in np.linspace(0, len(paths) - 1, _TRIED).astype(int).tolist():
        path = paths[row].as_py()
        slept, began = resource.getrusage(_THREAD).ru_nvcsw, perf_counter()
        try:
            store.read_into(path, buffer)
        except ResourceError:
            raise
        except SmallfilesError:
            pass  # reported when it is packed
        took_s = perf_counter() - began
        waited_s.append(took_s if resource.getrusage(_THREAD).ru_nvcsw > slept else 0.0)
    return statistics.median(waited_s) > WAIT_S


def chunk_borders(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut a sequence of samples into chunks of about 1 MiB and at most 32 samples.

    Args:
        sizes: Size of each sample in bytes, int64.

    Yields:
        Half-open ranges that cover all samples. A sample larger than 1 MiB is a chunk of its own.
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
    threads: int,
    examine: Examine,
    scale: Scale | None = None,
    checksums: bool = True,
) -> Iterator[Read]:
    """Yield every sample in order, while `threads` threads read, examine and scale ahead.

    Args:
        store: Where the bytes come from. A `sequential` store is read only by the caller's thread.
        paths: Paths in the requested order.
        sizes: Expected size of each file in bytes, int64. A file of another size has changed, which is an
            error.
        threads: Number of threads, each of which has one file open. With 1, the caller's thread does
            everything.
        examine: Raises an error for a sample whose bytes cannot be packed.
        scale: Makes the bytes that are packed. If it is None, the bytes are packed as they were read.
        checksums: Whether to compute `Read.checksum` (in the same thread).

    Yields:
        One `Read` per path. At most about 96 MiB (or one sample, if larger) wait at any time.
    """
    reader = _ChunkReader(store, examine, scale, checksums)
    tasks = (
        _Task(start, paths[start:stop], sizes[start:stop], int(sizes[start:stop].sum()) + stop - start)
        for start, stop in chunk_borders(sizes)
    )
    for reads in _chunks_in_order(reader, tasks, threads):
        yield from reads
        del reads  # or its buffer could not be used again while the next chunk is read


class _Task(NamedTuple):
    """A chunk to read: its first position, its paths, their sizes, and the memory in bytes that it takes."""

    start: int
    paths: Sequence[str]
    sizes: np.ndarray
    held_bytes: int


def _chunks_in_order(reader: _ChunkReader, tasks: Iterator[_Task], threads: int) -> Iterator[list[Read]]:
    if threads == 1:
        for task in tasks:
            yield reader.read(task)
        return
    with ReadingPool(threads, "pack-read") as pool:
        waiting: deque[tuple[Future[list[Read]], int]] = deque()
        ahead_bytes = 0
        try:
            for task in tasks:
                need = task.held_bytes
                while waiting and (ahead_bytes + need > WINDOW_BYTES or len(waiting) >= 2 * threads):
                    done, its_bytes = waiting.popleft()
                    yield done.result()
                    ahead_bytes -= its_bytes
                waiting.append((reader.submit(pool, task), need))
                ahead_bytes += need
            while waiting:
                yield waiting.popleft()[0].result()
        except BaseException:
            pool.abandon()
            raise


class _ChunkReader:
    """Reads all samples of a chunk into one buffer."""

    def __init__(self, store: ByteStore, examine: Examine, scale: Scale | None, checksums: bool) -> None:
        self._store, self._examine = store, examine
        self._scale, self._checksums = scale, checksums
        self._buffers = _Buffers()

    def submit(self, pool: ReadingPool, task: _Task) -> Future[list[Read]]:
        """Submit a chunk to the pool of threads.

        A store that can only be read in order is read in this thread.
        """
        if not self._store.sequential:
            return pool.submit(self.read, task)
        loaded = [(position, path, self._load(path, room)) for position, path, room in self._rooms(task)]
        return pool.submit(lambda: [self._finish(*each) for each in loaded])

    def read(self, task: _Task) -> list[Read]:
        """Read a chunk in this thread."""
        return [
            self._finish(position, path, self._load(path, room)) for position, path, room in self._rooms(task)
        ]

    def _rooms(self, task: _Task) -> Iterator[tuple[int, str, memoryview]]:
        """Yield the position and the path of each sample, and a part of one buffer for its bytes."""
        # One byte more for each sample: a file that has grown fills it and is found out.
        view = self._buffers.take(int(task.sizes.sum()) + len(task.sizes))
        begin = 0
        for offset, (path, size) in enumerate(zip(task.paths, task.sizes.tolist(), strict=True)):
            yield task.start + offset, path, view[begin : begin + size + 1]
            begin += size + 1

    def _load(self, path: str, room: memoryview) -> memoryview | SmallfilesError:
        try:
            got = self._store.read_into(path, room)
        except ResourceError:
            raise  # no fault of this sample: the next one would wait for the storage as long
        except SmallfilesError as error:
            return error
        return room[:got] if got == len(room) - 1 else changed(self._store, path, got, len(room) - 1)

    def _finish(self, position: int, path: str, data: memoryview | SmallfilesError) -> Read:
        if isinstance(data, SmallfilesError):
            return Read(position, _NOTHING, error=data)
        try:
            rotated = self._examine(path, data)
            if self._scale is not None:
                data = memoryview(self._scale(path, data))
        except SmallfilesError as error:
            return Read(position, _NOTHING, error=error)
        checksum = xxhash.xxh3_64_intdigest(data) if self._checksums else 0
        return Read(position, data, checksum, exif_rotated=rotated)


class _Buffers:
    """A pool of memory for chunks. A buffer is used again as soon as nothing refers to a part of it.

    Fresh memory costs a page fault for each 4 KB, which takes as long as reading from a warm cache.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()

    def take(self, size: int) -> memoryview:
        """Return a buffer of `size` bytes. It is used again when no view of it exists any more."""
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


def changed(store: ByteStore, path: str, got: int, expected: int) -> SourceError:
    """Return the error for a file whose size is not the expected one."""
    grown = "more than " if got > expected else ""
    return SourceError(
        f"{path} in {store.describe()} has {grown}{min(got, expected) if grown else got:,} bytes",
        expected=f"the {expected:,} bytes that the manifest says",
        next_step="Make the manifest again if the data changed; copy the data again if it did not",
    )
