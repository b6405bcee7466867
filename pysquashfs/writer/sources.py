"""Read the files that go into an image: small ones whole, large ones piece by piece.

On a parallel file system opening a file takes a millisecond and more, however small it is; so a few
threads open and read ahead. If files are in memory, threads only add cost, and one loop reads them.

The traps: by the clock alone, a busy processor looks like a slow disk, so a read counts as waiting only if
the kernel says that the thread slept. And a file may vanish or grow after it was listed. Its size in the
image must be the stored size, so one more byte than expected is requested of each file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from pysquashfs.compression import Buffer
from pysquashfs.errors import SquashFSError

Item: TypeAlias = tuple[str, Buffer | Path]
PIECE_BYTES = 1 << 20  # a multiple of every block size; files up to this are read whole and ahead
_TRIED = 32
_IN_FLIGHT = 8
_AHEAD = 64  # files that are read or wait to be written
_AT_ONCE_S = 100e-6  # reads that wait longer are worth a thread each


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The items in their order, with small files replaced by their bytes.

    Holds at most 65 files of up to 1 MiB. An item that is no path is passed on before the next one is
    requested, so the iterator of items may reuse one buffer.

    Args:
        items: (name, bytes or path).

    Raises:
        SquashFSError: A file cannot be read or changed its size.
    """
    left, waits = iter(items), 0
    for name, source in islice(left, _TRIED):
        began, slept = perf_counter(), _slept()
        data = _small(source) if isinstance(source, Path) else source
        waits += _slept() > slept and perf_counter() - began > _AT_ONCE_S
        yield name, data
    if 2 * waits > _TRIED:
        yield from _by_threads(left)
        return
    for name, source in left:
        yield name, _small(source) if isinstance(source, Path) else source


def _by_threads(items: Iterable[Item]) -> Iterator[Item]:
    waiting: deque[tuple[str, Future[Buffer | Path]]] = deque()
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(_IN_FLIGHT, "squash-read")
        stack.callback(pool.shutdown, cancel_futures=True)

        def done(most_waiting: int) -> Iterator[Item]:
            while len(waiting) > most_waiting:
                name, task = waiting.popleft()
                yield name, task.result()

        for name, source in items:
            if isinstance(source, Path):
                waiting.append((name, pool.submit(_small, source)))
                yield from done(_AHEAD)
            else:
                yield from done(0)
                yield name, source
        yield from done(0)


def _small(path: Path) -> Buffer | Path:
    """The bytes of a file, or its path if it is large."""
    with _reading(path):
        descriptor, size = _open(path)
        try:
            if size > PIECE_BYTES:
                return path
            data = os.pread(descriptor, size + 1, 0)
            while 0 < len(data) < size and (more := os.pread(descriptor, size + 1 - len(data), len(data))):
                data += more  # a network file system may return less than requested
        finally:
            os.close(descriptor)
    if len(data) != size:
        raise _changed(path, size)
    return data


def pieces(path: Path) -> Iterator[Buffer]:
    """The bytes of a large file, through one buffer that is reused for each piece.

    Raises:
        SquashFSError: It cannot be read or changed its size.
    """
    buffer = memoryview(bytearray(PIECE_BYTES))
    with _reading(path):
        descriptor, size = _open(path)
    try:
        position = 0
        while position < size:
            found, wanted = 0, min(PIECE_BYTES, size - position)
            with _reading(path):
                while found < wanted and (
                    count := os.preadv(descriptor, [buffer[found:wanted]], position + found)
                ):
                    found += count
            if found != wanted:
                raise _changed(path, size)
            yield buffer[:wanted]
            position += wanted
        with _reading(path):
            if os.pread(descriptor, 1, position):
                raise _changed(path, size)
    finally:
        os.close(descriptor)


def _open(path: Path) -> tuple[int, int]:
    """A descriptor of a regular file, and its size."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _unusable(path, "it is no regular file")
    return descriptor, status.st_size


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unusable(path, str(getattr(error, "strerror", None) or error)) from error


def _unusable(path: Path, fault: str) -> SquashFSError:
    return SquashFSError(
        f"{path} cannot be read ({fault})",
        expected="a regular file that stays while it is packed",
        next_step="Check it, and pack again",
    )


def _changed(path: Path, size: int) -> SquashFSError:
    return SquashFSError(
        f"{path} changed its size while it was read",
        expected=f"the {size:,} bytes that it had before",
        next_step="Pack again when nothing writes to it",
    )


_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # of this thread alone, on Linux


def _slept() -> int:
    """How often this thread gave up the processor by itself, and not because its time slice ended."""
    return resource.getrusage(_THREAD).ru_nvcsw
