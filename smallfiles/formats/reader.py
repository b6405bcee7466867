"""What all readers share: open late, once per process; pickle without handles; refuse after `close`.

The trap: forked workers that use a handle of their parent share its file offset, and HDF5 handles
break outright (pytorch/pytorch#11887). So a reader records in which process it opened. Notebook 04
reproduces the failure.
"""

from __future__ import annotations

import operator
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import from_numpy, one_chunk
from smallfiles.digests import added_fields
from smallfiles.errors import ReaderClosedError, UsageError
from smallfiles.fields import TARGETS, name_of_first, suffix_of
from smallfiles.formats import added, provenance
from smallfiles.formats.bytefile import Access
from smallfiles.samples import Blob, Buffer, Reader, Rows, Sample
from smallfiles.storage import answered

Handle = TypeVar("Handle")


class BaseReader(Reader, Generic[Handle]):
    """Life cycle of a reader; a format adds what its bytes mean.

    Subclasses implement `_open` (return everything that belongs to one process, validated, or
    raise a `FormatError`) and the methods that read from it through `self._handle()`. Several threads
    use a handle at once, so it reads by position and has no state that moves.

    Args:
        path: The packed file or folder.
        access: How samples are fetched.
    """

    _outlives_fork = False
    """Whether forked workers keep the parent's handle: it reads by position, and was expensive to make."""

    def __init__(self, path: Path, access: Access = "auto") -> None:
        self.path, self._access = Path(path), access
        self._opened: tuple[int, Handle] | None = None
        self._columns: dict[str, pa.Array] = {}
        self._added: dict[str, pa.Array] | None = None
        self._blobs: dict[str, str] | None = None
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
        # No lock: if another thread held it during a fork, the child would wait for ever. Two threads
        # may both open; the last handle is kept, and the other closes when its read is done.
        handle = answered(self.path, self._open)
        if not self._closed:  # another thread may have closed the reader meanwhile
            self._opened = (os.getpid(), handle)
        return handle

    def close(self) -> None:
        """Release the file. Views that were returned stay valid; later reads are refused."""
        self._closed = True
        self._opened = None

    def __enter__(self) -> BaseReader[Handle]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_columns": {}, "_added": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def fields(self) -> Mapping[str, str]:
        """Name and kind of each field: the suffix of its files, or the Arrow type of its values."""
        values = {**self._kinds(), **{name: each.type for name, each in self.added().items()}}
        return {**self.blobs(), **{name: str(kind) for name, kind in values.items()}}

    def blobs(self) -> dict[str, str]:
        """Name and suffix of each field of files, the first one first."""
        if self._blobs is None:
            key, further = self.key(0) if len(self) else "", self._further()
            first = self._first() or name_of_first(key)
            first = "data" if first in {**further, **self._kinds()} else first
            self._blobs = {first: suffix_of(key), **further}
        return self._blobs

    def _first(self) -> str:
        """The name that was given to the field of the first file; empty if none was."""
        return provenance.first_field(self._provenance())

    @abstractmethod
    def _kinds(self) -> Mapping[str, pa.DataType]:
        """Name and type of the values that were packed."""

    def _further(self) -> Mapping[str, str]:
        """Name and suffix of each further file of a sample (formats that have some override)."""
        return {}

    def added(self) -> dict[str, pa.Array]:
        """The values that were added later, over the memory of their files."""
        if self._added is None:
            self._added = added.columns(self, self._added_fields())
        return self._added

    def table(self, names: Iterable[str] | None = None, rows: Rows | None = None) -> pa.Table:
        """The values of fields, of all samples or of some; see `Reader.table`.

        Raises:
            UsageError: There is no such field of values, or no such sample.
        """
        at = None if rows is None else self._checked_rows(rows)
        packed, later = self._kinds(), self.added()
        wanted = [*packed, *later] if names is None else [*names]
        for name in wanted:
            if name not in packed and name not in later:
                raise self._unknown_field(name, "values", [*packed, *later])
        own = [name for name in wanted if name in packed]
        found = {name: self._column(name) for name in own} if at is None else self._taken(own, at)
        for name in wanted:
            if name in later:
                found[name] = later[name] if at is None else later[name].take(from_numpy(at))
        if not found:
            return no_values(len(self) if at is None else len(at))
        return pa.table([found[name] for name in wanted], names=wanted)

    @abstractmethod
    def _read_column(self, name: str) -> pa.Array | pa.ChunkedArray:
        """The values of a field that was packed, of all samples; over the memory of the file if possible."""

    def _column(self, name: str) -> pa.Array:
        """The same, read once; workers that are forked later share its memory."""
        self._handle()
        if name not in self._columns:
            self._columns[name] = one_chunk(self._read_column(name))
        return self._columns[name]

    def _taken(self, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Some rows of columns."""
        return {name: self._column(name).take(from_numpy(rows)) for name in names}

    def _checked_rows(self, rows: Rows) -> npt.NDArray[np.int64]:
        found, count = np.array(rows), len(self)
        if found.dtype != np.int64:  # numbers that only look whole are refused
            found = np.array([operator.index(row) for row in rows], np.int64)
        for place in np.flatnonzero((found < 0) | (found >= count)).tolist():
            found[place] = self._checked(int(found[place]))
        return found

    def target(self, index: int) -> Any:
        """Label or captions of one sample."""
        name = next(name for name in TARGETS if name in self._kinds())
        return self.table([name], [index])[name][0].as_py()

    def _added_fields(self) -> list[Path]:
        """The files with values that were added later."""
        return added_fields(self.path)

    @property
    def set_digest(self) -> str | None:
        """The digest of the set that was packed; None where a format does not record it."""
        digest = self._provenance().get("schema", {}).get("manifest_digest")
        return str(digest) if digest else None

    def _provenance(self) -> Mapping[str, Any]:
        """The record of how it was packed (formats that store one override)."""
        return {}

    def blob(self, name: str) -> Blob:
        """The bytes of a field of files; those of the first are the reader's own.

        Raises:
            UsageError: There is no such field.
        """
        if name in self._further():
            return self._blob(name)
        if name not in self.blobs():
            raise self._unknown_field(name, "files", self.blobs())
        return self

    def _unknown_field(self, name: str, what: str, known: Iterable[str]) -> UsageError:
        return UsageError(
            f"{self.path} has no field {name!r} of {what}",
            expected=f"one of {', '.join(known)}",
            next_step="Look at its fields with: smallfiles inspect",
        )

    def _blob(self, name: str) -> Blob:
        raise NotImplementedError

    def sha256(self, index: int, field: str = "") -> str | None:
        """Stored SHA-256 of a sample, or of its further file (hexadecimal), where the format keeps one."""
        return None

    def key(self, index: int) -> str:
        """Key of one sample."""
        return str(self.keys()[self._checked(index)].as_py())

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """Where a sample's bytes are: file, first byte, one after the last; None if not in one piece.

        `verify` uses it to name the samples in a damaged block.
        """
        return None

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the requested order, fetched in stored order (formats may override)."""
        found = {index: self.read(index) for index in sorted(set(indices))}
        return [found[index] for index in indices]

    def __iter__(self) -> Iterator[Sample]:
        blobs = [self.blob(name) for name in self._further()]
        for index in range(len(self)):
            data = self.read(index)  # before the others: a compressed file is read in stored order
            yield Sample(self.key(index), (data, *(blob.read(index) for blob in blobs)), index)

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


def _reduced(view: memoryview) -> tuple[Any, ...]:
    """How a view is sent to another process: as a copy of its bytes.

    Without this, a `DataLoader` worker whose data set returns what `read` gave cannot send it, and the
    training waits for ever.
    """
    if view.format != "B" or view.ndim != 1:  # not one of ours
        raise TypeError(f"cannot pickle a memoryview of format {view.format!r} in {view.ndim} dimensions")
    return memoryview, (view.tobytes(),)


# Registered here, since a process that has a reader has imported this module.
ForkingPickler.register(memoryview, _reduced)


def no_values(count: int) -> pa.Table:
    """A table without columns, but of so many rows."""
    return pa.table({"row": from_numpy(np.arange(count, dtype=np.int64))}).select([])


class SampleIndexError(UsageError, IndexError):
    """An index outside the reader; also an IndexError, so that iteration protocols end."""
