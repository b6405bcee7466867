"""Batches of the fields of samples, each made by its maker; the handling of unreadable samples.

The bytes of a batch are fetched in one call, in stored order, and each image is decoded directly into
its place. A sample that cannot be read or decoded stops the loader, is left out, is replaced by its
neighbour, or contributes what a damaged JPEG still holds.

The traps: a batch whose shape depends on its samples fits no slot of a ring; so all images have one size,
and the layout of encoded bytes is an upper bound. And a loader that silently leaves out unreadable samples
may train on a fraction of a broken copy; so the default stops with the sample's name, and all that is left
out is counted. Notebook 08 teaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.errors import (
    FormatError,
    MissingPackageError,
    ReaderClosedError,
    ResourceError,
    SmallfilesError,
    SourceError,
    UsageError,
    refuse_shortage,
)
from smallfiles.fields import META, further_files, is_blob, name_of_first
from smallfiles.images.decoding import DamagedImageError
from smallfiles.loading import OnError
from smallfiles.loading.makers import (
    Batch,
    Boxes,
    Fault,
    Image,
    Indices,
    Item,
    Layout,
    Maker,
    Ragged,
    SampleRngs,
    Value,
    Values,
    allocate,
)
from smallfiles.samples import Buffer, Reader

_INT64: np.dtype[Any] = np.dtype(np.int64)


@dataclass(frozen=True)
class FieldBatches:
    """Batches of named fields: `index` (int64 [B]), the label as `target` (int64 [B]), and all others.

    Make one with `field_batches`, which checks the fields.

    Args:
        reader: A packed set.
        makers: Of the first field and further files, by name.
        columns: Of the fields of values, by name, and their types.
        first: Name of the first field.
        seed: Of all augmentation.
        on_error: What to do about a sample that cannot be read or decoded.
    """

    reader: Reader
    makers: Mapping[str, Maker]
    columns: Mapping[str, tuple[Value, pa.DataType]]
    first: str
    seed: int = 0
    on_error: OnError = "stop"

    @property
    def fixed(self) -> bool:
        """See `BatchMaker`."""
        return all(maker.shape is not None for maker in self.makers.values()) and all(
            value.is_fixed(kind) for value, kind in self.columns.values()
        )

    @property
    def transform(self) -> Any:
        """What makes the first field, if it is a picture."""
        return getattr(self.makers.get(self.first), "transform", None)

    def layout(self, count: int) -> Layout:
        """See `BatchMaker`; an upper bound if the batches are not fixed."""
        found = self._fixed(count)
        for name, maker in self.makers.items():
            if maker.shape is None:
                found[name] = (count * self._most(name), *_part(maker)), np.dtype(maker.dtype)
                found[offsets_of(name)] = (count + 1,), _INT64
        for name, (value, kind) in self.columns.items():
            if value.is_fixed(kind):
                found[array_of(name)] = value.layout(count, kind)
                continue
            arrays = value.columns(array_of(name), self.reader.table([name])[name])
            bounds = _bounds(count, arrays)
            found |= {each: ((bounds[each], *a.shape[1:]), a.dtype) for each, a in arrays.items()}
        return found

    def _fixed(self, count: int) -> Layout:
        """Return the layout of the arrays with a fixed shape, which are filled sample by sample."""
        shapes = {name: maker.shape for name, maker in self.makers.items() if maker.shape is not None}
        found: Layout = {n: ((count, *shape), np.dtype(self.makers[n].dtype)) for n, shape in shapes.items()}
        return found | {"index": ((count,), _INT64)}

    def _most(self, name: str) -> int:
        """Return the largest number of rows or bytes of any sample in a field without a fixed shape."""
        if not is_blob(self.reader.fields.get(name, "")):
            return pc.max(pc.list_value_length(self.reader.table([name])[name])).as_py() or 0
        field = "" if name == self.first else name
        return max((self.reader.size(index, field) for index in range(len(self.reader))), default=0)

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Values] | None = None) -> Batch:
        """See `BatchMaker`."""
        numbers = [int(index) for index in indices]
        arrays = _lead(self._fixed(len(numbers)), out)
        arrays |= {name: np.empty(len(numbers), object) for name in self.makers if name not in arrays}
        put = _Put(self, arrays, SampleRngs(self.seed, epoch), numbers)
        found = fill(self.reader, ["", *put.blobs], numbers, epoch, arrays, put, self.on_error)
        return Batch(self._joined(found, out), found.faults)

    def _joined(self, found: Batch, out: Mapping[str, Values] | None) -> dict[str, Values]:
        """Return all arrays of a batch: the filled arrays, the concatenated pieces, and the value columns."""
        done = {name: array for name, array in found.arrays.items() if array.dtype != object}
        more: dict[str, Values] = {}
        for name, parts in found.arrays.items():
            if parts.dtype == object:
                empty = np.empty((0, *_part(self.makers[name])), self.makers[name].dtype)
                more[name] = np.concatenate([empty, *parts])
                more[offsets_of(name)] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        table = self.reader.table(self.columns, found.arrays["index"])
        for name, (value, _) in self.columns.items():
            more |= value.columns(array_of(name), table[name])
        if out is None:
            return done | more
        places = _lead({name: (array.shape, array.dtype) for name, array in more.items()}, out)
        for name, array in more.items():
            places[name][...] = array
        return done | places


class _Put:
    """Makes one sample in its place of all arrays.

    Args:
        batches: The makers.
        arrays: To fill, by name.
        rngs: The generator of each sample.
        numbers: Of the samples.
    """

    def __init__(
        self, batches: FieldBatches, arrays: dict[str, Values], rngs: SampleRngs, numbers: list[int]
    ) -> None:
        self._rngs = rngs
        makers, fields = batches.makers, batches.reader.fields
        known = [name for name in makers if name != batches.first and not is_blob(fields[name])]
        self.blobs = [name for name in makers if name != batches.first and name not in known]
        files = enumerate([batches.first, *self.blobs])
        self._of_blobs = [(each, makers[name], arrays[name]) for each, name in files if name in makers]
        table = batches.reader.table(known, numbers)
        self._of_values = [
            (dict(zip(numbers, table[name], strict=True)), makers[name], arrays[name]) for name in known
        ]

    def __call__(self, place: int, index: int, data: Sequence[Buffer]) -> None:
        first = data[0]
        for number, maker, array in self._of_blobs:
            if type(maker) is Ragged:  # draws nothing
                array[place] = np.frombuffer(data[number], np.uint8)
                continue
            item = Item(data[number], first, self._rngs.at(index))
            if maker.shape is not None:
                maker.of(item, array[place])
            else:
                array[place] = maker.of(item, None)
        for values, maker, array in self._of_values:
            item = Item(b"", first, self._rngs.at(index), values[index].as_py())
            array[place] = maker.of(item, None)


def field_batches(
    reader: Reader,
    fields: Mapping[str, Any] | None = None,
    transform: Any = None,
    *,
    seed: int = 0,
    on_error: OnError = "stop",
) -> FieldBatches:
    """Return the batch maker of a packed set, with one maker per field.

    Args:
        reader: A packed set.
        fields: Makers by the names of fields. Fields without a maker are delivered as they are stored, and
            None omits a field. The default field of files gets the one name here that no other field has,
            such as `image` or `audio`. Without such a name it is called `image` if there is a transform, or
            else as `--field` named it, or `data`.
        transform: Transform of the pictures in the default field, a short form of
            `fields={"image": Image(transform)}`.
        seed: Seed of all augmentation.
        on_error: What to do about a sample that cannot be read or decoded.

    Raises:
        UsageError: Two names are not names of fields, or a maker does not fit its field.
    """
    given, further = dict(fields or {}), further_files(reader.fields)
    values = {each.name: each.type for each in reader.table(rows=[]).schema}
    if META not in given:  # a text that is for people; and batches with it have no fixed size
        values.pop(META, None)
    firsts = [name for name in given if name not in further and name not in values]
    if len(firsts) > 1 or (firsts and transform is not None) or {*firsts} & {"target", "index"}:
        raise UsageError(
            f"fields names {', '.join(firsts)}" + (" beside a transform" if transform is not None else ""),
            expected="one name for the first file; of others there are "
            f"{', '.join([*further, *values]) or 'none'} in {reader.path}",
            next_step="Correct the names; smallfiles inspect shows the fields of a packed file",
        )
    named = next(iter(reader.fields))
    own = named if len(reader) and named != name_of_first(reader.key(0)) else "data"
    first = firsts[0] if firsts else "image" if transform is not None else own
    if transform is not None:
        given[first] = Image(transform)
    makers: dict[str, Maker] = {}
    for name in (first, *further):
        if (maker := given.get(name, Ragged())) is not None:
            maker = _checked(name, maker, False)
            blob = reader.blob("" if name == first else name)
            makers[name] = maker.bound(blob) if hasattr(maker, "bound") else maker
    columns: dict[str, tuple[Value, pa.DataType]] = {}
    for name, kind in values.items():
        maker = given.get(name, Value())
        if isinstance(maker, Value):
            of_lists = pa.types.is_list(kind)  # which may all have one length
            columns[name] = (maker.bound(reader.table([name])[name]) if of_lists else maker), kind
        elif maker is not None:
            makers[name] = _checked(name, maker, True)
    return FieldBatches(reader, makers, columns, first, seed, on_error)


def _checked(name: str, maker: Any, of_values: bool) -> Any:
    """Return the maker if it fits its field, with a transform of pictures wrapped in an `Image`."""
    fits = isinstance(maker, Boxes) if of_values else hasattr(maker, "of") and not isinstance(maker, Boxes)
    if not of_values and hasattr(maker, "into"):
        return Image(maker)
    if not fits:
        raise UsageError(
            f"the field {name} was given {type(maker).__name__}",
            expected="Value or Boxes for values, and for files Image, Mask, Array, Audio, Function or Ragged",
            next_step="Choose one of these (smallfiles.loading.makers)",
        )
    return maker


def array_of(name: str) -> str:
    """Return the name of the array of a value field. The label becomes `target`, as in training programs."""
    return "target" if name == "label" else name


def offsets_of(name: str) -> str:
    """Return the name of the array that says where each sample's part of a field begins."""
    return "offsets" if name == "data" else f"{name}_offsets"


def _part(maker: Maker) -> tuple[int, ...]:
    """Return the shape of one element of a field without a fixed shape."""
    return (4,) if isinstance(maker, Boxes) else ()


def _bounds(count: int, arrays: Mapping[str, Values]) -> dict[str, int]:
    """Return the largest number of entries that each array of a value field can have in a batch.

    Args:
        count: Number of samples in the batch.
        arrays: The arrays of the whole set: the elements, and offsets from the outermost to the innermost.
    """
    elements, *levels = arrays
    found: dict[str, int] = {}
    borders: Any = slice(None)  # of the samples among the entries of a level
    most = 1
    for name in levels:
        found[name] = count * most + 1
        borders = arrays[name][borders]
        most = int(np.diff(borders).max(initial=0))
    return found | {elements: count * most}


def _lead(layout: Layout, out: Mapping[str, Values] | None) -> dict[str, Values]:
    """Return the leading parts of `out` in the shapes of a layout, or new arrays."""
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


Put: TypeAlias = Callable[[int, int, Sequence[Buffer]], None]
"""Makes one sample, given its place in the batch, its number and the bytes of its files."""

# What decoders raise for damaged bytes. Others (a TypeError, say) are bugs in a program.
_OF_DATA = (SmallfilesError, OSError, ValueError, RuntimeError, SyntaxError, EOFError)
NOT_OF_DATA = (
    *(UsageError, MissingPackageError, ReaderClosedError, ResourceError, NotImplementedError),
    SourceError,  # an object store that does not answer: no sample is at fault, and none may be left out
)


class BadSampleError(FormatError):
    """A sample cannot be read or decoded."""


def fill(
    reader: Reader,
    fields: Sequence[str],
    numbers: list[int],
    epoch: int,
    arrays: dict[str, Values],
    put: Put,
    on_error: OnError,
) -> Batch:
    """Make each sample in its place, and fill `index`.

    Args:
        reader: The samples.
        fields: Names of the fields whose bytes are needed; the default field has no name.
        numbers: Numbers of the samples.
        epoch: Number of the epoch, for messages.
        arrays: Of `len(indices)` rows.
        put: Makes a sample.
        on_error: What to do about a sample that cannot be made.

    Raises:
        BadSampleError: A sample cannot be made, and `on_error` is `stop` or `keep`.
        ResourceError: The storage does not answer, or this machine lacks memory: no sample is at fault.
    """
    found, errors = _read(reader, fields, numbers)
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
    if not made and on_error == "repeat":  # no neighbour to repeat: left out, as with `skip`
        place, holes = 0, []
    for hole, source in _neighbours(holes, place):
        for array in arrays.values():
            array[hole] = array[source]
    return Batch({name: array[:place] for name, array in arrays.items()}, tuple(faults))


def _made(
    put: Put, place: int, index: int, data: Sequence[Buffer], on_error: OnError
) -> DamagedImageError | None:
    """Make a sample; with `keep` also from a damaged picture, of which the error is returned."""
    try:
        put(place, index, data)
    except DamagedImageError as error:
        if on_error != "keep":
            raise
        from smallfiles.images.decoding import recovered

        put(place, index, (recovered(data[0]), *data[1:]))
        return error
    return None


def _read(
    reader: Reader, fields: Sequence[str], numbers: list[int]
) -> tuple[list[tuple[Buffer, ...] | None], dict[int, Exception]]:
    """Read the bytes of all samples in one call.

    If that fails, read one sample after another, and return the errors by number.
    """
    try:
        return list(zip(*reader.read_fields(numbers, fields), strict=True)), {}
    except NOT_OF_DATA:
        raise
    except _OF_DATA:
        pass
    found: list[tuple[Buffer, ...] | None] = []
    errors: dict[int, Exception] = {}
    for index in numbers:
        try:
            found.append(tuple(reader.read(index, field) for field in fields))
        except NOT_OF_DATA:
            raise
        except _OF_DATA as error:
            found.append(None)
            errors[index] = error
    return found, errors


def _fault(reader: Reader, index: int, epoch: int, error: Exception, on_error: OnError) -> Fault:
    """Return the fault of a sample.

    Raise it as an error if `on_error` is `stop`, or if the data is not the cause.
    """
    refuse_shortage(error, f"sample {reader.key(index)!r} of {reader.path}")
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
    """Return the error for a part of an epoch without any readable sample. `where` names the packed file."""
    first = faults[0]
    return BadSampleError(
        f"all {what} of {where} failed in epoch {epoch}, first {first.key!r}: {first.reason}",
        expected="at least one sample that can be read and decoded",
        next_step="Check the file with: smallfiles verify",
    )


def _neighbours(holes: list[int], count: int) -> list[tuple[int, int]]:
    """Pair each bad place with the nearest good place before it, or else with the first good place."""
    good = sorted(set(range(count)) - set(holes))
    if not good:
        return []
    return [(hole, max((place for place in good if place < hole), default=good[0])) for hole in holes]
