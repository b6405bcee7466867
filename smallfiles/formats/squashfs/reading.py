"""Read samples of an image at random, without a mount.

What lies raw and in one piece is a slice of the mapped image or one `pread`; the rest is put together by
`pysquashfs`.

The trap: a reader that seeks and then reads, on one descriptor that forked workers share, gives each of
them bytes that belong to another. Every read here names its position. Notebook 06 reproduces both.
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
from smallfiles.formats.reader import BaseReader
from smallfiles.formats.squashfs import foreign, member
from smallfiles.formats.squashfs.member import PLACE_BYTES, TABLE, Extent, Samples, as_sentences
from smallfiles.samples import Buffer, Meta, Target, TargetKind


class _Opened:
    """An image and its samples. Holds nothing that moves, so forked workers may share it."""

    def __init__(self, path: Path, split: str | None, access: Access) -> None:
        self.file = ByteFile(path, access)
        self._raw: memoryview[int] | None = None  # all are
        with as_sentences():
            self.block = superblock.read(ImageFile(path))
            self.image: SquashFS | None = None
            self.foreign: foreign.Foreign | None = None
            self.samples = self._placed(self.block.inode_table) or self._found(split)
        self.count = len(self.samples.keys)

    def _placed(self, data_end: int) -> Samples | None:
        """The samples of an image whose table says where they lie: no inode is read at all."""
        own = data_end - PLACE_BYTES
        place = Extent.loads(self.file.read(own, data_end), own) if own >= layout.SUPERBLOCK.size else None
        if place is None:
            return None
        samples = member.load(self.file.read(place.start, place.stop), self.file.path)
        starts, sizes = samples.starts, samples.sizes
        if starts is None or sizes is None:
            raise damaged(self.file.path, f"{TABLE} lacks a column")
        wrong = (starts < 0) | (starts > place.start) | (sizes < 0) | (sizes > place.start - starts)
        if wrong.any():
            raise damaged(self.file.path, f"{int(wrong.sum())} samples lie outside of its data")
        self.start, self.size = as_integers(starts), as_integers(sizes)
        return samples

    def _found(self, split: str | None) -> Samples:
        """The samples of any other image, by its inodes."""
        # No index is kept beside the image: it may be on its way to its final name.
        self.image = image = SquashFS(self.file.path, cache=False)
        if TABLE in image.paths:
            samples = member.load(image.read(TABLE), self.file.path)
            rows = [image.index.files.names.find(key.as_py().encode()) for key in samples.keys]
            if -1 in rows:
                key = samples.keys[rows.index(-1)].as_py()
                raise damaged(self.file.path, f"{rows.count(-1)} samples are not in it, {key!r} for one")
        else:
            self.foreign = found = foreign.find(image.paths, self.file.path, split)
            samples, rows = found.samples, found.rows
        wanted = np.array(rows, np.int64)
        files = image.index.files
        sizes = np.asarray(files.size[wanted], np.int64)
        if samples.sizes is not None and (sizes != samples.sizes).any():
            raise damaged(self.file.path, "samples have other sizes than its table says")
        starts, stored = spans(image.index, wanted)
        self.start, self._stored, self.size = as_integers(starts), as_integers(stored), as_integers(sizes)
        self._raw = memoryview((files.flags[wanted] & RAW != 0).tobytes())
        self._rows = as_integers(wanted)
        return samples

    def is_raw(self, index: int) -> bool:
        """Whether a sample's bytes lie in the image as they are."""
        return self._raw is None or bool(self._raw[index])

    def prefetch(self, index: int) -> None:
        """Have the kernel fetch what is stored of a sample."""
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


class SquashFSReader(BaseReader[_Opened]):
    """Random access to an image; see `smallfiles.formats.squashfs.open`."""

    _outlives_fork = True

    def __init__(self, path: Path, split: str | None = None, access: Access = "auto") -> None:
        super().__init__(path)
        self._split, self._access = split, access

    def _open(self) -> _Opened:
        return _Opened(self.path, self._split, self._access)

    def __len__(self) -> int:
        return self._handle().count

    @property
    def target_kind(self) -> TargetKind:
        return "label" if pa.types.is_integer(self._handle().samples.targets.type) else "captions"

    @property
    def classes(self) -> tuple[str, ...]:
        return self._handle().samples.classes

    def keys(self) -> pa.StringArray:
        return self._handle().samples.keys

    def target(self, index: int) -> Target:
        target: Target = self._handle().samples.targets[self._checked(index)].as_py()
        return target

    def targets(self, start: int, stop: int) -> list[Target]:
        """Labels or captions of a run of samples; mapped pages that were looked at are let go."""
        opened = self._handle()
        found: list[Target] = opened.samples.targets.slice(start, stop - start).to_pylist()
        opened.file.forget()
        return found

    def meta(self, index: int) -> Meta | None:
        index, metas = self._checked(index), self._handle().samples.metas
        return None if metas is None else self._object(metas[index].as_py(), index)

    def size(self, index: int) -> int:
        return self._handle().size[self._checked(index)]

    def read(self, index: int) -> Buffer:
        return self._handle().read(self._checked(index))

    def span(self, index: int) -> tuple[Path, int, int] | None:
        """Where a sample lies raw; None where it is compressed or in pieces."""
        opened, index = self._handle(), self._checked(index)
        if not opened.is_raw(index):
            return None
        start = opened.start[index]
        return opened.file.path, start, start + opened.size[index]

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the order asked for, announced and then fetched as they lie in the image."""
        opened, wanted = self._handle(), [self._checked(index) for index in indices]
        order = sorted(set(wanted), key=lambda index: (opened.start[index], index))
        for index in order:
            opened.prefetch(index)
        found = {index: opened.read(index) for index in order}
        return [found[index] for index in wanted]

    def info(self) -> dict[str, Any]:
        opened = self._handle()
        return {
            "format": "squashfs",
            "layout": _layout(opened),
            "samples": opened.count,
            "bytes": int(np.asarray(opened.size).sum()),
            "file_bytes": opened.file.size,
            "block_bytes": opened.block.block_bytes,
            **_costs(opened),
            "provenance": opened.samples.record,
        }


def _layout(opened: _Opened) -> str:
    if opened.image is None:
        return "raw, in one piece"
    return opened.block.compressor if opened.foreign is None else f"foreign ({opened.block.compressor})"


def _costs(opened: _Opened) -> dict[str, Any]:
    """Why reading an image that is not raw costs what it costs."""
    if opened.image is None:
        return {}
    found = opened.image.info()
    more: dict[str, Any] = {
        "read_amplification": round(found["read_amplification"], 3),
        "findings": found["findings"],
    }
    if opened.foreign is not None:
        more |= {"split": opened.foreign.split, "files_left_aside": opened.foreign.left_aside}
    return more
