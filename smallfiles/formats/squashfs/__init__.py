"""squashfs: one file that the kernel, FUSE and this package read as a tree of files.

Each sample is a file at its key, so `mount` and `unsquashfs` give the tree back. What a tree cannot store
(targets, order, JSON objects, provenance) is in a table between the data of the files and the inodes. It
belongs to no file, so that programs that read the tree see the tree alone:

    cat/1.jpg  dog/2.jpg ...    the samples, stored raw one after the other in the order of packing
    cat/1.mask.png ...          their further files, each after the first of its sample
    a text                      how to read the table without this package
    an Arrow file               key, label or captions, meta, values, and where each file's bytes begin
    32 bytes                    where the Arrow file is; the inode table follows

Files of other programs are read too: their class folders give the labels. Older files of ours have the table
as the file `.smallfiles/samples.arrow`.

The trap: squashfs has no checksum of its data, so a flipped byte is returned as if it were right. The
content digest beside the file finds it. Notebook 06 teaches the format. Names are those of a file system:
a component has at most 255 bytes, and `a` and `a/b` cannot both exist.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from smallfiles.formats.bytefile import Access
from smallfiles.formats.reader import TableReader
from smallfiles.formats.squashfs.reading import locate
from smallfiles.formats.squashfs.writing import SquashfsOptions as Options
from smallfiles.formats.squashfs.writing import write

__all__ = ["Options", "locate", "open", "write"]


def open(path: Path, *, split: str | None = None, access: Access = "auto") -> TableReader:
    """Open a squashfs file, ours or any other.

    Args:
        path: The file.
        split: In a file of another program whose folders are splits: which one; if None the only one, or
            `train`.
        access: `mmap`, `pread`, or `auto` to choose by file system; for samples that are stored raw.

    Returns:
        The reader; the file is touched at first use.
    """
    return TableReader(path, partial(locate, split=split, access=access))
