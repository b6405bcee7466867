"""squashfs: one image that the kernel, FUSE and this package read as a tree of files.

Each sample is a file at its key, so `mount` and `unsquashfs` give the tree back. What a tree cannot say
(targets, order, JSON objects, provenance) stands in the image too, in a folder of its own:

    cat/1.jpg  dog/2.jpg ...        the samples, stored raw one after the other in the order of packing
    .smallfiles/samples.arrow       key, label or captions, meta, and where each sample's bytes begin
    .smallfiles/README.txt          how to read that without this package
    .smallfiles/place               32 bytes, the last of the data: where samples.arrow lies

Images of others are read too: their class folders give the labels.

The trap: squashfs has no checksum of its data, so a flipped byte comes back as if it were right. The
content digest beside the image finds it. Notebook 06 teaches images. Names are those of a file system:
a component has 255 bytes at most, and `a` and `a/b` cannot both exist.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.formats.bytefile import Access
from smallfiles.formats.squashfs.reading import SquashFSReader
from smallfiles.formats.squashfs.writing import SquashfsOptions as Options
from smallfiles.formats.squashfs.writing import write

__all__ = ["SquashFSReader", "Options", "open", "write"]


def open(path: Path, *, split: str | None = None, access: Access = "auto") -> SquashFSReader:
    """Open an image, ours or any other.

    Args:
        path: The image.
        split: Which split of an image of others, whose folders are splits; the only one or `train` if None.
        access: `mmap`, `pread`, or `auto` to choose by file system; for samples that lie raw.

    Returns:
        The reader; the image is touched at first use.
    """
    return SquashFSReader(path, split, access)
