"""Read samples of a squashfs file at random, without a mount.

A sample that is stored raw and in one piece is a slice of the mapped file or one `pread`; `pysquashfs`
assembles the others.

The trap: if forked workers share a descriptor, and each seeks and then reads, they get bytes of one
another's samples. Every read here names its position. Notebook 06 reproduces both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
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
from smallfiles.formats.placed import FileReader, OpenedFile, PlacedBlob, Places
from smallfiles.formats.squashfs import foreign, member
from smallfiles.formats.squashfs.member import PLACE_BYTES, TABLE, Extent, Samples, as_sentences
from smallfiles.samples import Buffer


class _Files:
    """The files of one field, stored raw: where their bytes are.

    Args:
        file: The squashfs file.
        starts: Where the bytes of each begin.
        sizes: How many each has.
    """

    def __init__(self, file: ByteFile, starts: np.ndarray, sizes: np.ndarray) -> None:
        self._file = file
        self.start, self.size = as_integers(starts), as_integers(sizes)
        self._stored = self.size

    def is_raw(self, index: int) -> bool:
        """Whether the bytes of a file are stored uncompressed and in one piece."""
        return True

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        """The squashfs file, first byte, and one after the last."""
        return self._file, self.start[index], self.start[index] + self.size[index]

    def prefetch(self, index: int) -> None:
        """Ask the kernel to fetch the stored bytes of a file."""
        self._file.prefetch(self.start[index], self.start[index] + self._stored[index])

    def read(self, index: int) -> Buffer:
        """All bytes of a file."""
        start = self.start[index]
        return memoryview(self._file.read(start, start + self.size[index]))


class _FilesByInode(_Files):
    """The same in any squashfs file, where some may be compressed or in pieces.

    Args:
        file: The squashfs file.
        image: It, with its inodes.
        rows: The number of each file in it.
    """

    def __init__(self, file: ByteFile, image: SquashFS, rows: list[int]) -> None:
        wanted, files = np.array(rows, np.int64), image.index.files
        starts, stored = spans(image.index, wanted)
        super().__init__(file, starts, np.asarray(files.size[wanted], np.int64))
        self._stored, self._rows, self._image = as_integers(stored), as_integers(wanted), image
        self._raw = memoryview((files.flags[wanted] & RAW != 0).tobytes())

    def is_raw(self, index: int) -> bool:
        return bool(self._raw[index])

    def read(self, index: int) -> Buffer:
        if self._raw[index]:
            return super().read(index)
        with as_sentences():
            return memoryview(self._image.read_at(self._rows[index]))


class _Opened(OpenedFile):
    """A squashfs file and its samples. It has no state that moves, so forked workers may share it."""

    def __init__(self, path: Path, split: str | None, access: Access) -> None:
        super().__init__(ByteFile(path, access))
        self.files: dict[str, _Files] = {}  # by field; the first has no name
        with as_sentences():
            self.block = superblock.read(ImageFile(path))
            self.image: SquashFS | None = None
            self.foreign: foreign.Foreign | None = None
            self.samples = self._load(split)
        self.count, self.record = len(self.samples.keys), self.samples.record

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the table, or from the folders."""
        return self.samples.classes

    def all_keys(self) -> pa.StringArray:
        return self.samples.keys

    def key(self, index: int) -> str:
        return str(self.samples.keys[index].as_py())

    def kinds(self) -> dict[str, pa.DataType]:
        return {name: column.type for name, column in self.samples.values.items()}

    def column(self, name: str) -> pa.Array:
        return self.samples.values[name]

    def _load(self, split: str | None) -> Samples:
        """Load the table of samples, or what stands for it in a file of another program."""
        end = self.block.inode_table
        own = end - PLACE_BYTES
        place = Extent.loads(self.file.read(own, end), own) if own >= layout.SUPERBLOCK.size else None
        if place is not None:
            samples = member.load(self.file.read(place.start, place.stop), self.path)
            if samples.starts:
                self._set_places(samples, place.start)
                return samples
        # Without an index file beside it, since the squashfs file may be about to be renamed.
        self.image = image = SquashFS(self.path)
        if place is None and TABLE not in image.paths:
            self.foreign = found = foreign.find(image, split)
            self.files[""] = _FilesByInode(self.file, image, found.rows)
            return found.samples
        if place is None:
            samples = member.load(image.read(TABLE), self.path)
        self._find_files(samples, image)
        return samples

    def _set_places(self, samples: Samples, end: int) -> None:
        """Take the places of all files from the table, without reading an inode."""
        if samples.starts.keys() != samples.sizes.keys() or "" not in samples.starts:
            raise damaged(self.path, "its table of samples lacks a column")
        for field, sizes in samples.sizes.items():
            starts = samples.starts[field]
            wrong = (starts < 0) | (starts > end) | (sizes < 0) | (sizes > end - starts)
            if wrong.any():
                raise damaged(self.path, f"{int(wrong.sum())} samples are outside its data")
            self.files[field] = _Files(self.file, starts, sizes)

    def _find_files(self, samples: Samples, image: SquashFS) -> None:
        """Find the files of all samples by their names, where they are compressed or in pieces."""
        suffixes = provenance.blob_suffixes(samples.record)
        for field in dict.fromkeys(["", *samples.sizes]):
            names = further_names(samples.keys, field, suffixes.get(field, "")) if field else samples.keys
            rows = [image.index.files.names.find(name.as_py().encode()) for name in names]
            if -1 in rows:
                name = names[rows.index(-1)].as_py()
                raise damaged(self.path, f"{rows.count(-1)} samples are not in it, {name!r} for one")
            files = self.files[field] = _FilesByInode(self.file, image, rows)
            stated = samples.sizes.get(field)
            if stated is not None and (np.asarray(files.size) != stated).any():
                raise damaged(self.path, "samples have other sizes than its table says")

    def further(self) -> dict[str, str]:
        """Name and suffix of each further field of files, in the order of the table."""
        suffixes = provenance.blob_suffixes(self.record)
        return {field: suffixes.get(field, "") for field in self.files if field}

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        return self.files[""].place(index)

    def payload_bytes(self) -> int:
        return sum(int(np.asarray(files.size).sum()) for files in self.files.values())

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = {"layout": "raw, in one piece", "block_bytes": self.block.block_bytes}
        if self.image is None:
            return found
        costs = self.image.info()
        found |= {"layout": self.block.compressor, "findings": costs["findings"]}
        found["read_amplification"] = round(costs["read_amplification"], 3)
        if self.foreign is not None:
            found |= {"layout": f"foreign ({self.block.compressor})", "split": self.foreign.split}
            found["files_left_aside"] = self.foreign.ignored
        return found


class _Stored(Places):
    """Access to the files of one field."""

    @abstractmethod
    def _files(self) -> _Files:
        """The files; opened if need be."""

    def _place(self, index: int) -> tuple[ByteFile, int, int]:
        return self._files().place(index)

    def read(self, index: int) -> Buffer:
        return self._files().read(self._checked(index))

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """Where a file is stored raw; None if it is compressed or in pieces."""
        return super().span(index) if self._files().is_raw(self._checked(index)) else None

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several files in the requested order, announced and then fetched in stored order."""
        files, wanted = self._files(), [self._checked(index) for index in indices]
        order = sorted(set(wanted), key=lambda index: (files.start[index], index))
        for index in order:
            files.prefetch(index)
        found = {index: files.read(index) for index in order}
        return [found[index] for index in wanted]


class SquashFSReader(_Stored, FileReader[_Opened]):
    """Random access to a squashfs file; see `smallfiles.formats.squashfs.open`."""

    format = "squashfs"
    _outlives_fork = True

    def __init__(self, path: Path, split: str | None = None, access: Access = "auto") -> None:
        super().__init__(path, access)
        self._split = split

    def _open(self) -> _Opened:
        return _Opened(self.path, self._split, self._access)

    def _files(self) -> _Files:
        return self._handle().files[""]

    def _blob(self, name: str) -> _Further:
        return _Further(self, name)


class _Further(_Stored, PlacedBlob):
    """The further files of a reader."""

    _reader: SquashFSReader

    def _files(self) -> _Files:
        return self._reader._handle().files[self._name]


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
