"""Samples as runs of bytes, and all that belongs to them as plain arrays of numbers.

HDF5 and LMDB each hold named arrays. They get the same ones here and share one reader, and every
program that opens such a file finds the targets in two lines, in whatever language:

    labels int64[n]  or  caption_data uint8[], caption_offsets uint64[], caption_rows uint64[n+1]
    key_data uint8[], key_offsets uint64[n+1]; meta_data, meta_offsets where a sample has a JSON object

The trap: n texts have n + 1 borders, and text `i` lies between border `i` and border `i + 1`. Notebook 04
draws it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import scalar, to_numpy
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.columns import SampleColumns
from smallfiles.formats.reader import ByteSource, PlacedReader, numbered_keys
from smallfiles.samples import Meta, Target, TargetKind

NAMES = (
    *("offsets", "labels", "targets", "caption_data", "caption_offsets", "caption_rows"),
    *("key_data", "key_offsets", "meta_data", "meta_offsets"),
)
"""The arrays that a reader looks for; `targets` is the name of the Jülich course for `labels`."""

Arrays: TypeAlias = Mapping[str, np.ndarray]


def arrays_of(
    columns: SampleColumns, labels: str = "labels", kind: str = "<i8"
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and values of each array: a text is a run of bytes and its borders, no JSON object the empty text.

    Files can store strings themselves, but each then costs a look-up of its own.
    """
    for name in columns.kinds:
        found = columns.finish(name)
        if name == "label":
            yield labels, to_numpy(found).astype(kind, copy=False)
        elif name == "captions":
            yield from _texts("caption", found.flatten())
            yield "caption_rows", _borders(found)
        else:
            yield from _texts(name, pc.fill_null(found, scalar("")) if found.null_count else found)


def _texts(name: str, found: pa.StringArray) -> Iterator[tuple[str, np.ndarray]]:
    borders, data = _borders(found), found.buffers()[2]
    yield f"{name}_data", np.frombuffer(data or b"", np.uint8, int(borders[-1]))
    yield f"{name}_offsets", borders


def _borders(found: pa.Array) -> np.ndarray:
    return np.frombuffer(found.buffers()[1], np.int32, len(found) + 1).astype(np.uint64)


class Blob:
    """One process's view of an opened file: where its samples lie, and its arrays.

    Args:
        path: The file or folder, for messages.
        arrays: Those of `NAMES` that it has, numbers in one dimension.
        record: Provenance; empty in a file of others.
    """

    layout = "blob"

    def __init__(self, path: Path, arrays: Arrays, record: Mapping[str, Any]) -> None:
        self.path, self.arrays, self.record = path, arrays, record
        self.labels = arrays.get("labels", arrays.get("targets"))
        self.keys: pa.StringArray | None = None
        self.count = self._count()

    @abstractmethod
    def rows(self) -> int:
        """Number of samples whose bytes are there."""

    @abstractmethod
    def place(self, index: int) -> tuple[ByteSource, int, int]:
        """ByteSource, first byte and one after the last of a sample."""

    @abstractmethod
    def payload_bytes(self) -> int:
        """Sum of the encoded bytes."""

    def borders(self, index: int, stop: int) -> tuple[int, int]:
        """First byte of a sample in the run of all, and one after its last.

        Args:
            index: The sample.
            stop: Bytes of the run.
        """
        offsets = self.array("offsets")
        first, last = offsets.item(index), offsets.item(index + 1)
        if not 0 <= first <= last <= stop:
            raise damaged(self.path, f"the borders of sample {index} are {first} and {last}")
        return first, last

    def array(self, name: str) -> np.ndarray:
        """An array that must be there."""
        try:
            return self.arrays[name]
        except KeyError:
            raise damaged(self.path, f"it has no data set {name}") from None

    def _count(self) -> int:
        """Number of samples, on which all columns must agree."""
        if self.labels is None and "caption_rows" not in self.arrays:
            raise damaged(self.path, "it has neither labels nor captions")
        targets = len(self.labels) if self.labels is not None else len(self.array("caption_rows")) - 1
        named = [name for name in ("key", "meta") if f"{name}_offsets" in self.arrays]
        columns = [len(self.arrays[f"{name}_offsets"]) - 1 for name in named]
        if targets < 0 or any(count != targets for count in columns) or not self.holds(targets):
            raise damaged(self.path, f"its columns have {targets}, {self.rows()} and {columns} rows")
        return targets

    def holds(self, targets: int) -> bool:
        """Whether so many targets fit the samples that are there."""
        return targets == self.rows()

    def text(self, name: str, index: int) -> str:
        """One string of a column."""
        data, borders = self.array(f"{name}_data"), self.array(f"{name}_offsets")
        try:
            start, stop = int(borders[index]), int(borders[index + 1])
            if not 0 <= start <= stop <= len(data):
                raise ValueError
            return data[start:stop].tobytes().decode()
        except (ValueError, IndexError):
            raise damaged(self.path, f"row {index} of its column {name} is no text") from None

    def captions(self, index: int) -> list[str]:
        """The captions of one sample."""
        rows = self.array("caption_rows")
        first, last = int(rows[index]), int(rows[index + 1])
        if not 0 <= first <= last <= len(self.array("caption_offsets")) - 1:
            raise damaged(self.path, f"sample {index} has captions {first} to {last}")
        return [self.text("caption", row) for row in range(first, last)]

    def all_keys(self) -> pa.StringArray:
        """The keys without a copy of their bytes."""
        if "key_offsets" not in self.arrays:
            return numbered_keys(self.count)
        data, borders = self.array("key_data"), self.array("key_offsets")
        if not self.count:
            return numbered_keys(0)
        if borders[-1] > len(data) or len(data) > 2**31 - 1 or (borders[1:] < borders[:-1]).any():
            raise damaged(self.path, "its keys reach beyond their bytes")
        offsets = pa.py_buffer(borders.astype("<i4"))
        try:
            keys = pa.StringArray.from_buffers(self.count, offsets, pa.py_buffer(data))
            keys.validate(full=True)
        except pa.ArrowInvalid as error:
            raise damaged(self.path, f"its keys are no texts ({error})") from error
        return keys

    def forget(self) -> None:
        """Let go of mapped pages that were looked at."""

    def about(self) -> dict[str, Any]:
        """What `info` says of this format alone."""
        return {"layout": self.layout}


class FileBlob(Blob):
    """A blob in a single file.

    Args:
        file: The file.
        arrays: As for `Blob`.
        record: As for `Blob`.
    """

    def __init__(self, file: ByteFile, arrays: Arrays, record: Mapping[str, Any]) -> None:
        self.file = file
        super().__init__(file.path, arrays, record)

    def forget(self) -> None:
        self.file.forget()

    def about(self) -> dict[str, Any]:
        return {**super().about(), "file_bytes": self.file.size}


AnyBlob = TypeVar("AnyBlob", bound=Blob)


class BlobReader(PlacedReader[AnyBlob], Generic[AnyBlob]):
    """Random access to a blob; a format adds how one is opened, and its name."""

    format = ""

    def __init__(self, path: Path, access: Access = "auto") -> None:
        super().__init__(path)
        self._access = access

    def __len__(self) -> int:
        return self._handle().count

    @property
    def target_kind(self) -> TargetKind:
        return "label" if self._handle().labels is not None else "captions"

    @property
    def classes(self) -> tuple[str, ...]:
        return provenance.class_names(dict(self._handle().record))

    def keys(self) -> pa.StringArray:
        opened = self._handle()
        if opened.keys is None:
            opened.keys = opened.all_keys()
        return opened.keys

    def key(self, index: int) -> str:
        index, opened = self._checked(index), self._handle()
        return opened.text("key", index) if "key_offsets" in opened.arrays else str(index)

    def target(self, index: int) -> Target:
        index, opened = self._checked(index), self._handle()
        return opened.captions(index) if opened.labels is None else int(opened.labels.item(index))

    def targets(self, start: int, stop: int) -> list[Target]:
        """Labels or captions of a run of samples; mapped pages that were looked at are let go."""
        opened = self._handle()
        found = super().targets(start, stop) if opened.labels is None else opened.labels[start:stop].tolist()
        opened.forget()
        return found

    def meta(self, index: int) -> Meta | None:
        index, opened = self._checked(index), self._handle()
        if "meta_offsets" not in opened.arrays:
            return None
        return self._object(opened.text("meta", index), index)

    def _place(self, index: int) -> tuple[ByteSource, int, int]:
        return self._handle().place(index)

    def info(self) -> dict[str, Any]:
        opened = self._handle()
        return {
            "format": self.format,
            "samples": opened.count,
            "bytes": opened.payload_bytes(),
            **opened.about(),
            "provenance": dict(opened.record),
        }
