"""Batches of images with labels, and of encoded bytes; the handling of unreadable samples.

The bytes of a batch are fetched in one call, in stored order, and each image is decoded directly into its
place. A sample that cannot be read or decoded stops the loader, is left out, is replaced by its neighbour,
or contributes what a damaged JPEG still holds.

The traps: a batch whose shape depends on its samples fits no slot of a ring; so all images have one size,
and the layout of encoded bytes is an upper bound. And a loader that silently leaves out unreadable samples
may train on a fraction of a broken copy; so the default stops with the sample's name, and all that is left
out is counted. Notebook 08 teaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from smallfiles.errors import (
    FormatError,
    MissingPackageError,
    ReaderClosedError,
    ResourceError,
    SmallfilesError,
    SourceError,
    UsageError,
)
from smallfiles.images.faults import DamagedImageError
from smallfiles.loading.batches import Array, Batch, Fault, Indices, Layout, SampleRngs, allocate
from smallfiles.loading.config import OnError
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
        transform: Makes an image from encoded bytes.
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
    """The encoded bytes, concatenated: sample i is `data[offsets[i]:offsets[i + 1]]`.

    `data` is uint8, `offsets` int64 [B + 1], `index` int64 [B], and `target` int64 [B] for labels.

    Args:
        reader: A packed set.
        seed: Not used; all batch makers have one.
        on_error: What to do about a sample that cannot be read.
    """

    reader: Reader
    seed: int = 0
    on_error: OnError = "stop"

    fixed = False

    def layout(self, count: int) -> Layout:
        """An upper bound for `count` samples; see `BatchMaker`."""
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
                next_step="Allocate the arrays that layout(count) describes",
            )
        found[name] = array[: shape[0]]
    return found


Put: TypeAlias = Callable[[int, int, Buffer], None]
"""Makes one sample, given its place in the batch, its number and its bytes."""

# What decoders raise for damaged bytes. Others (a TypeError, say) are bugs in a program.
_OF_DATA = (SmallfilesError, OSError, ValueError, RuntimeError, SyntaxError, EOFError)
NOT_OF_DATA = (
    *(UsageError, MissingPackageError, ReaderClosedError, ResourceError, NotImplementedError),
    SourceError,  # an object store that does not answer: no sample is at fault, and none may be left out
)


class BadSampleError(FormatError):
    """A sample cannot be read or decoded."""


def fill(
    reader: Reader, indices: Indices, epoch: int, arrays: dict[str, Array], put: Put, on_error: OnError
) -> Batch:
    """Make each sample in its place, and fill `index`.

    Args:
        reader: Where the bytes are.
        indices: Numbers of the samples.
        epoch: Number of the epoch, for messages.
        arrays: Of `len(indices)` rows.
        put: Makes a sample.
        on_error: What to do about a sample that cannot be made.

    Raises:
        BadSampleError: A sample cannot be made, and `on_error` is `stop` or `keep`; or it is `repeat`, and
            no sample of the batch can be made.
    """
    numbers = [int(index) for index in indices]
    found, errors = _read(reader, numbers)
    faults: list[Fault] = []
    made = 0
    holes: list[int] = []
    place = 0
    for index, data in zip(numbers, found, strict=True):
        try:
            if data is None:
                raise errors[index]
            damage = _made(put, place, index, data, on_error)
            made += 1
        except _OF_DATA as error:
            faults.append(_fault(reader, index, epoch, error, on_error))
            if on_error == "skip":
                continue
            holes.append(place)
        except Exception as error:
            error.add_note(f"This was sample {reader.key(index)!r} of {reader.path} in epoch {epoch}.")
            raise
        else:
            faults += [] if damage is None else [Fault(index, reader.key(index), damage.got)]
        arrays["index"][place] = index
        place += 1
    if faults and not made and on_error == "repeat":
        raise none_left(reader.path, faults, epoch, f"{len(faults)} samples of a batch")
    for hole, source in _neighbours(holes, place):
        for array in arrays.values():
            array[hole] = array[source]
    return Batch({name: array[:place] for name, array in arrays.items()}, tuple(faults))


def _made(put: Put, place: int, index: int, data: Buffer, on_error: OnError) -> DamagedImageError | None:
    """Make a sample; with `keep` also from a damaged picture, of which the error is returned."""
    try:
        put(place, index, data)
    except DamagedImageError as error:
        if on_error != "keep":
            raise
        from smallfiles.images.decoding import recovered

        put(place, index, recovered(data))
        return error
    return None


def _read(reader: Reader, numbers: list[int]) -> tuple[list[Buffer | None], dict[int, Exception]]:
    """The bytes of all samples in one call; if that fails, one by one, with the errors by number."""
    try:
        return list(reader.read_many(numbers)), {}
    except NOT_OF_DATA:
        raise
    except _OF_DATA:
        pass
    found: list[Buffer | None] = []
    errors: dict[int, Exception] = {}
    for index in numbers:
        try:
            found.append(reader.read(index))
        except _OF_DATA as error:
            found.append(None)
            errors[index] = error
    return found, errors


def _fault(reader: Reader, index: int, epoch: int, error: Exception, on_error: OnError) -> Fault:
    """The fault of a sample; raised as an error if `on_error` asks for it, or if the data is not at fault."""
    if isinstance(error, NOT_OF_DATA):
        try:
            raise error
        finally:
            del error  # breaks the cycle of error and frame
    reason = error.got if isinstance(error, SmallfilesError) else f"{type(error).__name__}: {error}"
    fault = Fault(index, reader.key(index), reason)
    if on_error in ("stop", "keep"):
        raise BadSampleError(
            f"sample {fault.key!r} (number {index} of {reader.path}) failed in epoch {epoch}: {reason}",
            expected="an image that can be read and decoded",
            next_step="Repair it and pack again, or choose what to do about such samples "
            "(--on-error skip, repeat or keep; on_error of a LoaderConfig)",
        ) from error
    return fault


def none_left(where: Path | str, faults: Sequence[Fault], epoch: int, what: str) -> BadSampleError:
    """The error for a part of an epoch without any readable sample; `where` names the packed file."""
    first = faults[0]
    return BadSampleError(
        f"all {what} of {where} failed in epoch {epoch}, first {first.key!r}: {first.reason}",
        expected="at least one sample that can be read and decoded",
        next_step="Check the file with: smallfiles verify",
    )


def _neighbours(holes: list[int], count: int) -> list[tuple[int, int]]:
    """For each hole the nearest good place before it, or else the first one."""
    good = sorted(set(range(count)) - set(holes))
    if not good:
        return []
    return [(hole, max((place for place in good if place < hole), default=good[0])) for hole in holes]
