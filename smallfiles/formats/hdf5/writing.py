"""Write HDF5: the samples' bytes directly into the file, the small columns through the library.

The trap: `dataset[i] = np.array(list(data))` makes a Python integer of every byte and takes 4 ms for
one photograph; `np.frombuffer` takes 2 µs. Notebook 04 measures both.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyarrow as pa

from smallfiles.digests import BlockHasher
from smallfiles.errors import FormatError, ResourceError, UsageError, writing
from smallfiles.formats import provenance
from smallfiles.formats.blob import arrays_of, arrays_of_values
from smallfiles.formats.columns import SampleColumns, refuse_fields
from smallfiles.formats.hdf5.layout import HOME, with_checksum
from smallfiles.formats.output import OutputFile, packed, save_digest
from smallfiles.samples import OWN_TYPES, Buffer, Packed, Sample, Schema

# Fixed, so that a newer library writes the same bytes; 1.8 allows attributes larger than 64 KiB.
_LAYOUT: dict[str, Any] = {
    "libver": ("v108", "v110"),
    "locking": False,  # parallel file systems often refuse locks, and nobody else uses the name
    "alignment_threshold": 1 << 16,
    "alignment_interval": 1 << 12,
}


@dataclass(frozen=True)
class HDF5Options:
    """How to lay out an HDF5 file.

    Args:
        layout: `blob` for speed, `vlen` for the Jülich loaders (labels of 16 bits, no captions).
    """

    layout: Literal["blob", "vlen"] = "blob"

    def __post_init__(self) -> None:
        if self.layout not in ("blob", "vlen"):
            raise UsageError(
                f"the HDF5 layout is {self.layout!r}",
                expected="blob or vlen",
                next_step="Choose blob unless a Jülich loader must read the file",
            )


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: HDF5Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one HDF5 file.

    A million files become one, which costs a parallel file system one open instead of a million.

    Args:
        samples: In the order in which they are stored; at most `schema.count`.
        out: A name that does not exist.
        schema: What is packed; sizes are upper bounds.
        options: The layout.
        digest: Whether to write the content digest beside it (`vlen` is read again for that).

    Returns:
        What was written.

    Raises:
        FormatError: A sample does not fit the schema or the layout.
        ResourceError: No space or no permission.
    """
    options = options or HDF5Options()
    write_layout = _write_vlen if options.layout == "vlen" else _write_blob
    return write_layout(samples, out, schema, options, digest)


def _write_blob(
    samples: Iterable[Sample], out: Path, schema: Schema, options: HDF5Options, digest: bool
) -> Packed:
    """Write the blob layout."""
    columns, count = SampleColumns(out, schema), 0
    with ExitStack() as stack:
        runs = [
            # The first takes the digest, and in the end reads what the others wrote.
            _Run(stack.enter_context(OutputFile(out, digest=digest and not number, start=start)), room)
            for number, (start, room) in enumerate(_lay_out(out, schema, options))
        ]
        for count, sample in enumerate(samples, 1):
            for run, data in zip(runs, sample.blobs, strict=True):
                _check_room(sample, count - 1, run.offsets[-1] + len(data), out, schema, run.room)
            columns.add(sample)
            for run, data in zip(runs, sample.blobs, strict=True):
                run.append(data)
        for run in runs:
            run.file.flush()
            run.file.close()
        first, *further = (np.frombuffer(run.offsets, np.uint64) for run in runs)
        keys, values = columns.finish()
        own = chain([("offsets", first)], arrays_of(keys["key"], values))
        _complete(out, schema, chain(own, _fields(values, schema, further)))
        return packed(out, "hdf5", count, sum(run.offsets[-1] for run in runs), runs[0].file.finish())


class _Run:
    """The bytes of one field of all samples while they are written, and where each ends.

    Args:
        file: Writes at its own place of the file.
        room: How many bytes there is room for.
    """

    def __init__(self, file: OutputFile, room: int) -> None:
        self.file, self.room, self.offsets = file, room, array("Q", [0])

    def append(self, data: Buffer) -> None:
        """Add the bytes of a sample."""
        self.file.append([data])
        self.offsets.append(self.offsets[-1] + len(data))


def _fields(
    values: Mapping[str, pa.Array], schema: Schema, offsets: Iterable[np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Path and values of each array of the further fields."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for blob, theirs in zip(schema.blobs, offsets, strict=True):
        found[blob.name] = {"offsets": theirs}
    found |= {name: arrays_of_values(column) for name, column in values.items() if name not in OWN_TYPES}
    for field, arrays in found.items():
        for name, each in with_checksum(schema.fields[field], arrays).items():
            yield f"{HOME}/{field}/{name}", each


def _write_vlen(
    samples: Iterable[Sample], out: Path, schema: Schema, options: HDF5Options, digest: bool
) -> Packed:
    """Write the layout that the Jülich loaders read, and our further columns."""
    if "captions" in schema.values.column_names:
        raise FormatError(
            f"{out} would hold captions in the vlen layout",
            expected="integer labels, which is all that this layout has",
            next_step="Choose the blob layout",
        )
    refuse_fields(out, schema, "the vlen layout of HDF5")
    columns, count, payload = SampleColumns(out, schema, labels=range(-(2**15), 2**15)), 0, 0
    with _opened(out, "x") as file:
        group = _start(file, out, schema, options)
        images = group.create_dataset("images", (schema.count,), dtype=h5py.vlen_dtype(np.uint8))
        for count, sample in enumerate(samples, 1):
            payload += len(sample.data)
            _check_room(sample, count - 1, payload, out, schema, schema.total_bytes)
            columns.add(sample)
            with _translated(out):
                images[count - 1] = np.frombuffer(sample.data, np.uint8)
        with _translated(out):
            file.flush()
    keys, values = columns.finish()
    _complete(out, schema, arrays_of(keys["key"], values, "targets", "<i2"))
    files = save_digest(out, BlockHasher() if digest else None)
    return packed(out, "hdf5", count, payload, files)


def _lay_out(out: Path, schema: Schema, options: HDF5Options) -> list[tuple[int, int]]:
    """Make the file with room for all bytes of each field; return the offset and the size of each room."""
    with _opened(out, "x") as file, _translated(out):
        group = _start(file, out, schema, options)
        return [
            _make_room(group.create_group(f"{HOME}/{blob.name}") if blob.name else group, blob.total_bytes)
            for blob in schema.all_blobs
        ]


def _make_room(group: h5py.Group, size: int) -> tuple[int, int]:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)
    space = h5py.h5s.create_simple((size,))
    data = h5py.h5d.create(group.id, b"data", h5py.h5t.STD_U8LE, space, plan)
    return int(data.get_offset() or 0), size


def _start(file: h5py.File, out: Path, schema: Schema, options: HDF5Options) -> h5py.Group:
    if not schema.split.strip("./") or "\0" in schema.split:
        raise UsageError(
            f"the split of {out} is named {schema.split!r}",
            expected="a name for an HDF5 group, such as train",
            next_step="Name the split in the manifest",
        )
    # Of fixed length: a variable-length one is in a heap, and if that is damaged the library can hang.
    text = provenance.dumps(provenance.record("hdf5", schema, options))
    file.attrs["provenance"] = np.bytes_(text.encode("ascii"))
    return file.create_group(schema.split)


def _check_room(sample: Sample, number: int, stop: int, out: Path, schema: Schema, room: int) -> None:
    if number >= schema.count or stop > room:
        raise FormatError(
            f"{sample.key!r} is more than {out} has room for",
            expected=f"at most {schema.count:,} samples of {room:,} bytes, as the schema says",
            next_step="Make the manifest again if the data changed",
        )


def _complete(out: Path, schema: Schema, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Add the small columns, one after the other, and finally the mark that nothing is missing.

    Data sets are kept until they are flushed, because h5py hides an error that occurs when one is freed.
    """
    with _opened(out, "r+") as file, _translated(out):
        group = file[schema.split]
        kept = [group.create_dataset(name, data=values) for name, values in arrays]
        file.flush()
        file.attrs["complete"] = np.uint8(1)
        file.flush()
        del kept


@contextlib.contextmanager
def _opened(out: Path, mode: str) -> Iterator[h5py.File]:
    """Open and close with failures reported; errors inside the block are not translated."""
    with _translated(out):
        file = h5py.File(out, mode, **_LAYOUT)
    try:
        yield file
    finally:
        with _translated(out):
            file.close()


@contextlib.contextmanager
def _translated(out: Path) -> Iterator[None]:
    """HDF5 reports a full disk in many ways; report it in one."""
    with writing(out):
        try:
            yield
        except (RuntimeError, ValueError, KeyError) as error:
            raise ResourceError(
                f"{out} cannot be written (HDF5: {str(error).splitlines()[0]})",
                expected="free space and a file system that takes it",
                next_step="Check space and quota, and try again",
            ) from error
