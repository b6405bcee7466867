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
import pyarrow as pa

from pysquashfs import SquashFS, layout, superblock
from pysquashfs.image_file import ImageFile
from pysquashfs.index import RAW
from pysquashfs.reading import spans
from smallfiles.arrays import as_integers
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.columns import further_names
from smallfiles.formats.squashfs import foreign, member
from smallfiles.formats.squashfs.member import PLACE_BYTES, TABLE, Extent, Samples, as_sentences
from smallfiles.formats.table import Extents, Place, SampleTable, Stored


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
        end = block.inode_table
        own = end - PLACE_BYTES
        place = Extent.loads(file.read(own, end), own) if own >= layout.SUPERBLOCK.size else None
        if place is not None:
            samples = member.load(file.read(place.start, place.stop), path)
            if samples.starts:
                return SquashFSTable(file, block, samples, _placed(file, samples, place.start))
        # Without an index file beside it, since the squashfs file may be about to be renamed.
        image = SquashFS(path)
        if place is None and TABLE not in image.paths:
            found = foreign.find(image, split)
            files = {"": _FilesByInode(file, image, found.rows)}
            return SquashFSTable(file, block, found.samples, files, image, found)
        if place is None:
            samples = member.load(image.read(TABLE), path)
        return SquashFSTable(file, block, samples, _found_by_name(file, samples, image), image)


def _suffixes(samples: Samples) -> dict[str, str]:
    """Field and suffix of the blobs of each sample, in the order of the table; the default has no name."""
    stated = provenance.blob_suffixes(samples.record)
    return {field: stated.get(field, "") for field in dict.fromkeys(["", *samples.sizes])}


def _placed(file: ByteFile, samples: Samples, end: int) -> dict[str, Extents]:
    """Take the extents of all files from the table, without reading an inode."""
    if samples.starts.keys() != samples.sizes.keys() or "" not in samples.starts:
        raise damaged(file.path, "its table of samples lacks a column")
    for field, sizes in samples.sizes.items():
        starts = samples.starts[field]
        wrong = (starts < 0) | (starts > end) | (sizes < 0) | (sizes > end - starts)
        if wrong.any():
            raise damaged(file.path, f"{int(wrong.sum())} samples are outside its data")
    return {
        field: Stored(file, samples.starts[field], samples.sizes[field], suffix)
        for field, suffix in _suffixes(samples).items()
    }


def _found_by_name(file: ByteFile, samples: Samples, image: SquashFS) -> dict[str, Extents]:
    """Find the files of all samples by their names, where they are compressed or in pieces."""
    extents: dict[str, Extents] = {}
    for field, suffix in _suffixes(samples).items():
        names = further_names(samples.keys, field, suffix) if field else samples.keys
        rows = [image.index.files.names.find(name.as_py().encode()) for name in names]
        if -1 in rows:
            name = names[rows.index(-1)].as_py()
            raise damaged(file.path, f"{rows.count(-1)} samples are not in it, {name!r} for one")
        extents[field] = files = _FilesByInode(file, image, rows, suffix)
        stated = samples.sizes.get(field)
        if stated is not None and (np.asarray(files.sizes) != stated).any():
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
        super().__init__(file, starts, np.asarray(files.size[wanted], np.int64), suffix)
        self._file, self._image = file, image
        self._stored, self._rows = as_integers(stored), as_integers(wanted)
        self._raw = memoryview((files.flags[wanted] & RAW != 0).tobytes())

    def place(self, row: int) -> Place:
        if self._raw[row]:
            return super().place(row)
        source = _Decoded(self._file, self._image, self._rows[row], self._stored[row], self.sizes[row])
        return source, self.start[row], self.start[row] + self.sizes[row]


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


class SquashFSTable(SampleTable):
    """A squashfs file and its samples.

    Args:
        file: The squashfs file.
        block: Its superblock.
        samples: Keys and values.
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
        samples: Samples,
        files: Mapping[str, Extents],
        image: SquashFS | None = None,
        other: foreign.Foreign | None = None,
    ) -> None:
        super().__init__(file.path, len(samples.keys), files, samples.record, file.size)
        self.in_stored_order = image is None
        self._block, self._samples, self._image, self._other = block, samples, image, other

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the table, or from the folders."""
        return self._samples.classes

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        return {name: column.type for name, column in self._samples.values.items()}

    def load(self, name: str) -> pa.Array:
        return self._samples.keys if name == "key" else self._samples.values[name]

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
        own = end - PLACE_BYTES
        data = ByteFile(path, "pread").read(own, end) if own >= layout.SUPERBLOCK.size else b""
        if Extent.loads(data, own) is not None:
            return None
        image = SquashFS(path)
        return None if TABLE in image.paths else foreign.index(image)
