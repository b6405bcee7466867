"""Batches of images with labels, and of encoded bytes.

The bytes of a batch are fetched in one call, in the order in which they lie, and each image is decoded
straight into its place. The trap: a batch whose shape depends on its samples could lie in no slot of a
ring; so images have one size, and of encoded bytes the layout tells the most. Notebook 08 teaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smallfiles.errors import UsageError
from smallfiles.loading.batches import Array, Batch, Indices, Layout, SampleRngs, allocate
from smallfiles.loading.config import OnError
from smallfiles.loading.faults import fill
from smallfiles.samples import Buffer, Reader

if TYPE_CHECKING:
    from smallfiles.images import Transform

_INT64: np.dtype[Any] = np.dtype(np.int64)
_UINT8: np.dtype[Any] = np.dtype(np.uint8)


@dataclass(frozen=True)
class ImageBatches:
    """Images and labels: `image` has shape [B, shape of the transform], `target` and `index` are int64 [B].

    Args:
        reader: A packed set with labels.
        transform: Makes an image of encoded bytes.
        seed: Of all augmentation.
        on_error: What to do about a sample that cannot be read or decoded.
    """

    reader: Reader
    transform: Transform
    seed: int = 0
    on_error: OnError = "stop"

    fixed = True

    def __post_init__(self) -> None:
        if self.reader.target_kind != "label":
            raise UsageError(
                f"{self.reader.path} holds captions",
                expected="labels",
                next_step="Read it with CaptionDataset of smallfiles.captions",
            )

    def layout(self, count: int) -> Layout:
        """See `BatchMaker`."""
        image = (count, *self.transform.shape), np.dtype(self.transform.dtype)
        return {"image": image, "target": ((count,), _INT64), "index": ((count,), _INT64)}

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Array] | None = None) -> Batch:
        """See `BatchMaker`."""
        arrays = _lead(self.layout(len(indices)), out)
        rngs = SampleRngs(self.seed, epoch)
        images, targets = arrays["image"], arrays["target"]

        def put(place: int, index: int, data: Buffer) -> None:
            self.transform.into(data, rngs.at(index), images[place])
            targets[place] = self.reader.target(index)

        return fill(self.reader, indices, epoch, arrays, put, self.on_error)


@dataclass(frozen=True)
class RawBatches:
    """The encoded bytes one after the other: sample i is `data[offsets[i]:offsets[i + 1]]`.

    `data` is uint8, `offsets` int64 [B + 1], `index` int64 [B], and `target` int64 [B] for labels.

    Args:
        reader: A packed set.
        seed: Not used; all makers have one.
        on_error: What to do about a sample that cannot be read.
    """

    reader: Reader
    seed: int = 0
    on_error: OnError = "stop"

    fixed = False

    def layout(self, count: int) -> Layout:
        """The most that `count` samples may take; see `BatchMaker`."""
        largest = max((self.reader.size(index) for index in range(len(self.reader))), default=0)
        return self._layout(count, count * largest)

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Array] | None = None) -> Batch:
        """See `BatchMaker`."""
        pieces = np.empty(len(indices), object)
        held = {"data": pieces, "index": np.empty(len(indices), np.int64)}

        def put(place: int, index: int, data: Buffer) -> None:
            pieces[place] = data

        found = fill(self.reader, indices, epoch, held, put, self.on_error)
        offsets = np.cumsum([0, *map(len, found.arrays["data"])])
        arrays = _lead(self._layout(len(found), offsets[-1]), out)
        arrays["offsets"][:], arrays["index"][:] = offsets, found.arrays["index"]
        for data, start, stop in zip(found.arrays["data"], offsets[:-1], offsets[1:], strict=True):
            arrays["data"][start:stop] = np.frombuffer(data, np.uint8)
        if "target" in arrays:
            arrays["target"][:] = [self.reader.target(index) for index in found.arrays["index"].tolist()]
        return Batch(arrays, found.faults)

    def _layout(self, count: int, data_bytes: int) -> Layout:
        found: Layout = {"data": ((data_bytes,), _UINT8), "offsets": ((count + 1,), _INT64)}
        if self.reader.target_kind == "label":
            found["target"] = (count,), _INT64
        return found | {"index": ((count,), _INT64)}


def _lead(layout: Layout, out: Mapping[str, Array] | None) -> dict[str, Array]:
    """The leading parts of `out` in the shapes of a layout, or new arrays."""
    if out is None:
        return allocate(layout)
    found = {}
    for name, (shape, dtype) in layout.items():
        array = out.get(name)
        if array is None or array.dtype != dtype or array.shape[1:] != shape[1:] or len(array) < shape[0]:
            got = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise UsageError(
                f"the array {name} for a batch is {got}",
                expected=f"{dtype} {list(shape)}, or more rows",
                next_step="Allocate what layout(count) says",
            )
        found[name] = array[: shape[0]]
    return found
