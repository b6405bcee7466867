"""The types that every stop of the road shares: a sample, what a writer knows, what it wrote.

The trap: `Sample.data` may be a view of a larger buffer, which is kept as long as one sample of it. A writer
lets go of samples soon. Notebook 03 shows why that is worth it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

Target: TypeAlias = int | list[str]
TargetKind: TypeAlias = Literal["label", "captions"]
Meta: TypeAlias = dict[str, Any]
Buffer: TypeAlias = bytes | bytearray | memoryview

UNLABELLED = -1
"""The label of a sample whose class is not known, as in a test split."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One item of a data set as it travels from a source to a packed file.

    Args:
        key: Relative POSIX path, unique in its set.
        data: The encoded bytes (a JPEG file, say).
        target: An integer label, or a list of captions.
        meta: An optional JSON object.
    """

    key: str
    data: Buffer
    target: Target
    meta: Meta | None = None


@dataclass(frozen=True)
class Schema:
    """What a writer may know before the first sample arrives.

    Sizes known ahead let a format lay out its file once, without growing it.

    Args:
        count: Number of samples (an upper bound where failing samples are skipped).
        total_bytes: Sum of the encoded bytes; upper bound likewise.
        largest_bytes: The largest sample; decides between 32- and 64-bit offsets.
        target: Whether samples carry labels or captions.
        has_meta: Whether any sample carries a JSON object.
        shared_stems: What keys that differ only from the first dot of their file name on have before it;
            a tar escapes the names of these, and of no others.
        name: Name of the data set.
        split: `train`, `val`, `test` or another word; also the HDF5 group.
        classes: Class names in label order; empty for captions.
        manifest_digest: The set digest of what is packed.
        resize: How pictures were scaled or turned before packing (`short_side`, `store`, `quality`,
            `upright`); None if the
            bytes are those of the source.
        came_as: Suffixes of the members in which a tar of others told captions (`txt`) and JSON objects
            (`json`): a tar is given them back, since programs ask for members by these names.
    """

    count: int
    total_bytes: int
    largest_bytes: int
    target: TargetKind = "label"
    has_meta: bool = False
    shared_stems: frozenset[str] = frozenset()
    name: str = "dataset"
    split: str = "train"
    classes: tuple[str, ...] = ()
    manifest_digest: str = ""
    resize: Mapping[str, Any] | None = None
    came_as: tuple[str, ...] = ()


@dataclass(frozen=True)
class Packed:
    """What a writer wrote.

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


@runtime_checkable
class Reader(Protocol):
    """Random access to the samples of a packed file, whatever its format.

    A reader opens its handle at first use, in each process anew, and reads by position: no
    offset is shared over `fork`. It can be pickled (without handles) and used from threads.
    """

    path: Path

    def __len__(self) -> int: ...

    @property
    def target_kind(self) -> TargetKind:
        """Whether samples carry labels or captions."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order; empty if unknown."""

    def keys(self) -> pa.StringArray:
        """All keys, columnar: a list of a million Python strings would cost 130 MB a process."""

    def key(self, index: int) -> str:
        """Key of one sample."""

    def target(self, index: int) -> Target:
        """Label or captions of one sample."""

    def targets(self, start: int, stop: int) -> list[Target]:
        """Labels or captions of a run of samples, at the price of a few questions."""

    def meta(self, index: int) -> Meta | None:
        """JSON object of one sample, or None."""

    def size(self, index: int) -> int:
        """Number of encoded bytes of a sample, without reading them where the format allows."""

    def read(self, index: int) -> Buffer:
        """The encoded bytes of one sample: a memoryview, without a copy where the format allows.

        A worker process may send it: it arrives as a view of a copy.
        """

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples, in the order asked for, fetched in the order that costs least."""

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """Where a sample's bytes lie: file, first byte, one after the last; None if scattered."""

    def sha256(self, index: int) -> str | None:
        """SHA-256 of a sample as it was packed, in hexadecimal, where the format keeps one."""

    def info(self) -> dict[str, Any]:
        """JSON-ready facts: format, samples, bytes, layout, provenance."""

    def close(self) -> None:
        """Let go of the file; later reads are refused with a sentence."""

    def __iter__(self) -> Iterator[Sample]:
        """All samples in stored order, complete with target and meta."""


class ByteStore(Protocol):
    """Where the bytes of a manifest's paths come from: a folder, or a tar file read in place.

    Thread-safe and picklable, since packing keeps many reads in flight.
    """

    sequential: bool
    """True if samples can only be read once, in manifest order (a compressed stream)."""

    def size(self, path: str) -> int:
        """Bytes of one sample; a metadata operation on a folder, free in an indexed tar."""

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one sample into the start of `buffer`; return its size.

        A return value greater than `len(buffer)` says that the sample is larger than the buffer
        and that nothing of it may be used; the caller comes again with a larger one.
        """

    def describe(self) -> str:
        """Where this is, in words, for messages: `folder /data/imagenet`, `tar train.tar`."""
