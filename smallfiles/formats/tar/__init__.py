"""Tar shards in the layout of webdataset, with an index for random access beside each.

`x.tar` is one file, `x.tars` a folder of `shard-000000.tar`, … . Every program that reads tar reads them:
webdataset, DALI, tarfile, `tar xf`. Compressed tars are sources only: `open` refuses them, since no sample of
them can be read at random.

The trap: most tools take a tar that was cut at a block boundary for a complete one. `open` refuses it, with
or without the index. Notebook 05 teaches this format.

How a sample is found: `TableReader` asks the `TarTable` of `reader`, whose `Shards` finds shard and row; the
columns of `index` say where its files begin and how long they are. They come from the index file beside the
tar (`index.load`), or from a scan of its headers (`archive.index`, `fields.read`).

Source of the layout: webdataset, "The WebDataset Format" (members of a sample share a stem).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from smallfiles.formats.bytefile import Access
from smallfiles.formats.reader import TableReader
from smallfiles.formats.tar.grouping import DATA_SUFFIXES
from smallfiles.formats.tar.reader import Locate
from smallfiles.formats.tar.shards import NAME, plan_shards, shard_name, write_folder, write_shard
from smallfiles.formats.tar.shards import TarOptions as Options
from smallfiles.samples import Packed, Sample, Schema

__all__ = ["NAME", "Options", "open", "plan_shards", "shard_name", "write", "write_shard"]

_FOLDER = re.compile(r"\.tars(\.|$)")


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Pack samples into one tar, or into a folder of shards if the name of `out` ends in `.tars`.

    One open and one long sequential read replace a thousand small ones, which is what a parallel file
    system is built for.

    Args:
        samples: In the order in which they are stored; keys unique.
        out: File or folder that must not exist yet.
        schema: What is packed.
        options: How to write.
        digest: Write content digests beside the files.

    Returns:
        What was written.

    Raises:
        OutputExistsError: `out` exists.
        FormatError: A sample cannot be stored as `options` and `schema` say.
    """
    options = options or Options()
    if _FOLDER.search(out.name):
        return write_folder(samples, out, schema=schema, options=options, digest=digest)
    return write_shard(samples, out, schema=schema, options=options, digest=digest)


def open(
    path: Path | str,
    access: Access = "auto",
    *,
    suffixes: tuple[str, ...] = DATA_SUFFIXES,
    unlabelled: bool = False,
) -> TableReader:
    """Open a tar or a folder of tars for random access, with or without indexes.

    Args:
        path: Written by this package or by another program.
        access: `mmap`, `pread`, or `auto` (mmap, except on parallel file systems).
        suffixes: In tars of other programs: which members are samples (lower case with the dot).
        unlabelled: In tars of other programs: ignore targets, and give the label -1.
    """
    return TableReader(Path(path), Locate(access, suffixes, unlabelled))
