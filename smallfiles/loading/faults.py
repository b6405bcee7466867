"""What to do about a sample that cannot be read or decoded: stop, leave it out, repeat its neighbour, or
take what a damaged JPEG still gives.

The trap: a loader that leaves out what it cannot read trains on what is left of a broken copy, and
nobody notices. So the default stops with the sample's name, and whatever is left out is counted.
Notebook 08 teaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

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
from smallfiles.loading.batches import Array, Batch, Fault, Indices
from smallfiles.loading.config import OnError
from smallfiles.samples import Buffer, Reader

Put: TypeAlias = Callable[[int, int, Buffer], None]
"""Makes one sample: its place in the batch, its number, its bytes."""

# What damaged bytes make decoders raise. Others (a TypeError, say) are mistakes in a program.
_OF_DATA = (SmallfilesError, OSError, ValueError, RuntimeError, SyntaxError, EOFError)
NOT_OF_DATA = (
    *(UsageError, MissingPackageError, ReaderClosedError, ResourceError, NotImplementedError),
    SourceError,  # an object store that does not answer: no sample is to blame, and none may be left out
)


class BadSampleError(FormatError):
    """A sample cannot be read or decoded."""


def fill(
    reader: Reader, indices: Indices, epoch: int, arrays: dict[str, Array], put: Put, on_error: OnError
) -> Batch:
    """Make each sample in its place; `index` is filled here.

    Args:
        reader: Where the bytes are.
        indices: Numbers of the samples.
        epoch: Number of the epoch, for messages.
        arrays: Of `len(indices)` rows.
        put: Makes a sample.
        on_error: What to do about one that cannot be made.

    Raises:
        BadSampleError: A sample cannot be made and `on_error` is `stop` or `keep`, or none can.
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
    if faults and not made:
        raise _none_left(reader, faults, epoch)
    for hole, source in _neighbours(holes, place):
        for array in arrays.values():
            array[hole] = array[source]
    return Batch({name: array[:place] for name, array in arrays.items()}, tuple(faults))


def _made(put: Put, place: int, index: int, data: Buffer, on_error: OnError) -> DamagedImageError | None:
    """Make a sample, if asked also of a damaged picture; then why it is one."""
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
    """The bytes of all samples in one call; if that fails, one by one to know which."""
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
    """The fault of a sample; raised as an error if that is asked, or if the data is not to blame."""
    if isinstance(error, NOT_OF_DATA):
        try:
            raise error
        finally:
            del error  # or error and frame would keep each other alive
    reason = error.got if isinstance(error, SmallfilesError) else f"{type(error).__name__}: {error}"
    fault = Fault(index, reader.key(index), reason)
    if on_error in ("stop", "keep"):
        raise BadSampleError(
            f"sample {fault.key!r} (number {index} of {reader.path}) failed in epoch {epoch}: {reason}",
            expected="an image that can be read and decoded",
            next_step="Mend it and pack again, or say what to do about such samples "
            "(--on-error skip, repeat or keep; on_error of a LoaderConfig)",
        ) from error
    return fault


def _none_left(reader: Reader, faults: list[Fault], epoch: int) -> BadSampleError:
    first = faults[0]
    return BadSampleError(
        f"all {len(faults)} samples of a batch of {reader.path} failed in epoch {epoch}, "
        f"first {first.key!r}: {first.reason}",
        expected="at least one sample of each batch that can be read and decoded",
        next_step="Check the file with: smallfiles verify",
    )


def _neighbours(holes: list[int], count: int) -> list[tuple[int, int]]:
    """For each hole the nearest good place before it, or else after it."""
    good = sorted(set(range(count)) - set(holes))
    if not good:
        return []
    return [(hole, max((place for place in good if place < hole), default=good[0])) for hole in holes]
