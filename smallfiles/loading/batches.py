"""The batch and the protocol of batch makers: arrays filled in place, equal whichever worker fills them.

A batch is a function of (seed, epoch, indices) alone. So threads, processes, a ring and a run that was
stopped in between all give the same pixels, and a failure is reproducible.

The trap: if workers draw from one random generator, the pictures depend on the number of workers, and
forked workers may all draw the same numbers. Here each sample has its own generator, seeded by its number.
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
    """A sample that could not be read or decoded as intended, and why.

    Args:
        index: Its number in the data set.
        key: Its name.
        reason: What is wrong with it.
    """

    index: int
    key: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Several samples as arrays.

    Args:
        arrays: By name; always `index` (int64), the numbers of the samples actually in it. If arrays were
            given to be filled, these are contiguous views of their leading parts.
        faults: Samples that were left out, replaced by a neighbour, or kept although damaged.
    """

    arrays: dict[str, Array]
    faults: tuple[Fault, ...] = ()

    def __len__(self) -> int:
        return len(self.arrays["index"])


class BatchMaker(Protocol):
    """Makes batches in any process: it can be pickled, and has no mutable state."""

    @property
    def reader(self) -> Reader:
        """The samples."""

    @property
    def fixed(self) -> bool:
        """Whether a full batch takes exactly its layout; if False, the layout is an upper bound."""

    def layout(self, count: int) -> Layout:
        """Shape and type of each array for a batch of at most `count` samples."""

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Array] | None = None) -> Batch:
        """The batch of these samples in this epoch, in `out` (arrays of `layout`, or larger) if given.

        A function of seed, epoch and indices, not of the process or the time.
        """


def nbytes(layout: Layout) -> int:
    """Bytes of one block that holds all arrays of a layout, each aligned to 64 bytes."""
    return sum(_padded(shape, dtype) for shape, dtype in layout.values())


def views(block: Array, layout: Layout) -> dict[str, Array]:
    """The arrays of a layout inside one block of bytes.

    With one block, each batch that a worker sends takes one file descriptor and one mapping.

    Args:
        block: uint8, contiguous, of at least `nbytes(layout)`.
        layout: The arrays in it.
    """
    at, start = {}, 0
    for name, (shape, dtype) in layout.items():
        at[name] = shape, dtype.str, start
        start += _padded(shape, dtype)
    return found_at(block, at)


def places(arrays: Mapping[str, Array], block: Array) -> Places:
    """The places of arrays in the block of bytes that holds them."""
    base = block.__array_interface__["data"][0]
    return {
        name: (array.shape, array.dtype.str, array.__array_interface__["data"][0] - base if array.size else 0)
        for name, array in arrays.items()
    }


def found_at(block: Array, places: Places) -> dict[str, Array]:
    """The arrays at these places in a block, without a copy."""
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
    """A random generator for each sample, a function of (seed, epoch, index).

    Setting the counter of a Philox takes a microsecond, creating a generator takes ten. So one generator
    is reset for each sample; callers must not keep it.

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
        """The generator at the start of this sample's sequence; valid until the next call."""
        self._counter[2] = index
        self._bits.state = self._start
        return self._rng
