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

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from smallfiles.errors import UsageError
from smallfiles.formats.bytefile import Access
from smallfiles.formats.zarr.reading import ZarrReader
from smallfiles.formats.zarr.writing import write_group
from smallfiles.samples import Packed, Sample, Schema

NAME = "zarr"


@dataclass(frozen=True)
class Options:
    """How to cut the bytes of all samples.

    Args:
        chunk_bytes: What the zarr library reads at least; our reader does not look at chunks.
        shard_bytes: Bytes per file, a multiple of `chunk_bytes`; a smaller set has one smaller file.
    """

    chunk_bytes: int = 128 << 10
    shard_bytes: int = 512 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_bytes <= self.shard_bytes <= 1 << 40 or self.shard_bytes % self.chunk_bytes:
            raise UsageError(
                f"shards of {self.shard_bytes} bytes with chunks of {self.chunk_bytes} were asked for",
                expected="a positive multiple of the chunks, 1 TiB at most",
                next_step="Start with 536870912 and 131072",
            )


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into a folder of zarr arrays.

    Args:
        samples: In the order in which they are stored.
        out: Folder, a name that is free.
        schema: What is packed; sizes are upper bounds.
        options: Chunks and shards.
        digest: Whether to write a content digest beside each file.

    Returns:
        What was written.

    Raises:
        FormatError: A sample does not fit the schema.
        ResourceError: No space or no permission.
    """
    return write_group(samples, out, schema, options or Options(), digest)


def open(path: Path, *, access: Access = "auto") -> ZarrReader:
    """Open a zarr group of this layout, ours or one of another program (whose `data` is uncompressed).

    Args:
        path: The folder.
        access: `mmap`, `pread`, or `auto` to choose by file system.
    """
    return ZarrReader(path, access)
