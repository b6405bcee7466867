"""What all readers share: open late, once a process; pickle without handles; refuse after close.

The trap: a handle that was opened in the parent and is used in forked workers shares one file
offset with all of them, and HDF5 handles break outright (pytorch/pytorch#11887). So a reader
remembers in which process it opened. Notebook 04 reproduces the failure.
"""

from __future__ import annotations

import json
import operator
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from smallfiles.errors import ReaderClosedError, UsageError
from smallfiles.formats.bytefile import damaged
from smallfiles.samples import Buffer, Meta, Reader, Sample, Target

Handle = TypeVar("Handle")


class BaseReader(Reader, Generic[Handle]):
    """Life cycle of a reader; a format adds what its bytes mean.

    Subclasses implement `_open` (return everything that belongs to one process, validated, or
    raise a `FormatError`) and the methods that read from it through `self._handle()`. Handles are
    used by several threads at once, so they read by position and hold no moving state.

    Args:
        path: The packed file or folder.
    """

    _outlives_fork = False
    """Whether forked workers go on with the parent's handle: it reads by position, and took long to make."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._opened: tuple[int, Handle] | None = None
        self._closed = False

    @abstractmethod
    def _open(self) -> Handle:
        """Open for this process and check that the file is whole."""

    def _handle(self) -> Handle:
        opened = self._opened
        if opened is not None and (self._outlives_fork or opened[0] == os.getpid()):
            return opened[1]
        if self._closed:
            raise ReaderClosedError(
                f"the reader of {self.path} was closed",
                expected="an open reader",
                next_step="Open it again with smallfiles.formats.open",
            )
        # No lock: one held by another thread during fork would stop the child for ever. Two threads
        # may both open; the last one stays and the other handle closes when its read is done.
        handle = self._open()
        if not self._closed:  # another thread may have closed the reader meanwhile
            self._opened = (os.getpid(), handle)
        return handle

    def close(self) -> None:
        """Let go of the file. Views that were handed out stay valid; later reads are refused."""
        self._closed = True
        self._opened = None

    def __enter__(self) -> BaseReader[Handle]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def sha256(self, index: int) -> str | None:
        """Stored SHA-256 of a sample (hexadecimal), where the format keeps one."""
        return None

    def key(self, index: int) -> str:
        """Key of one sample."""
        return str(self.keys()[self._checked(index)].as_py())

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """Where a sample's bytes lie: file, first byte, one after the last; None if scattered.

        `verify` uses it to name the samples in a damaged block.
        """
        return None

    def targets(self, start: int, stop: int) -> list[Target]:
        """Labels or captions of a run of samples (formats may override)."""
        return [self.target(index) for index in range(start, stop)]

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the order asked for, fetched in stored order (formats may override)."""
        found = {index: self.read(index) for index in sorted(set(indices))}
        return [found[index] for index in indices]

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            yield Sample(self.key(index), self.read(index), self.target(index), self.meta(index))

    def _object(self, text: str | None, index: int) -> Meta | None:
        """The JSON object of a sample from its text; None where there is none.

        Raises:
            DamagedFileError: It is no JSON object.
        """
        try:
            found: Meta | None = json.loads(text) if text else None
            if not isinstance(found, dict | None):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise damaged(self.path, f"the JSON object of sample {index} is {error}") from error
        return found

    def _checked(self, index: int) -> int:
        """`index` counted from the front; negative ones count from the end, as in a list."""
        count, index = len(self), operator.index(index)
        if 0 <= index < count:
            return index
        if not -count <= index < 0:
            raise SampleIndexError(
                f"sample {index} was asked of {self.path}, which holds {count}",
                expected=f"an index from 0 to {count - 1}" if count else "no read from an empty set",
                next_step="Check the length with len(reader)",
            )
        return index + count


class ByteSource(Protocol):
    """Bytes by position: a file, or a compressed one as if it were not."""

    path: Path
    size: int

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`; an error if they are not all there."""

    def prefetch(self, start: int, stop: int) -> None:
        """Say that these bytes are read soon."""


class PlacedReader(BaseReader[Handle]):
    """Adds reading to a format whose samples are each one run of bytes: reading is finding the place."""

    @abstractmethod
    def _place(self, index: int) -> tuple[ByteSource, int, int]:
        """ByteSource, first byte and one after the last of a sample; `index` was checked."""

    def _prefetch_places(self, indices: Sequence[int]) -> None:
        """Announce what tells the places of these samples, where that is spread over the file."""

    def size(self, index: int) -> int:
        _, start, stop = self._place(self._checked(index))
        return stop - start

    def read(self, index: int) -> Buffer:
        store, start, stop = self._place(self._checked(index))
        return memoryview(store.read(start, stop))

    def span(self, index: int) -> tuple[Path, int, int] | None:
        store, start, stop = self._place(self._checked(index))
        return store.path, start, stop

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the order asked for.

        All of them are announced to the kernel in stored order before the first is read, so that a cold
        batch waits for its samples together and not for each in turn.
        """
        wanted = [self._checked(index) for index in indices]
        order = sorted(set(wanted))
        self._prefetch_places(order)
        places = {index: self._place(index) for index in order}
        for store, start, stop in places.values():
            store.prefetch(start, stop)
        found = {index: memoryview(store.read(*place)) for index, (store, *place) in places.items()}
        return [found[index] for index in wanted]


def _reduced(view: memoryview) -> tuple[Any, ...]:
    """A view as another process gets it: over a copy of its bytes.

    Without it a worker of a `DataLoader` whose data set returns what `read` gave sends nothing, and the
    trainer waits for ever.
    """
    if view.format != "B" or view.ndim != 1:  # none of ours: arrays of numbers travel by ways of their own
        raise TypeError(f"cannot pickle a memoryview of format {view.format!r} in {view.ndim} dimensions")
    return memoryview, (view.tobytes(),)


# Of this module, which whoever has a reader has imported: a worker that was spawned too.
ForkingPickler.register(memoryview, _reduced)


def numbered_keys(count: int) -> pa.StringArray:
    """Keys of a file that has none: its row numbers."""
    # Not pa.array, which imports pandas where that is installed: a second a worker.
    rows = pa.py_buffer(np.arange(count, dtype=np.int64))
    return pa.Array.from_buffers(pa.int64(), count, [None, rows]).cast(pa.string())


class SampleIndexError(UsageError, IndexError):
    """An index outside the reader; also an IndexError, so that iteration protocols end."""
