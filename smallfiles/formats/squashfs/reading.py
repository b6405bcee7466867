"""Read samples of a squashfs file at random, without a mount.

A sample that is stored raw and in one piece is a slice of the mapped file or one `pread`; `pysquashfs`
assembles the others.

The trap: if forked workers share a descriptor, and each seeks and then reads, they get bytes of one
another's samples. Every read here names its position. Notebook 06 reproduces both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pysquashfs import SquashFS, superblock
from pysquashfs.image_file import ImageFile
from pysquashfs.index import RAW
from pysquashfs.reading import spans
from smallfiles.arrays import as_integers
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.columns import further_names
from smallfiles.formats.embedded import Columns, EmbeddedTable, TablePlace, load
from smallfiles.formats.squashfs import foreign
from smallfiles.formats.squashfs.member import TABLE, as_sentences
from smallfiles.formats.table import Extents, Place, Stored


def locate(path: Path, *, split: str | None = None, access: Access = "auto") -> SquashFSTable:
    """Open a squashfs file, and find the samples in it.

    Args:
        path: The file.
        split: In a file of another program whose folders are splits: which one.
        access: How samples that are stored raw are fetched.

    Raises:
        FormatError: It is damaged, or the split must be chosen.
    """
    file = ByteFile(path, access)
    with as_sentences():
        block = superblock.read(ImageFile(path))
        place = TablePlace.find(file, block.inode_table)
        columns = None if place is None else load(file, place)
        if place is not None and columns is not None and "start" in columns.schema.names:
            return SquashFSTable(file, block, columns, columns.extents(file, place.start))
        # Without an index file beside it, since the squashfs file may be about to be renamed.
        image = SquashFS(path)
        if columns is None and TABLE in image.paths:
            columns = Columns(path, image.read(TABLE))
        if columns is not None:
            return SquashFSTable(file, block, columns, _found_by_name(file, columns, image), image)
        found = foreign.find(image, split)
        files = {"": _FilesByInode(file, image, found.rows)}
        return SquashFSTable(file, block, found.columns(path), files, image, found)


def _found_by_name(file: ByteFile, columns: Columns, image: SquashFS) -> dict[str, Extents]:
    """Find the files of all samples by their names, where they are compressed or in pieces."""
    extents: dict[str, Extents] = {}
    for field, suffix in columns.suffixes.items():
        names = further_names(columns["key"], field, suffix) if field else columns["key"]
        rows = [image.index.files.names.find(name.as_py().encode()) for name in names]
        if -1 in rows:
            name = names[rows.index(-1)].as_py()
            raise damaged(file.path, f"{rows.count(-1)} samples are not in it, {name!r} for one")
        extents[field] = files = _FilesByInode(file, image, rows, suffix)
        stated = columns.sizes(field)
        if stated is not None and (np.asarray(files.places[1]) != stated).any():
            raise damaged(file.path, "samples have other sizes than its table says")
    return extents


class _FilesByInode(Stored):
    """Files in any squashfs file, where some may be compressed or in pieces.

    Args:
        file: The squashfs file.
        image: It, with its inodes.
        rows: The number of each file in it.
        suffix: Of the files.
    """

    def __init__(self, file: ByteFile, image: SquashFS, rows: list[int], suffix: str = "") -> None:
        wanted, files = np.array(rows, np.int64), image.index.files
        starts, stored = spans(image.index, wanted)
        super().__init__(file, lambda: (starts, files.size[wanted]), suffix)
        self._file, self._image = file, image
        self._stored, self._rows = as_integers(stored), as_integers(wanted)
        self._raw = memoryview((files.flags[wanted] & RAW != 0).tobytes())

    def place(self, row: int) -> Place:
        if self._raw[row]:
            return super().place(row)
        _, start, stop = super().place(row)
        source = _Decoded(self._file, self._image, self._rows[row], self._stored[row], stop - start)
        return source, start, stop

    read = Extents.read  # through `place`


class _Decoded:
    """A file that is compressed or in pieces; positions count from where its stored bytes begin."""

    is_stored = False

    def __init__(self, file: ByteFile, image: SquashFS, number: int, stored: int, size: int) -> None:
        self.path, self.size = file.path, size
        self._file, self._image, self._number, self._stored = file, image, number, stored

    def read(self, start: int, stop: int) -> bytes:
        """Return the whole file, decoded: `start` and `stop` are its ends."""
        with as_sentences():
            return self._image.read_at(self._number)

    def prefetch(self, start: int, stop: int) -> None:
        """Ask the kernel to fetch the stored bytes."""
        self._file.prefetch(start, start + self._stored)


class SquashFSTable(EmbeddedTable):
    """A squashfs file and its samples.

    Args:
        file: The squashfs file.
        block: Its superblock.
        columns: Keys and values.
        files: Where the files of each field are.
        image: It, with its inodes, where they were needed.
        other: What was found in a file of another program.
    """

    format = "squashfs"
    outlives_fork = True

    def __init__(
        self,
        file: ByteFile,
        block: Any,
        columns: Columns,
        files: Mapping[str, Extents],
        image: SquashFS | None = None,
        other: foreign.Foreign | None = None,
    ) -> None:
        super().__init__(file.path, columns, files, file.size)
        self.in_stored_order = image is None
        self._block, self._image, self._other = block, image, other

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the table, or from the folders."""
        return super().classes if self._other is None else self._other.classes

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = {"layout": "raw, in one piece", "block_bytes": self._block.block_bytes}
        if self._image is None:
            return found
        costs = self._image.info()
        found |= {"layout": self._block.compressor, "findings": costs["findings"]}
        found["read_amplification"] = round(costs["read_amplification"], 3)
        if self._other is not None:
            found |= {"layout": f"foreign ({self._block.compressor})", "split": self._other.split}
            found["files_left_aside"] = self._other.ignored
        return found


def tree_of(path: Path) -> foreign.SquashedTree | None:
    """Return the files of a squashfs file that another program wrote; None if `pack` wrote it.

    Raises:
        FormatError: It is damaged, a name is not portable, or a link leads out.
    """
    with as_sentences():
        end = superblock.read(ImageFile(path)).inode_table
        if TablePlace.find(ByteFile(path, "pread"), end) is not None:
            return None
        image = SquashFS(path)
        return None if TABLE in image.paths else foreign.index(image)
