"""Stream samples into an image, and the table of samples behind them.

The trap: a squashfs image names its files in tables at the end and is described by its first 96 bytes,
which are known last. They are put in place when everything else is written, and the digest of their
block is taken again. Notebook 06 packs images.
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
from smallfiles.errors import FormatError, UsageError
from smallfiles.formats.columns import SampleColumns
from smallfiles.formats.output import OutputFile, packed
from smallfiles.formats.squashfs.member import (
    FOLDER,
    PLACE,
    README,
    TABLE,
    Extent,
    as_sentences,
    readme,
    table,
)
from smallfiles.keys import MAX_COMPONENT_BYTES, is_writable_name
from smallfiles.samples import Buffer, Packed, Sample, Schema


@dataclass(frozen=True)
class SquashfsOptions:
    """How to lay out an image. The defaults suit photographs, which do not become smaller.

    Args:
        compression: `none`; or `gzip` or `zstd` for data that compresses (JSON, raw pixels).
        level: Of the compressor; None for its default.
        block_bytes: A power of two from 4,096 to 1,048,576; what is compressed as one.
        fragments: Put the ends of files together: smaller, and slow to read at random.
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
    """Write samples into one image.

    A million files become one, which costs a parallel file system one open instead of a million; and
    programs that want a tree can mount it.

    Args:
        samples: In the order they shall be stored.
        out: A name that is free.
        schema: What is packed.
        options: Compression and blocks.
        digest: Whether to write the content digest beside it.

    Returns:
        What was written.

    Raises:
        FormatError: A key cannot be a file name, collides with another, or a sample does not fit the schema.
        ResourceError: No space or no permission.
    """
    options = options or SquashfsOptions()
    settings = options.settings()
    placed = settings.raw and not settings.fragments
    places = {"bytes": pa.int64(), **({"start": pa.int64()} if placed else {})}
    columns = SampleColumns(out, schema, more=places)
    with OutputFile(out, digest=digest) as file, as_sentences():
        writer = ImageWriter(file.append, settings)
        try:
            for sample in samples:
                columns.add(sample, *(len(sample.data), file.position)[: len(places)])
                _check_name(sample.key, out)
                writer.add(sample.key, sample.data)
            count, payload = writer.files, writer.bytes
            _add_table(writer, file, table(columns, schema, options, settings.block_bytes), placed)
            file.rewrite(writer.close())
        finally:
            writer.abandon()
        return packed(out, "squashfs", count, payload, file.finish())


def _add_table(writer: ImageWriter, file: OutputFile, pieces: Iterator[Buffer], placed: bool) -> None:
    """The folder of our own; its files come last, the place of the table as the last of the data."""
    writer.add(README, readme(file.position))
    start = file.position
    writer.add_pieces(TABLE, pieces)
    if placed:
        stop = file.position
        writer.add(PLACE, Extent(start, stop, stop).dumps())


def _check_name(key: str, out: Path) -> None:
    if key.partition("/")[0] == FOLDER:
        raise _unwritable(key, out, "lies in the folder that is kept for the table of samples")
    if not is_writable_name(key):
        raise _unwritable(key, out, f"has a part of more than {MAX_COMPONENT_BYTES} bytes")
    if len(key.encode()) > MAX_PATH_BYTES:
        raise _unwritable(key, out, f"has more than {MAX_PATH_BYTES:,} bytes")


def _unwritable(key: str, out: Path, what: str) -> FormatError:
    return FormatError(
        f"the key {key if len(key) < 200 else key[:200] + '…'!r} for {out} {what}",
        expected="a name that a file can have in an image",
        next_step="Pack into .arrow, .h5 or .tars, where any name can be, or rename the sample",
    )
