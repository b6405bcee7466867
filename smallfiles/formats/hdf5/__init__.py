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

The trap: workers share an HDF5 handle that is open when they start, even if they open the file again. This
reader only looks up where the bytes are, through a descriptor of its own, closes the library, and reads by
position. Notebook 04 teaches it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from smallfiles.formats.bytefile import Access
from smallfiles.formats.hdf5.reading import locate
from smallfiles.formats.hdf5.writing import HDF5Options as Options
from smallfiles.formats.hdf5.writing import write
from smallfiles.formats.reader import TableReader

__all__ = ["Options", "locate", "open", "write"]


def open(path: Path, *, split: str | None = None, access: Access = "auto") -> TableReader:
    """Open an HDF5 file of either layout, ours or the Jülich course's.

    Args:
        path: The file.
        split: The group; by default the only one, or `train`.
        access: `mmap`, `pread`, or `auto` to choose by file system.

    Returns:
        The reader; the file is touched at first use.
    """
    return TableReader(path, partial(locate, split=split, access=access))
