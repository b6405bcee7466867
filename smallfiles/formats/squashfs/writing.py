"""Stream samples into a squashfs file, followed by the table of samples, which is not part of the tree.

The trap: a squashfs file names its files in tables at the end, and its first 96 bytes say where those
are. They are rewritten when everything else is written, and the digest of their block is taken again.
Notebook 06 packs such files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from pysquashfs.errors import MissingToolError, SquashFSError
from pysquashfs.writer import ImageWriter, Settings
from pysquashfs.writer.settings import DEFAULT_BLOCK_BYTES
from pysquashfs.writer.tree import MAX_PATH_BYTES
from smallfiles.errors import UsageError
from smallfiles.formats import provenance
from smallfiles.formats.columns import SampleColumns, file_names, unwritable
from smallfiles.formats.embedded import TablePlace, pieces, place_column
from smallfiles.formats.output import OutputFile, packed
from smallfiles.formats.squashfs.reading import as_sentences, readme
from smallfiles.samples import Buffer, Packed, Sample, Schema


@dataclass(frozen=True)
class SquashfsOptions:
    """How to lay out a squashfs file. The defaults suit photographs, which do not become smaller.

    Args:
        compression: `none`; or `gzip` or `zstd` for data that compresses (JSON, raw pixels).
        level: Of the compressor; None for its default.
        block_bytes: A power of two from 4,096 to 1,048,576; the unit of compression.
        fragments: Put the ends of files into shared blocks: smaller, and slow to read at random.
    """

    compression: Literal["none", "gzip", "zstd"] = "none"
    level: int | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    fragments: bool = False

    def __post_init__(self) -> None:
        if self.compression not in ("none", "gzip", "zstd"):
            raise UsageError(
                f"the compression is {self.compression!r}",
                expected="none, gzip or zstd",
                next_step="Choose none for images, zstd for data that compresses",
            )
        try:
            self.settings()
        except MissingToolError as error:
            with as_sentences():
                raise error
        except SquashFSError as error:
            raise UsageError(error.got, expected=error.expected, next_step=error.next_step) from error

    def settings(self) -> Settings:
        """The same for `pysquashfs`."""
        return Settings(self.compression, self.level, self.block_bytes, self.fragments)


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: SquashfsOptions | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one squashfs file.

    A million files become one, so that a parallel file system sees one open instead of a million; and
    programs that need a tree can mount it.

    Args:
        samples: In the order in which they are stored.
        out: A name that does not exist.
        schema: What is packed.
        options: Compression and blocks.
        digest: Whether to write the content digest beside it.

    Returns:
        What was written.

    Raises:
        FormatError: A name cannot be that of a file or collides with another, or a sample does not fit.
        ResourceError: No space or no permission.
    """
    options = options or SquashfsOptions()
    settings = options.settings()
    placed = settings.raw and not settings.fragments
    facts = ("bytes", "start")[: 1 + placed]
    places = [place_column(blob.name, what) for blob in schema.all_blobs for what in facts]
    columns = SampleColumns(out, schema, more=dict.fromkeys(places, pa.int64()))
    count = 0
    with OutputFile(out, digest=digest) as file, as_sentences():
        writer = ImageWriter(file.append, settings)
        try:
            for sample in samples:
                columns.add(sample, *_places(sample, file.position, placed))
                for name, data in _files(sample, schema, out):
                    writer.add(name, data)
                count += 1
            payload = writer.bytes
            file.rewrite(writer.close(_record(file, columns, schema, options)))
        finally:
            writer.abandon()
        return packed(out, "squashfs", count, payload, file.finish())


def _places(sample: Sample, position: int, placed: bool) -> Iterator[int]:
    """Size of each file of a sample, and where it begins if they follow each other in one piece."""
    for data in sample.blobs:
        yield len(data)
        if placed:
            yield position
        position += len(data)


def _files(sample: Sample, schema: Schema, out: Path) -> list[tuple[str, Buffer]]:
    """Name and bytes of each file of a sample, all names checked."""
    names = file_names(sample, schema, out, ())
    for name in names:
        if len(name.encode()) > MAX_PATH_BYTES:
            raise unwritable(name, out, f"has more than {MAX_PATH_BYTES:,} bytes")
    return list(zip(names, sample.blobs, strict=True))


def _record(
    file: OutputFile, columns: SampleColumns, schema: Schema, options: SquashfsOptions
) -> Iterator[Buffer]:
    """Yield what follows the data: a text, the table, and where the table is."""
    yield readme(file.position)
    start = file.position
    yield from pieces(columns, provenance.record("squashfs", schema, options))
    yield TablePlace(start, file.position, file.position).dumps()
