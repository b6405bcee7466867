"""What a batch is, and who makes one: arrays filled in place, the same whichever worker fills them.

A batch is a function of (seed, epoch, indices) alone. So threads, processes, a ring beside the training
and a run that was stopped in between all give the same pixels, and a failure can be made again.

The trap: workers that draw from one random generator give other pictures with other numbers of workers,
and forked ones may all draw the same. Here each sample has a generator of its own, by its number.
Notebook 08 teaches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from smallfiles.samples import Reader

Array: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = Sequence[int] | npt.NDArray[np.int64]
Layout: TypeAlias = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
Places: TypeAlias = Mapping[str, tuple[Sequence[int], str, int]]
"""Shape, numpy type and first byte of each array in a block."""

ALIGN_BYTES = 64


@dataclass(frozen=True)
class Fault:
    """A sample that could not be made as it was meant, and why.

    Args:
        index: Its number in the data set.
        key: Its name.
        reason: What was wrong with it.
    """

    index: int
    key: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Several samples as arrays.

    Args:
        arrays: By name; always `index` (int64), the numbers of the samples that are really in it.
            Where arrays were given to be filled, these are their leading parts: views, contiguous.
        faults: Samples that were left out, replaced by a neighbour, or kept though damaged.
    """

    arrays: dict[str, Array]
    faults: tuple[Fault, ...] = ()

    def __len__(self) -> int:
        return len(self.arrays["index"])


class BatchMaker(Protocol):
    """Makes batches anywhere: it can be pickled, and holds nothing that moves."""

    @property
    def reader(self) -> Reader:
        """Where the samples are."""

    @property
    def fixed(self) -> bool:
        """True if a whole batch takes exactly its layout; False if that is only the most it may take."""

    def layout(self, count: int) -> Layout:
        """Shape and type of each array for a batch of at most `count` samples."""

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Array] | None = None) -> Batch:
        """The batch of these samples in this epoch, in `out` (arrays of `layout`, or larger) if given.

        A function of the seed, the epoch and the indices, not of the process or the time.
        """


def nbytes(layout: Layout) -> int:
    """Bytes of one block that holds all arrays of a layout, each on a border of 64 bytes."""
    return sum(_padded(shape, dtype) for shape, dtype in layout.values())


def views(block: Array, layout: Layout) -> dict[str, Array]:
    """The arrays of a layout inside one block of bytes.

    One block is one file descriptor and one mapping for each batch that workers send.

    Args:
        block: uint8, contiguous, of at least `nbytes(layout)`.
        layout: What shall lie in it.
    """
    found, start = {}, 0
    for name, (shape, dtype) in layout.items():
        stop = start + prod(shape) * dtype.itemsize
        found[name] = block[start:stop].view(dtype).reshape(shape)
        start += _padded(shape, dtype)
    return found


def places(arrays: Mapping[str, Array], block: Array) -> Places:
    """Where arrays lie in a block of bytes that holds them."""
    base = block.__array_interface__["data"][0]
    return {
        name: (
            array.shape,
            array.dtype.str,
            array.__array_interface__["data"][0] - base if array.size else 0,
        )
        for name, array in arrays.items()
    }


def found_at(block: Array, places: Places) -> dict[str, Array]:
    """The arrays of a block that lie at these places, without a copy."""
    found = {}
    for name, (shape, kind, start) in places.items():
        dtype = np.dtype(kind)
        found[name] = block[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return found


def allocate(layout: Layout) -> dict[str, Array]:
    """New arrays of a layout in one block."""
    return views(np.empty(nbytes(layout), np.uint8), layout)


def _padded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return -(-prod(shape) * dtype.itemsize // ALIGN_BYTES) * ALIGN_BYTES


class SampleRngs:
    """A random generator for each sample, by (seed, epoch, index).

    Philox counts: setting its counter takes a microsecond where a new generator takes ten. So one
    generator is set anew for each sample; nobody may keep it.

    Args:
        seed: 0 or more, below 2**64.
        epoch: 0 or more.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self._bits = np.random.Philox(key=seed)
        self._rng = np.random.Generator(self._bits)
        self._start: Any = self._bits.state
        self._counter = np.array([0, 0, 0, epoch], np.uint64)
        self._start["state"]["counter"] = self._counter

    def at(self, index: int) -> np.random.Generator:
        """The generator at the start of a sample's own sequence, until the next call."""
        self._counter[2] = index
        self._bits.state = self._start
        return self._rng
