"""What exercise 08 works with: a disk on which opening takes time, and a way to follow a batch.

A loader here is three parts: `read` gives bytes and labels, `picture` makes a view of the bytes, `collate`
makes a batch of views. The three given loaders have one bad part each; the parts that are left out are good.

The trap: seconds differ from machine to machine. So the disk counts what is asked of it, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch

from helpers.experiments.nb08.clock import one_thread
from smallfiles import formats
from smallfiles.images import RandomShortSide
from smallfiles.images.crops import Box
from smallfiles.images.decoding import Pixels
from smallfiles.images.header import read_header
from smallfiles.images.picture import open_picture
from smallfiles.images.resizing import resize
from smallfiles.loading.batches import SampleRngs
from smallfiles.samples import Reader

OPEN_S = 0.006
"""What an open waits, as on a busy parallel file system."""
SIDE = 224
BATCH = 16
STAGES = ("read", "augment", "collate", "transfer")

Sample: TypeAlias = tuple[bytes, int]
Read: TypeAlias = Callable[[list[int]], list[Sample]]
Picture: TypeAlias = Callable[[bytes, Box, int], Pixels]
Collate: TypeAlias = Callable[[list[Pixels], list[int]], dict[str, torch.Tensor]]


class OpenFile:
    """An open packed file; like a real handle, it cannot be sent to another process."""

    def __init__(self, disk: Disk, reader: Reader) -> None:
        self._disk, self._reader = disk, reader

    def __len__(self) -> int:
        return len(self._reader)

    def read(self, index: int) -> bytes:
        """The bytes of one sample."""
        data = bytes(self._reader.read(index))
        self._disk.reads += 1
        return data

    def target(self, index: int) -> int:
        """The label of one sample."""
        found = self._reader.target(index)
        return found if isinstance(found, int) else -1

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an open file cannot be sent to another process")


class Disk:
    """Slow to open, and it counts.

    Args:
        open_s: Seconds that an open waits.
    """

    def __init__(self, open_s: float = OPEN_S) -> None:
        self.open_s = open_s
        self.opens = 0
        self.reads = 0

    def open(self, path: Path) -> OpenFile:
        """Open a packed file."""
        time.sleep(self.open_s)
        self.opens += 1
        return OpenFile(self, formats.open(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return Disk, (self.open_s,)  # another process counts for itself


def box_of(data: bytes, index: int) -> Box:
    """The part of a picture that its view shows: a function of the number of the sample."""
    header = read_header(data)
    width, height = (header.width, header.height) if header else open_picture_size(data)
    return RandomShortSide().box(width, height, SampleRngs(0, 0).at(index))


def open_picture_size(data: bytes) -> tuple[int, int]:
    """Width and height of what is no JPEG."""
    picture = open_picture(data)
    return picture.width, picture.height


def good_picture(data: bytes, box: Box, size: int) -> Pixels:
    """A view, of which only the part is decoded."""
    out = np.empty((size, size, 3), np.uint8)
    resize(open_picture(data).part(box, size, size, None), out)
    return out


def good_collate(pictures: list[Pixels], labels: list[int]) -> dict[str, torch.Tensor]:
    """Bytes in one tensor, labels as whole numbers."""
    return {"image": torch.from_numpy(np.stack(pictures)), "target": torch.tensor(labels, dtype=torch.int64)}


class GoodRead:
    """Reads from a file that is opened when it is first needed."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.disk, self.path = disk, path
        self.file: OpenFile | None = None

    def __call__(self, indices: list[int]) -> list[Sample]:
        """Bytes and labels."""
        if self.file is None:
            self.file = self.disk.open(self.path)
        file = self.file
        return [(file.read(index), file.target(index)) for index in indices]


def follow(
    path: Path, *, read: Any = None, picture: Picture = good_picture, collate: Collate = good_collate
) -> dict[str, float]:
    """Seconds of one worker for a batch of 16, by stage; the median of three batches.

    Args:
        path: A packed file.
        read: A class made of a disk and a path; called with numbers of samples.
        picture: Makes a view.
        collate: Makes a batch.
    """
    reading: Read = (read or GoodRead)(Disk(), path)
    order = np.random.default_rng(0).permutation(len(formats.open(path)))
    with one_thread():
        runs = [
            _one(reading, picture, collate, np.resize(order[at:], BATCH).tolist())
            for at in range(0, 4 * BATCH, BATCH)
        ]
    return {stage: float(np.median([run[stage] for run in runs[1:]])) for stage in STAGES}


def told(stages: dict[str, float]) -> str:
    """The stages in one line."""
    return ", ".join(f"{stage} {1e3 * seconds:.1f} ms" for stage, seconds in stages.items())


def _one(read: Read, picture: Picture, collate: Collate, indices: Sequence[int]) -> dict[str, float]:
    marks = [perf_counter()]
    samples = read(list(indices))
    marks.append(perf_counter())
    views = [
        picture(data, box_of(data, index), SIDE) for (data, _), index in zip(samples, indices, strict=True)
    ]
    marks.append(perf_counter())
    batch = collate(views, [label for _, label in samples])
    marks.append(perf_counter())
    for tensor in batch.values():  # a worker puts its batch into memory that the trainer sees
        _shared(tensor)
    marks.append(perf_counter())
    return dict(zip(STAGES, np.diff(marks).tolist(), strict=True))


def _shared(tensor: torch.Tensor) -> None:
    share: Callable[[], object] = tensor.clone().share_memory_
    share()
