"""Which files in a squashfs file of another program are samples, and their labels by class folder.

A squashfs file is a tree in one file. It is indexed by the rules of a tar, so a source reads it as it reads
one. Opened in place, its images (by suffix) are samples; if there are none, all files are. Their folders are
read as those of any other source.

The trap: a class may consist of links to the files of another one, which a reader of files alone would lose.
Notebook 06 opens such a file.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pysquashfs import SquashFS, layout
from smallfiles.arrays import from_numpy
from smallfiles.errors import FormatError, SourceError, raised_as
from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.formats.columns import write_table
from smallfiles.formats.embedded import Columns
from smallfiles.formats.squashfs.member import as_sentences
from smallfiles.formats.tar.archive import CONTENTS_OF, Archive, KeptTexts, columns_of
from smallfiles.formats.tar.members import MAX_CONTENT_BYTES, Link, Members
from smallfiles.manifest.class_folders import by_folder
from smallfiles.manifest.listing import Files
from smallfiles.samples import Buffer

_FLAG = "--source folder with the tree that was unpacked from it"


@dataclass(frozen=True)
class Foreign:
    """The samples in a squashfs file of another program.

    Args:
        keys: Of all samples.
        labels: The class number of each.
        classes: Names of the classes.
        rows: The number of each among the files.
        split: Canonical name of the split.
        ignored: Number of files that are no samples of it.
    """

    keys: pa.StringArray
    labels: pa.Array
    classes: tuple[str, ...]
    rows: list[int]
    split: str
    ignored: int

    def columns(self, path: Path) -> Columns:
        """Return keys and labels as a table, as it is in a file that this package packed."""
        views: list[Buffer] = []
        write_table(pa.record_batch([self.keys, self.labels], ["key", "label"]), views.extend)
        return Columns(path, b"".join(views))


def find(image: SquashFS, split: str | None) -> Foreign:
    """Find the samples and their labels.

    Args:
        image: The squashfs file.
        split: The requested split, or None.

    Raises:
        FormatError: The split is not there, or must be chosen; or a name or a link makes no sense.
    """
    archive = index(image)
    are_images = archive.having(IMAGE_SUFFIXES)
    are_images = are_images if are_images.any() else ~are_images
    chosen, others = archive.select(are_images), archive.select(~are_images)
    with raised_as(SourceError, FormatError):
        files = Files(image.path, chosen.names, others.names, archive.folders, classes_flag=_FLAG)
        found = by_folder(files, split)
    kept = np.flatnonzero(found.keep)
    labels = from_numpy(found.labels.astype(np.int64))
    keys = chosen.names.take(from_numpy(kept))
    rows = chosen.offsets[kept].tolist()
    return Foreign(keys, labels, found.classes, rows, found.split, len(image) - len(kept))


class SquashedTree(Archive):
    """The files of a squashfs file; `offsets` are their numbers in it."""


def index(image: SquashFS) -> SquashedTree:
    """Return the files of a squashfs file, those that its links lead to included, without hidden ones.

    Raises:
        FormatError: A name is not portable, or a link leads out.
    """
    files, others, found = image.index.files, image.index.others, Members()
    for row in range(len(files)):
        found.names.append(files.names.raw(row))
    found.offsets, found.sizes = array("q", range(len(files))), array("q", files.size.tolist())
    for row, kind in enumerate(others.kind.tolist()):
        name = others.names.raw(row)
        if kind == layout.DIRECTORY:
            found.folders.append(name)
        elif kind == layout.SYMLINK:
            first, count = int(others.target[row]), int(others.target_bytes[row])
            found.links.append(Link(name, others.targets[first : first + count].tobytes(), False, 0))
        else:
            found.skipped[layout.INODE_TYPES[kind]] += 1
            found.examples.append(os.fsdecode(name))
    texts = [
        row
        for row, size in enumerate(found.sizes)
        if found.names[row].lower().endswith(CONTENTS_OF) and size <= MAX_CONTENT_BYTES
    ]
    KeptTexts(image.path, image.index.image_bytes).add(sum(found.sizes[row] for row in texts))
    found.contents.update((row, image.read_at(row)) for row in texts)
    return SquashedTree(**vars(columns_of(image.path, None, image.index.image_bytes, found)))


class SquashedFile:
    """An open squashfs file whose files are read by their numbers."""

    def __init__(self, path: Path) -> None:
        self._image = SquashFS(path)

    def read(self, start: int, stop: int) -> bytes:
        """The first `stop - start` bytes of file number `start`."""
        with as_sentences():
            return self._image.read_at(start)[: stop - start]

    def read_into(self, start: int, buffer: memoryview) -> None:
        """A whole file into a buffer of its size, a block at a time."""
        got = 0
        with as_sentences():
            for piece in self._image.chunks(self._image.paths[start]):
                buffer[got : got + len(piece)] = piece
                got += len(piece)
