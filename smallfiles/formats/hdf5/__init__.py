"""HDF5: one file that every language on every cluster can read.

Two layouts. `blob`, the default, is one long run of bytes and its offsets: written at the speed of
the disk and read back without the HDF5 library. `vlen` has one variable-length row per sample, which
is what the Jülich course's loaders read (`images`, `targets`).

    /<split>/data          uint8[total]       /<split>/images    vlen uint8[n]
    /<split>/offsets       uint64[n+1]        /<split>/targets   int16[n]
    /<split>/labels        int64[n]
      or caption_data, caption_offsets, caption_rows
    /<split>/key_data, key_offsets; meta_data, meta_offsets where a sample has a JSON object
    /<split>/fields/NAME/… further files and values: see `smallfiles.formats.hdf5.layout`
    attributes: provenance (JSON), complete (1, written last)

The trap: workers share an HDF5 handle that is open when they start, even if they open the file again, and may
get wrong bytes from it. This reader only looks up where the bytes are, through a descriptor of its own,
closes the library, and reads by position. Notebook 04 teaches it, and reproduces the fault.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyarrow as pa

from smallfiles.arrays import as_integers
from smallfiles.digests import BlockHasher
from smallfiles.errors import FormatError, ManifestError, ResourceError, UsageError, first_line, writing
from smallfiles.fields import type_named
from smallfiles.formats.blob import ArrayTable, arrays_of, arrays_of_values, required
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.hdf5.layout import (
    HOME,
    Field,
    Found,
    announce_rows,
    find,
    row_lengths,
    row_place,
    with_checksum,
)
from smallfiles.formats.output import OutputFile, SampleColumns, packed, refuse_fields, save_digest
from smallfiles.formats.reader import TableReader
from smallfiles.formats.table import Extents, Place, computed_once, dump_record, record_of
from smallfiles.samples import OWN_TYPES, Buffer, Packed, Sample, Schema


def locate(path: Path, *, split: str | None = None, access: Access = "auto") -> HDF5Table:
    """Open an HDF5 file, and find the samples in it.

    Args:
        path: The file.
        split: The group of the split. The default is the only group, or `train`.
        access: How samples are fetched.

    Raises:
        FormatError: The file is damaged, or has a layout that we do not know.
    """
    file = ByteFile(path, access)
    found = find(file, split)
    if found.start is None:
        rows = required(path, found.arrays, "images")
        table = HDF5Table(file, found, {"": _Rows(file, rows, found.base)}, len(rows), "vlen")
        if not found.record:
            _check_finished(path, rows)
        return table
    offsets = required(path, found.arrays, "offsets")
    return HDF5Table(file, found, _runs(file, found, offsets), len(offsets) - 1, "blob")


def _runs(file: ByteFile, found: Found, offsets: np.ndarray) -> dict[str, Extents]:
    """Return the extents of each field in a file of the blob layout."""
    runs: dict[str, Extents] = {"": _Run(file, found.start or 0, found.stop, lambda: offsets)}
    rows = len(offsets) - 1
    for name, field in found.fields.items():
        if field.is_blob:
            load = partial(_further_offsets, file.path, name, field, rows)
            runs[name] = _Run(file, field.start, field.size, load, field.kind)
    return runs


def _further_offsets(path: Path, name: str, field: Field, rows: int) -> np.ndarray:
    """Return the offsets of a field after comparing them with their checksum."""
    with _reported(path, name):
        return field.offsets(rows)


class _Run(Extents):
    """The blobs of a field in the blob layout. They follow each other, and offsets divide them.

    Args:
        file: The file.
        start: Offset of the first blob in the file.
        size: Total size of all blobs in bytes.
        load: Loads the offsets. It is called once.
        suffix: Suffix of the files.
    """

    def __init__(
        self, file: ByteFile, start: int, size: int, load: Callable[[], np.ndarray], suffix: str = ""
    ) -> None:
        super().__init__(suffix)
        self._file, self._start, self._size, self._load = file, start, size, load

    @computed_once
    def _offsets(self) -> memoryview[int]:
        found = self._load()  # over the memory of a mapped file, also as integers with a sign
        return as_integers(found.view(np.int64) if found.dtype == np.uint64 else found)

    def place(self, row: int) -> Place:
        offsets = self._offsets
        start, stop = offsets[row], offsets[row + 1]
        if not 0 <= start <= stop <= self._size:
            raise damaged(self._file.path, f"the offsets of sample {row} are {start} and {stop}")
        return self._file, self._start + start, self._start + stop

    def total_bytes(self) -> int:
        return self._offsets[-1]


class _Rows(Extents):
    """The samples of a file in the vlen layout, each of which is a row somewhere in the file.

    Args:
        file: The file.
        rows: The length in bytes, the heap, and the number in the heap of each row.
        base: The offset in the file from which the addresses of heaps count.
    """

    def __init__(self, file: ByteFile, rows: np.ndarray, base: int) -> None:
        super().__init__()
        self._file, self._rows, self._base = file, rows, base

    def size(self, row: int) -> int:
        """Return the size of one sample in bytes without reading its row."""
        return int(row_lengths(self._rows[row : row + 1])[0])

    def place(self, row: int) -> Place:
        return self._file, *row_place(self._file, self._rows[row].tobytes(), self._base)

    def announce(self, rows: Sequence[int]) -> None:
        announce_rows(self._file, self._rows[np.asarray(rows, np.int64)], self._base)

    def total_bytes(self) -> int:
        return int(row_lengths(self._rows).astype(np.int64).sum())


class HDF5Table(ArrayTable):
    """The table of samples of an HDF5 file in either layout."""

    format = "hdf5"
    outlives_fork = True

    def __init__(
        self, file: ByteFile, found: Found, blobs: Mapping[str, Extents], rows: int, layout: str
    ) -> None:
        self._found, self.layout = found, layout
        may_lack = layout == "vlen" and bool(found.record)
        super().__init__(
            file.path, found.arrays, found.record, blobs, rows, may_lack=may_lack, file_bytes=file.size
        )

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        further = {}
        for name, field in self._found.fields.items():
            if not field.is_blob:
                with _reported(self.path, name):
                    further[name] = type_named(field.kind)
        return super().kinds | further

    def load(self, name: str) -> pa.Array:
        if name not in self._found.fields:
            return super().load(name)
        with _reported(self.path, name):
            return self._found.fields[name].column(self.count)

    def about(self) -> dict[str, Any]:
        return {**super().about(), "split": self._found.split}


@contextmanager
def _reported(path: Path, name: str) -> Iterator[None]:
    """Report an error while reading a field as damage of its file."""
    try:
        yield
    except (ValueError, ManifestError) as error:
        what = error.got if isinstance(error, ManifestError) else error
        raise damaged(path, f"its field {name} cannot be read ({what})") from error


def _check_finished(path: Path, rows: np.ndarray) -> None:
    """Refuse a file whose last rows are empty, because writing it was interrupted."""
    filled = np.flatnonzero(row_lengths(rows))
    empty = len(rows) - (int(filled[-1]) + 1 if len(filled) else 0)
    if empty:
        raise damaged(
            path, f"its last {empty:,} of {len(rows):,} rows are empty, so writing it was interrupted"
        )


# Fixed, so that a newer library writes the same bytes; 1.8 allows attributes larger than 64 KiB.
_LAYOUT: dict[str, Any] = {
    "libver": ("v108", "v110"),
    "locking": False,  # parallel file systems often refuse locks, and nobody else uses the name
    "alignment_threshold": 1 << 16,
    "alignment_interval": 1 << 12,
}


@dataclass(frozen=True)
class Options:
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
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one HDF5 file.

    A million files become one, which costs a parallel file system one open instead of a million.

    Args:
        samples: At most `schema.count` samples, in the order in which they are stored.
        out: A path that does not exist.
        schema: What is packed. Its sizes are upper bounds.
        options: The layout.
        digest: Whether to write the content digest beside the file (`vlen` is read again for that).

    Returns:
        What was written.

    Raises:
        FormatError: A sample does not fit the schema or the layout.
        ResourceError: There is no space or no permission.
    """
    options = options or Options()
    write_layout = _write_vlen if options.layout == "vlen" else _write_blob
    return write_layout(samples, out, schema, options, digest)


def _write_blob(
    samples: Iterable[Sample], out: Path, schema: Schema, options: Options, digest: bool
) -> Packed:
    """Write samples in the blob layout."""
    columns, count = SampleColumns(out, schema), 0
    with ExitStack() as stack:
        runs = [
            # The first takes the digest, and in the end reads what the others wrote.
            _DataRun(stack.enter_context(OutputFile(out, digest=digest and not number, start=start)), room)
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


class _DataRun:
    """The bytes of one field of all samples while they are written, and the offsets that divide them.

    Args:
        file: Writes at the place of this field in the file.
        room: Number of bytes that are reserved for the field.
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
    """Yield the path and the values of each array that the additional fields need."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for blob, theirs in zip(schema.blobs, offsets, strict=True):
        found[blob.name] = {"offsets": theirs}
    found |= {name: arrays_of_values(column) for name, column in values.items() if name not in OWN_TYPES}
    for field, arrays in found.items():
        for name, each in with_checksum(schema.fields[field], arrays).items():
            yield f"{HOME}/{field}/{name}", each


def _write_vlen(
    samples: Iterable[Sample], out: Path, schema: Schema, options: Options, digest: bool
) -> Packed:
    """Write the layout that the Jülich loaders read, followed by our additional columns."""
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


def _lay_out(out: Path, schema: Schema, options: Options) -> list[tuple[int, int]]:
    """Make the file with space for all bytes of each field.

    Returns:
        For each field, the offset and the size of the reserved space in bytes.
    """
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


def _start(file: h5py.File, out: Path, schema: Schema, options: Options) -> h5py.Group:
    if not schema.split.strip("./") or "\0" in schema.split:
        raise UsageError(
            f"the split of {out} is named {schema.split!r}",
            expected="a name for an HDF5 group, such as train",
            next_step="Name the split in the manifest",
        )
    # Of fixed length: a variable-length one is in a heap, and if that is damaged the library can hang.
    text = dump_record(record_of("hdf5", schema, options))
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
    """Add the small columns one after the other, and then the mark that nothing is missing.

    Data sets are kept until they are flushed, because h5py hides an error that occurs when a data set is
    freed.
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
    """Open an HDF5 file, and close it at the end.

    Failures to open or close the file are reported as errors of this package. Errors inside the block are not
    translated.
    """
    with _translated(out):
        file = h5py.File(out, mode, **_LAYOUT)
    try:
        yield file
    finally:
        with _translated(out):
            file.close()


@contextlib.contextmanager
def _translated(out: Path) -> Iterator[None]:
    """Report a full disk as one kind of error, because HDF5 reports it in many ways."""
    with writing(out):
        try:
            yield
        except (RuntimeError, ValueError, KeyError) as error:
            raise ResourceError(
                f"{out} cannot be written (HDF5: {first_line(error)})",
                expected="free space and a file system that takes it",
                next_step="Check space and quota, and try again",
            ) from error


def open(path: Path, *, split: str | None = None, access: Access = "auto") -> TableReader:
    """Open an HDF5 file of either layout, ours or the Jülich course's.

    Args:
        path: The file.
        split: The group of the split. The default is the only group, or `train`.
        access: `mmap`, `pread`, or `auto` to choose by file system.

    Returns:
        The reader. It opens the file at first use.
    """
    return TableReader(path, partial(locate, split=split, access=access))
