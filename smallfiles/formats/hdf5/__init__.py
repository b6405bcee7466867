"""HDF5: one file that every language on every cluster can read.

Two layouts. `blob`, the default, is one long run of bytes and its borders: written at the speed of
the disk and read back without the HDF5 library. `vlen` has one variable-length row a sample, which
is what the Jülich course's loaders read (`images`, `targets`).

    /<split>/data          uint8[total]       /<split>/images    vlen uint8[n]
    /<split>/offsets       uint64[n+1]        /<split>/targets   int16[n]
    /<split>/labels        int64[n]
      or caption_data, caption_offsets, caption_rows
    /<split>/key_data, key_offsets; meta_data, meta_offsets where a sample has a JSON object
    attributes: provenance (JSON), complete (1, written last)

The trap: an HDF5 handle that is opened before the workers start breaks in them. The reader here takes
from the library where the bytes lie, closes it, and reads by position. Notebook 04 teaches it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smallfiles.errors import UsageError
from smallfiles.formats.bytefile import Access
from smallfiles.formats.hdf5.reading import HDF5Reader
from smallfiles.formats.hdf5.writing import write_blob, write_vlen
from smallfiles.samples import Packed, Sample, Schema

NAME = "hdf5"


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
                next_step="Choose blob unless a Jülich loader shall read the file",
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
        samples: In the order they shall be stored; at most `schema.count`.
        out: A name that is free.
        schema: What is packed; sizes are upper bounds.
        options: The layout.
        digest: Whether to write the content digest beside it (`vlen` is read back for that).

    Returns:
        What was written.

    Raises:
        FormatError: A sample does not fit the schema or the layout.
        ResourceError: No space or no permission.
    """
    options = options or Options()
    if options.layout == "vlen":
        return write_vlen(samples, out, schema, options, digest)
    return write_blob(samples, out, schema, options, digest)


def open(path: Path, *, split: str | None = None, access: Access = "auto") -> HDF5Reader:
    """Open an HDF5 file of either layout, ours or one of the Jülich course.

    Args:
        path: The file.
        split: The group; by default the only one, or `train`.
        access: `mmap`, `pread`, or `auto` to choose by file system.

    Returns:
        The reader; the file is touched at first use.
    """
    return HDF5Reader(path, split, access)
