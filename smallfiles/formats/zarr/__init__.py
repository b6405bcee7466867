"""zarr, version 3: a folder of arrays, the bytes of all samples in one array of few large files (shards).

    x.zarr/zarr.json            a group, written last
    x.zarr/data/c.0, c.1, …     uint8[total], sharded: chunks of 128 KiB in files of 512 MiB, uncompressed;
                                its attribute `smallfiles` is the provenance
    x.zarr/offsets, labels, key_data, …   the arrays of `smallfiles.formats.blob`, each a single file

    root = zarr.open_group("x.zarr", mode="r")
    first, last = root["offsets"][7:9]
    jpeg, label = root["data"][first:last].tobytes(), root["labels"][7]

The trap: zarr makes a file of every chunk. Chunks as large as a sample are small files again, and larger ones
are read whole for each sample; a shard holds thousands of chunks and tells where each lies. zarr's own
folder is kept, not its ZipStore, since Python before 3.12 reads through a zip to get to a place in it.
Notebook 11 compares it.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.formats.bytefile import Access
from smallfiles.formats.zarr.reading import ZarrReader
from smallfiles.formats.zarr.writing import Options, write

__all__ = ["ZarrReader", "Options", "open", "write"]


def open(path: Path, *, access: Access = "auto") -> ZarrReader:
    """Open a zarr group of this layout, ours or one of another program (whose `data` is uncompressed).

    Args:
        path: The folder.
        access: `mmap`, `pread`, or `auto` to choose by file system.
    """
    return ZarrReader(path, access)
