"""The types that all rooms share: a sample, the schema that a writer gets, and the record of what it wrote.

The trap: `Sample.data` may be a view of a larger buffer, which lives as long as one of its samples. So a
writer releases samples soon. Notebook 03 shows why views are worth it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Meta: TypeAlias = dict[str, Any]
Buffer: TypeAlias = bytes | bytearray | memoryview
Rows: TypeAlias = "Sequence[int] | npt.NDArray[np.int64]"
"""Numbers of samples."""

UNLABELLED = -1
"""The label of a sample whose class is not known, as in a test split."""

OWN_TYPES = {"label": pa.int64(), "captions": pa.list_(pa.string()), "meta": pa.string()}
"""The values that every format, other programs and the set digest know by their names: `meta` is JSON."""

NO_VALUES = pa.table({})


class Sample(NamedTuple):
    """One item of a data set on its way from a source to a packed file.

    Args:
        key: Relative POSIX path, unique in its set.
        blobs: The encoded bytes of its files: the first one (a JPEG file, say), then those of `Schema.blobs`.
        row: Its row of `Schema.values`.
    """

    key: str
    blobs: tuple[Buffer, ...]
    row: int

    @property
    def data(self) -> Buffer:
        """The bytes of its first file."""
        return self.blobs[0]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(map(len, self.blobs))


@dataclass(frozen=True)
class BlobField:
    """A blob field, which has one file for each sample, such as a mask.

    Args:
        name: Name of the field; the default field has an empty name here.
        suffix: Suffix of the files, with its dot. The suffixes of the default field are in the keys.
        total_bytes: Sum of the sizes of the files; an upper bound if failing samples are skipped.
        largest_bytes: Size of the largest file; an upper bound if failing samples are skipped.
    """

    name: str
    suffix: str
    total_bytes: int = 0
    largest_bytes: int = 0

    def holding(self, sizes: npt.NDArray[np.int64]) -> BlobField:
        """Return the field with files of these sizes."""
        return replace(self, total_bytes=int(sizes.sum()), largest_bytes=int(sizes.max(initial=0)))


@dataclass(frozen=True)
class Schema:
    """What a writer knows before the first sample arrives.

    With known sizes, a format lays out its file once, without growing it.

    Args:
        count: Number of samples (an upper bound if failing samples are skipped).
        total_bytes: Sum of the encoded bytes; upper bound likewise.
        largest_bytes: The largest sample; decides between 32- and 64-bit offsets.
        values: The columns of values, of which `Sample.row` says which row is whose: `label` or `captions`,
            `meta` if any sample has a JSON object, and further ones (see `smallfiles.fields`). With neither
            label nor captions, no class is known.
        shared_stems: What several keys have up to the first dot of their file name; a tar escapes the names
            of these keys, and of no others.
        name: Name of the data set.
        split: `train`, `val`, `test` or another word; also the HDF5 group.
        classes: Class names in label order; empty for captions.
        manifest_digest: The set digest of what is packed.
        resize: How images were scaled before packing (`short_side`, `store`, `quality`);
            None if the bytes are those of the source.
        member_suffixes: Suffixes that captions (`txt`) and JSON objects (`json`) had in a tar of another
            program. A tar that is packed from it uses them too, since programs read members by name.
        blobs: The fields of further files.
        columns: Which column of the source's table was which field, if that was said.
        first: Name of the first file's field; empty if it is the one that its suffix gives.
    """

    count: int
    total_bytes: int
    largest_bytes: int
    values: pa.Table = field(default_factory=lambda: NO_VALUES, compare=False, repr=False)
    shared_stems: frozenset[str] = frozenset()
    name: str = "dataset"
    split: str = "train"
    classes: tuple[str, ...] = ()
    manifest_digest: str = ""
    resize: Mapping[str, Any] | None = None
    member_suffixes: tuple[str, ...] = ()
    blobs: tuple[BlobField, ...] = ()
    columns: tuple[str, ...] = ()
    first: str = ""

    def __post_init__(self) -> None:
        columns = dict(zip(self.values.column_names, self.values.columns, strict=True))
        if not columns.keys() & {"label", "captions"}:
            unknown = pa.py_buffer(np.full(self.count, UNLABELLED))  # pa.array would import pandas
            columns["label"] = pa.Array.from_buffers(pa.int64(), self.count, [None, unknown])
        own = {name: columns.pop(name) for name in OWN_TYPES if name in columns}
        object.__setattr__(self, "values", pa.table(own | columns))

    @classmethod
    def of(cls, samples: Iterable[Sample], values: pa.Table = NO_VALUES, **facts: Any) -> Schema:
        """Build the schema of samples that are all in memory, such as the few that a notebook cell writes.

        Example:
            >>> Schema.of([Sample("cat.jpg", (b"...",), 0)], pa.table({"label": [3]})).largest_bytes
            3

        Args:
            samples: The samples that will be written.
            values: The columns of values of these samples, such as `Reader.table` returns.
            **facts: Other arguments; the sizes of `blobs` are counted here.
        """
        blobs = facts.pop("blobs", ())
        sizes = np.array([[*map(len, each.blobs)] for each in samples], np.int64).reshape(-1, 1 + len(blobs))
        first, *more = (blob.holding(n) for blob, n in zip((BlobField("", ""), *blobs), sizes.T, strict=True))
        return cls(len(sizes), first.total_bytes, first.largest_bytes, values, blobs=tuple(more), **facts)

    @property
    def all_blobs(self) -> tuple[BlobField, ...]:
        """All blob fields: the default field, which has no name, and then the fields in `blobs`."""
        return BlobField("", "", self.total_bytes, self.largest_bytes), *self.blobs

    @property
    def fields(self) -> dict[str, str]:
        """The Arrow type of each value column and the suffix of each blob field, except the standard ones."""
        kinds = {each.name: str(each.type) for each in self.values.schema if each.name not in OWN_TYPES}
        return kinds | {blob.name: blob.suffix for blob in self.blobs}


@dataclass(frozen=True)
class Packed:
    """The record of what a writer wrote.

    Args:
        path: The file, or the folder of shards.
        format: Name of the format.
        samples: Number of samples inside.
        payload_bytes: Sum of the samples' encoded bytes.
        file_bytes: Size of everything written, digests and indexes included.
        files: Every file written, in order.
    """

    path: Path
    format: str
    samples: int
    payload_bytes: int
    file_bytes: int
    files: tuple[Path, ...] = field(default=())


class Blob(Protocol):
    """Random access to the bytes of one field; `Reader.blob` returns more."""

    def __len__(self) -> int: ...

    def size(self, index: int) -> int:
        """Return the number of bytes of one blob."""

    def read(self, index: int) -> Buffer:
        """Return the bytes of one blob. See `Reader.read`."""


@runtime_checkable
class Reader(Protocol):
    """Random access to the samples of a packed file, whatever its format.

    Methods that read blobs take the name of a field; without one, they read the default field.

    A reader opens its handle at first use, once per process, and reads by position: no offset is
    shared after a `fork`. It can be pickled (without handles) and used from threads.
    """

    path: Path

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample: its key, the bytes of its files, and its values, by the names of the fields.

        Together with `len`, other loaders such as Grain ask for this. The bytes are copies, so that every
        loader can send them to another process.
        """
        blobs = [name for name, kind in self.fields.items() if not kind or kind.startswith(".")]
        files = [bytes(data) for [data] in self.read_fields([index], blobs)]
        (values,) = self.table(rows=[index]).to_pylist()
        return {"key": self.key(index), **dict(zip(blobs, files, strict=True)), **values}

    @property
    def fields(self) -> Mapping[str, str]:
        """The name and kind of each field, the default field first: `.jpg` for blobs, `int64` for values."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order; empty if unknown."""

    def keys(self) -> pa.StringArray:
        """Return all keys as one column. A list of a million Python strings would use 130 MB per process."""

    def key(self, index: int) -> str:
        """Return the key of one sample."""

    def table(self, names: Iterable[str] | None = None, rows: Rows | None = None) -> pa.Table:
        """Return the values of fields: `label` or `captions`, `meta`, and all others.

        Args:
            names: Names of the fields; None means all value fields.
            rows: Numbers of samples, in any order; None means all samples. If only a few rows are requested,
                only these are read, so that no process keeps a copy of the columns of a million samples.
        """

    def target(self, index: int) -> Any:
        """Return the label or captions of one sample. Use `table` to read those of many samples at once."""

    def added(self) -> Mapping[str, pa.Array]:
        """Return the columns that `annotate` added later. `table` returns them, too."""

    @property
    def set_digest(self) -> str | None:
        """The set digest of what was packed, where the file records it."""

    def blob(self, name: str) -> Blob:
        """Return access to the blobs of one field."""

    def size(self, index: int, field: str = "") -> int:
        """Return the number of encoded bytes of a blob, without reading them if the format allows it."""

    def read(self, index: int, field: str = "") -> Buffer:
        """Return the encoded bytes of one blob: a memoryview, without a copy if the format allows it.

        It can be sent to another process, which receives a view of a copy.
        """

    def read_many(self, indices: Sequence[int], field: str = "") -> list[Buffer]:
        """Return several blobs in the requested order, fetched in the cheapest order."""

    def read_fields(self, indices: Sequence[int], fields: Sequence[str]) -> list[list[Buffer]]:
        """Return the blobs of several samples, a list for each field, requested together."""

    def span(self, index: int, field: str = "") -> tuple[Path, int, int] | None:
        """Return where a blob is: file, first byte, end (exclusive); None if it is not in one piece."""

    def sha256(self, index: int, field: str = "") -> str | None:
        """Return the SHA-256 of a blob as packed (hexadecimal), where the format has it."""

    def info(self) -> dict[str, Any]:
        """Return facts that JSON can store: format, samples, bytes, layout, and provenance."""

    def close(self) -> None:
        """Release the file; later reads raise an error."""

    def __iter__(self) -> Iterator[Sample]:
        """Yield all samples in stored order. The row of a sample is its row in `table`."""


class ByteStore(Protocol):
    """The source of the bytes of a manifest's paths: a folder, or a tar file that is read in place.

    Thread-safe and picklable, since packing keeps many reads in flight.
    """

    sequential: bool
    """True if samples can only be read in manifest order (a compressed stream)."""

    def size(self, path: str) -> int:
        """Return the number of bytes of one sample.

        On a folder this costs a metadata operation. In an indexed tar it is free.
        """

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one sample into the start of `buffer`; return its size.

        A return value greater than `len(buffer)` means that the sample is larger than the buffer
        and that its content must not be used; the caller tries again with a larger one.
        """

    def describe(self) -> str:
        """Return a description for messages, such as `folder /data/imagenet` or `tar train.tar`."""
