"""Read samples of a squashfs file at random, without a mount.

A sample that is stored raw and in one piece is a slice of the mapped file or one `pread`; `pysquashfs`
assembles the others.

The trap: if forked workers share a descriptor, and each seeks and then reads, they get bytes of one
another's samples. Every read here names its position. Notebook 06 reproduces both.
"""

from __future__ import annotations

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
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.reader import FileReader, OpenedFile
from smallfiles.formats.squashfs import foreign, member
from smallfiles.formats.squashfs.member import PLACE_BYTES, TABLE, Extent, Samples, as_sentences
from smallfiles.samples import Buffer, Target


class _Opened(OpenedFile):
    """A squashfs file and its samples. It has no state that moves, so forked workers may share it."""

    def __init__(self, path: Path, split: str | None, access: Access) -> None:
        super().__init__(ByteFile(path, access))
        self._raw: memoryview[int] | None = None  # all of them
        with as_sentences():
            self.block = superblock.read(ImageFile(path))
            self.image: SquashFS | None = None
            self.foreign: foreign.Foreign | None = None
            self.samples = self._placed(self.block.inode_table) or self._found(split)
        self.count, self.record = len(self.samples.keys), self.samples.record
        self.target_kind = "label" if pa.types.is_integer(self.samples.targets.type) else "captions"

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the table, or from the folders."""
        return self.samples.classes

    def all_keys(self) -> pa.StringArray:
        return self.samples.keys

    def key(self, index: int) -> str:
        return str(self.samples.keys[index].as_py())

    def target(self, index: int) -> Target:
        target: Target = self.samples.targets[index].as_py()
        return target

    def targets(self, start: int, stop: int) -> list[Target]:
        found: list[Target] = self.samples.targets.slice(start, stop - start).to_pylist()
        return found

    def meta_text(self, index: int) -> str | None:
        return None if self.samples.metas is None else self.samples.metas[index].as_py()

    def _placed(self, data_end: int) -> Samples | None:
        """The samples of a file whose table contains their offsets: no inode is read."""
        own = data_end - PLACE_BYTES
        place = Extent.loads(self.file.read(own, data_end), own) if own >= layout.SUPERBLOCK.size else None
        if place is None:
            return None
        samples = member.load(self.file.read(place.start, place.stop), self.path)
        starts, sizes = samples.starts, samples.sizes
        if starts is None or sizes is None:
            raise damaged(self.path, f"{TABLE} lacks a column")
        wrong = (starts < 0) | (starts > place.start) | (sizes < 0) | (sizes > place.start - starts)
        if wrong.any():
            raise damaged(self.path, f"{int(wrong.sum())} samples are outside its data")
        self.start, self.size = as_integers(starts), as_integers(sizes)
        return samples

    def _found(self, split: str | None) -> Samples:
        """The samples of any other squashfs file, by its inodes."""
        # Without an index file beside it, since the squashfs file may be about to be renamed.
        self.image = image = SquashFS(self.path, cache=False)
        if TABLE in image.paths:
            samples = member.load(image.read(TABLE), self.path)
            rows = [image.index.files.names.find(key.as_py().encode()) for key in samples.keys]
            if -1 in rows:
                key = samples.keys[rows.index(-1)].as_py()
                raise damaged(self.path, f"{rows.count(-1)} samples are not in it, {key!r} for one")
        else:
            self.foreign = found = foreign.find(image.paths, self.path, split)
            samples, rows = found.samples, found.rows
        wanted = np.array(rows, np.int64)
        files = image.index.files
        sizes = np.asarray(files.size[wanted], np.int64)
        if samples.sizes is not None and (sizes != samples.sizes).any():
            raise damaged(self.path, "samples have other sizes than its table says")
        starts, stored = spans(image.index, wanted)
        self.start, self._stored, self.size = as_integers(starts), as_integers(stored), as_integers(sizes)
        self._raw = memoryview((files.flags[wanted] & RAW != 0).tobytes())
        self._rows = as_integers(wanted)
        return samples

    def is_raw(self, index: int) -> bool:
        """Whether a sample's bytes are stored uncompressed and in one piece."""
        return self._raw is None or bool(self._raw[index])

    def place(self, index: int) -> tuple[ByteFile, int, int]:
        return self.file, self.start[index], self.start[index] + self.size[index]

    def payload_bytes(self) -> int:
        return int(np.asarray(self.size).sum())

    def prefetch(self, index: int) -> None:
        """Ask the kernel to fetch the stored bytes of a sample."""
        start, stored = self.start[index], self.size if self._raw is None else self._stored
        self.file.prefetch(start, start + stored[index])

    def read(self, index: int) -> Buffer:
        """All bytes of a sample."""
        if self._raw is None or self._raw[index]:
            start = self.start[index]
            return memoryview(self.file.read(start, start + self.size[index]))
        assert self.image is not None
        with as_sentences():
            return memoryview(self.image.read_at(self._rows[index]))

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


class SquashFSReader(FileReader[_Opened]):
    """Random access to a squashfs file; see `smallfiles.formats.squashfs.open`."""

    format = "squashfs"
    _outlives_fork = True

    def __init__(self, path: Path, split: str | None = None, access: Access = "auto") -> None:
        super().__init__(path, access)
        self._split = split

    def _open(self) -> _Opened:
        return _Opened(self.path, self._split, self._access)

    def read(self, index: int) -> Buffer:
        return self._handle().read(self._checked(index))

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """Where a sample is stored raw; None if it is compressed or in pieces."""
        return super().span(index) if self._handle().is_raw(self._checked(index)) else None

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the requested order, announced and then fetched in stored order."""
        opened, wanted = self._handle(), [self._checked(index) for index in indices]
        order = sorted(set(wanted), key=lambda index: (opened.start[index], index))
        for index in order:
            opened.prefetch(index)
        found = {index: opened.read(index) for index in order}
        return [found[index] for index in wanted]
