"""The ways to lay out samples in HDF5: how each is written and how one sample is read from it.

All layouts hold the same samples from memory, so that what differs is the layout and not the source.

The trap: a data set that fits into HDF5's chunk cache makes chunks look free. A real one is larger
than any cache, so the cache is set to 1 MiB here. Notebook 04 teaches with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from smallfiles.formats import hdf5
from smallfiles.formats.bytefile import Access
from smallfiles.measure.neighbour import allowance
from smallfiles.samples import Buffer, Sample, Schema
from smallfiles.sources import Source

CHUNK_BYTES = 1 << 20
CHUNK_CACHE_BYTES = 1 << 20
Read: TypeAlias = Callable[[int], Any]
Write: TypeAlias = Callable[[Sequence[Sample], Path], None]


@dataclass(frozen=True)
class Layout:
    """One way to store samples, and one to read them.

    Args:
        name: As in figures.
        write: Writes samples to a path.
        open: Gives a function that reads one sample; None where reading is measured elsewhere.
        slow: Whether writing is measured on few samples only.
    """

    name: str
    write: Write
    open: Callable[[Any], AbstractContextManager[Read]] | None = None
    slow: bool = False


def load(source: Source, most_bytes: int = 64 << 20) -> list[Sample]:
    """The first samples of a source in memory, as many as fit.

    Each small file is opened once, however often the layouts are measured: a good neighbour.

    Args:
        source: Manifest and bytes.
        most_bytes: Sum of the encoded bytes at most.
    """
    manifest, samples, left = source.manifest, [], most_bytes
    for index in range(allowance([source.root or Path()], len(manifest), 1).samples):
        size = source.store.size(manifest.path(index))
        if size > left:
            break
        buffer = bytearray(size)
        source.store.read_into(manifest.path(index), memoryview(buffer))
        samples.append(Sample(manifest.path(index), bytes(buffer), manifest.target(index)))
        left -= size
    return samples


def by_list(data: Buffer) -> np.ndarray:
    """The slow conversion: a Python integer of every byte."""
    return np.array(list(data), dtype=np.uint8)


def by_buffer(data: Buffer) -> np.ndarray:
    """The quick conversion: a view of the bytes."""
    return np.frombuffer(data, np.uint8)


def write_vlen(
    samples: Sequence[Sample], out: Path, convert: Callable[[Buffer], np.ndarray] = by_buffer
) -> None:
    """Write the layout of the Jülich course's script: one variable-length row an image.

    Args:
        samples: With labels of 16 bits.
        out: The file; replaced if it is there.
        convert: From bytes to an array.
    """
    with h5py.File(out, "w", locking=False) as file:
        group = file.create_group("train")
        images = group.create_dataset("images", (len(samples),), dtype=h5py.vlen_dtype(np.uint8))
        targets = group.create_dataset("targets", (len(samples),), dtype=np.int16)
        for index, sample in enumerate(samples):
            images[index] = convert(sample.data)
            targets[index] = sample.target


def write_blob(
    samples: Sequence[Sample], out: Path, chunk_bytes: int = 0, compression: str | None = None
) -> None:
    """Write one run of bytes and its borders through h5py.

    Args:
        samples: With labels.
        out: The file; replaced if it is there.
        chunk_bytes: Size of a chunk; 0 for contiguous storage.
        compression: Of chunks, by its name in h5py.
    """
    borders = np.cumsum([0, *(len(sample.data) for sample in samples)], dtype=np.uint64)
    total = int(borders[-1])
    chunks = (min(chunk_bytes, total),) if chunk_bytes and total else None
    with h5py.File(out, "w", locking=False) as file:
        group = file.create_group("train")
        data = group.create_dataset("data", (total,), np.uint8, chunks=chunks, compression=compression)
        for sample, start in zip(samples, borders.tolist(), strict=False):
            data[start : start + len(sample.data)] = by_buffer(sample.data)
        group["offsets"] = borders
        group["labels"] = np.array([sample.target for sample in samples], np.int64)


def write_ours(samples: Sequence[Sample], out: Path) -> None:
    """Write the blob layout with this package's writer, without a digest."""
    sizes = [len(sample.data) for sample in samples]
    schema = Schema(len(samples), sum(sizes), max(sizes, default=0))
    hdf5.write(samples, out, schema=schema, digest=False)


@contextmanager
def vlen_rows(file: Any) -> Iterator[Read]:
    """Read rows through h5py; `file` is a path or a binary file object."""
    with h5py.File(file, "r") as opened:
        yield opened["train/images"].__getitem__


@contextmanager
def blob_slices(file: Any) -> Iterator[Read]:
    """Read runs of bytes through h5py; `file` is a path or a binary file object."""
    with h5py.File(file, "r", rdcc_nbytes=CHUNK_CACHE_BYTES) as opened:
        data, borders = opened["train/data"], opened["train/offsets"][...].tolist()
        yield lambda index: data[borders[index] : borders[index + 1]]


@contextmanager
def our_reader(path: Path, access: Access = "auto") -> Iterator[Read]:
    """Read either layout with this package's reader, which keeps no handle of the library."""
    with closing(hdf5.open(path, access=access)) as reader:
        yield reader.read


WRITTEN = (
    Layout("vlen from np.array(list(…))", partial(write_vlen, convert=by_list), slow=True),
    Layout("vlen from np.frombuffer", write_vlen),
    Layout("blob", write_blob),
    Layout("blob by our writer", write_ours),
    Layout("blob in 1 MiB chunks", partial(write_blob, chunk_bytes=CHUNK_BYTES)),
    Layout(
        "blob in gzip chunks", partial(write_blob, chunk_bytes=CHUNK_BYTES, compression="gzip"), slow=True
    ),
)
READ = (
    Layout("vlen", write_vlen, vlen_rows),
    Layout("vlen by our reader", write_vlen, our_reader),
    Layout("blob", write_blob, blob_slices),
    Layout("blob by our mmap", write_blob, partial(our_reader, access="mmap")),
    Layout("blob by our pread", write_blob, partial(our_reader, access="pread")),
    Layout("blob in 1 MiB chunks", partial(write_blob, chunk_bytes=CHUNK_BYTES), blob_slices),
    Layout(
        "blob in gzip chunks",
        partial(write_blob, chunk_bytes=CHUNK_BYTES, compression="gzip"),
        blob_slices,
    ),
)
