"""Batches as torch tensors, and how one travels from a worker to the trainer: as one block of memory.

Tensors in shared memory are sent as file descriptors. A batch of three tensors costs three of them, and
three mappings; in one block it costs one, filled in place, and nothing is copied on the way.

The trap: a worker that raises an error of ours makes torch raise another one, with a page of
tracebacks. So an error travels as a value and is raised where the batch would have been. Notebook 08.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch

from smallfiles.errors import SmallfilesError
from smallfiles.loading.batches import Array, Batch, Fault, Layout, nbytes, views

Specs: TypeAlias = tuple[tuple[str, int, tuple[int, ...], str], ...]
"""Name, first byte in the block, shape and numpy type of each array."""


class LoadedBatch(dict[str, torch.Tensor]):
    """What a loader hands out: tensors by name; a uint8 `image` is [B, C, H, W] in channels-last order.

    A plain dict to all who move batches to a device.
    """

    faults: tuple[Fault, ...] = ()


def to_tensors(arrays: Mapping[str, Array], faults: tuple[Fault, ...] = ()) -> LoadedBatch:
    """Tensors over the memory of arrays, without a copy.

    Args:
        arrays: As a `BatchMaker` makes them; they must live as long as the tensors.
        faults: Samples that were left out or replaced.
    """
    return _loaded({name: torch.from_numpy(array) for name, array in arrays.items()}, faults)


def _loaded(tensors: dict[str, torch.Tensor], faults: tuple[Fault, ...]) -> LoadedBatch:
    image = tensors.get("image")
    if image is not None and image.ndim == 4 and image.dtype == torch.uint8:
        tensors["image"] = image.permute(0, 3, 1, 2)
    batch = LoadedBatch(tensors)
    batch.faults = faults
    return batch


@dataclass(frozen=True)
class Block:
    """One piece of memory for a whole batch.

    Args:
        tensor: uint8, one-dimensional.
        arrays: Views of it, to be filled.
    """

    tensor: torch.Tensor
    arrays: dict[str, Array]

    @classmethod
    def shared(cls, layout: Layout) -> Block:
        """Shared memory, for a worker: sending it sends a file descriptor."""
        # The way of torch's own collate; share_memory_() would copy what is not filled yet.
        new_shared: Callable[[int], torch.UntypedStorage] = torch.UntypedStorage._new_shared
        storage = new_shared(max(nbytes(layout), 1))
        return cls._of(torch.tensor([], dtype=torch.uint8).set_(storage), layout)

    @classmethod
    def pinned(cls, layout: Layout) -> Block:
        """Memory that a GPU copies from by itself, for threads of the trainer."""
        return cls._of(torch.empty(nbytes(layout), dtype=torch.uint8, pin_memory=True), layout)

    @classmethod
    def _of(cls, tensor: torch.Tensor, layout: Layout) -> Block:
        return cls(tensor, views(tensor.numpy(), layout))

    def specs(self, arrays: Mapping[str, Array]) -> Specs:
        """Where the (leading parts of the) arrays lie in this block."""
        base = self.tensor.data_ptr()
        return tuple(
            (
                name,
                array.__array_interface__["data"][0] - base if array.size else 0,
                array.shape,
                array.dtype.str,
            )
            for name, array in arrays.items()
        )


class Packet:
    """A batch in shared memory on its way: pickled in a worker, it is a `LoadedBatch` on arrival."""

    def __init__(self, batch: Batch, block: Block | None) -> None:
        if block is None:  # arrays of their own, since their size was not known before
            layout = {name: (array.shape, array.dtype) for name, array in batch.arrays.items()}
            block = Block.shared(layout)
            for name, array in batch.arrays.items():
                block.arrays[name][...] = array
            batch = Batch(block.arrays, batch.faults)
        self._content = block.tensor, block.specs(batch.arrays), batch.faults

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._content


def _unpack(block: torch.Tensor, specs: Specs, faults: tuple[Fault, ...]) -> LoadedBatch:
    tensors = {}
    for name, start, shape, kind in specs:
        empty = torch.from_numpy(np.empty(0, kind))
        part = block[start : start + prod(shape) * empty.element_size()]
        tensors[name] = part.view(empty.dtype).view(shape)
    return _loaded(tensors, faults)


class FailedBatch:
    """The error that stands where a batch should be; whoever touches it raises it.

    Our own loaders raise it at once. Others that were made around the same data set (Accelerate's, say)
    do so when they move the batch to a device.
    """

    def __init__(self, error: SmallfilesError) -> None:
        self.error = error

    def pin_memory(self) -> FailedBatch:
        """Pass through the thread that pins batches."""
        return self

    def to(self, *_: object, **__: object) -> NoReturn:
        """Raise the error."""
        raise self.error

    def __getitem__(self, name: object) -> NoReturn:
        raise self.error

    def __iter__(self) -> NoReturn:
        raise self.error

    def __len__(self) -> NoReturn:
        raise self.error
