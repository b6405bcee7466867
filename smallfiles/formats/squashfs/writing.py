"""Stream samples into an image, and the table of samples behind them.

The trap: a squashfs image names its files in tables at the end and is described by its first 96 bytes,
which are known last. They are put in place when everything else is written, and the digest of their
block is taken again. Notebook 06 packs images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pysquashfs.writer import ImageWriter, Settings
from pysquashfs.writer.tree import MAX_PATH_BYTES
from smallfiles.errors import FormatError
from smallfiles.formats.columns import Columns
from smallfiles.formats.output import OutputFile, packed
from smallfiles.formats.squashfs.member import FOLDER, PLACE, README, TABLE, Place, readme, table
from smallfiles.formats.squashfs.sentences import as_sentences
from smallfiles.keys import MAX_COMPONENT_BYTES, is_writable_name
from smallfiles.samples import Buffer, Packed, Sample, Schema


def write_image(
    samples: Iterable[Sample], out: Path, schema: Schema, options: Any, settings: Settings, digest: bool
) -> Packed:
    """Write the image; see `smallfiles.formats.squashfs.write`."""
    placed = settings.raw and not settings.fragments
    places = {"bytes": pa.int64(), **({"start": pa.int64()} if placed else {})}
    columns = Columns(out, schema, more=places)
    with OutputFile(out, digest=digest) as file, as_sentences():
        writer = ImageWriter(file.append, settings)
        try:
            for sample in samples:
                columns.add(sample, *(len(sample.data), file.position)[: len(places)])
                _check_name(sample.key, out)
                writer.add(sample.key, sample.data)
            count, payload = writer.files, writer.bytes
            _add_table(writer, file, table(columns, schema, options, settings.block_bytes), placed)
            file.patch(0, writer.close())
        finally:
            writer.abandon()
        return packed("squashfs", file.finish(), count, payload)


def _add_table(writer: ImageWriter, file: OutputFile, pieces: Iterator[Buffer], placed: bool) -> None:
    """The folder of our own; its files come last, the place of the table as the last of the data."""
    writer.add(README, readme(file.position))
    start = file.position
    writer.add_pieces(TABLE, pieces)
    if placed:
        stop = file.position
        writer.add(PLACE, Place(start, stop, stop).dumps())


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
