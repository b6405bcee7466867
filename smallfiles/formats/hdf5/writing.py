"""Write HDF5: the samples' bytes directly into the file, the small columns through the library.

The trap: `dataset[i] = np.array(list(data))` makes a Python integer of every byte and takes 4 ms for
one photograph; `np.frombuffer` takes 2 µs. Notebook 04 measures both.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from smallfiles.digests import BlockHasher
from smallfiles.errors import FormatError, ResourceError, UsageError, writing
from smallfiles.formats import provenance
from smallfiles.formats.blob import arrays_of
from smallfiles.formats.columns import SampleColumns
from smallfiles.formats.output import OutputFile, packed, save_digest
from smallfiles.samples import Packed, Sample, Schema

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
    columns, offsets = SampleColumns(out, schema), array("Q", [0])
    start = _lay_out(out, schema, options)
    with OutputFile(out, digest=digest, start=start) as file:
        for sample in samples:
            stop = offsets[-1] + len(sample.data)
            _check_room(sample, len(offsets) - 1, stop, out, schema)
            columns.add(sample)
            file.append([sample.data])
            offsets.append(stop)
        file.flush()
        file.close()
        _complete(out, schema, chain([("offsets", np.frombuffer(offsets, np.uint64))], arrays_of(columns)))
        return packed(out, "hdf5", len(offsets) - 1, offsets[-1], file.finish())


def _write_vlen(
    samples: Iterable[Sample], out: Path, schema: Schema, options: HDF5Options, digest: bool
) -> Packed:
    """Write the layout that the Jülich loaders read, and our further columns."""
    if schema.target != "label":
        raise FormatError(
            f"{out} would hold captions in the vlen layout",
            expected="integer labels, which is all that this layout has",
            next_step="Choose the blob layout",
        )
    columns, count, payload = SampleColumns(out, schema, labels=range(-(2**15), 2**15)), 0, 0
    with _opened(out, "x") as file:
        group = _start(file, out, schema, options)
        images = group.create_dataset("images", (schema.count,), dtype=h5py.vlen_dtype(np.uint8))
        for count, sample in enumerate(samples, 1):
            payload += len(sample.data)
            _check_room(sample, count - 1, payload, out, schema)
            columns.add(sample)
            with _translated(out):
                images[count - 1] = np.frombuffer(sample.data, np.uint8)
        with _translated(out):
            file.flush()
    _complete(out, schema, arrays_of(columns, "targets", "<i2"))
    files = save_digest(out, BlockHasher() if digest else None)
    return packed(out, "hdf5", count, payload, files)


def _lay_out(out: Path, schema: Schema, options: HDF5Options) -> int:
    """Make the file with room for all bytes; return the offset of that room."""
    with _opened(out, "x") as file, _translated(out):
        group = _start(file, out, schema, options)
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        plan.set_obj_track_times(False)
        space = h5py.h5s.create_simple((schema.total_bytes,))
        data = h5py.h5d.create(group.id, b"data", h5py.h5t.STD_U8LE, space, plan)
        return int(data.get_offset() or 0)


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


def _check_room(sample: Sample, number: int, stop: int, out: Path, schema: Schema) -> None:
    if number >= schema.count or stop > schema.total_bytes:
        raise FormatError(
            f"{sample.key!r} is more than {out} has room for",
            expected=f"at most {schema.count:,} samples of {schema.total_bytes:,} bytes, as the schema says",
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
