"""Batches, and how each field of a sample becomes a part of one: one maker per field.

    view = RandomResizedCrop(224)
    make_loader("train.arrow", fields={"image": Image(view), "mask": Mask(view), "boxes": Boxes(view)})

    Image     an encoded picture through a transform             [B, 3, rows, columns]
    Mask      class numbers of pixels, in the view of the image  [B, rows, columns]
    Array     a .npy file of one shape                           [B, ...]
    Audio     a crop of a sound file                             [B, channels, frames]
    Function  what a function of your own makes of a file        [B, ...]
    Ragged    the bytes of a file                                [N] and offsets
    Value     a number per sample, or a text or list             [B], or [N] and offsets
    Boxes     a list of rectangles, in the view of the image     [N, 4] and offsets

What has no fixed size comes as all values in a row, with int64 offsets [B + 1]: sample i has
`x[x_offsets[i]:x_offsets[i + 1]]`.

The traps: an image and a mask that are cropped by two generators no longer fit each other, and nothing fails.
Here every maker of a sample draws from the same start of the same generator. And if workers
draw from one generator, the pictures depend on the number of workers, and forked workers may all draw the
same numbers. So each sample has its own generator, seeded by its number. A batch is a function of (seed,
epoch, indices) alone: threads, processes, a ring and a run that was stopped in between all give the same
pixels. Notebook 13 teaches it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from smallfiles.arrays import as_mask, numpy_type, one_chunk, scalar, text_bytes, to_numpy
from smallfiles.contents import array_view
from smallfiles.errors import FormatError, MissingPackageError, UsageError, first_line
from smallfiles.fields import list_borders
from smallfiles.images.crops import View
from smallfiles.images.decoding import PILLOW_RAISES, not_a_picture
from smallfiles.images.picture import size_of
from smallfiles.progress import plural
from smallfiles.samples import Blob, Buffer, Reader

if TYPE_CHECKING:
    from smallfiles.images import Transform

Values: TypeAlias = npt.NDArray[Any]
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

    arrays: dict[str, Values]
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

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Values] | None = None) -> Batch:
        """Make the batch of these samples in this epoch.

        The batch is written into `out` (arrays of `layout`, or larger ones) if it is given. The result
        depends only on seed, epoch, and indices, and not on the process or the time.
        """


def nbytes(layout: Layout) -> int:
    """Return the size in bytes of a block for all arrays of a layout, each aligned to 64 bytes."""
    return sum(_padded(shape, dtype) for shape, dtype in layout.values())


def views(block: Values, layout: Layout) -> dict[str, Values]:
    """Place the arrays of a layout inside one block of bytes, without a copy.

    With a single block, each batch that a worker sends needs one file descriptor and one mapping.

    Args:
        block: Contiguous uint8 array of at least `nbytes(layout)` bytes.
        layout: Shape and dtype of each array.
    """
    at, start = {}, 0
    for name, (shape, dtype) in layout.items():
        at[name] = shape, dtype.str, start
        start += _padded(shape, dtype)
    return found_at(block, at)


def places(arrays: Mapping[str, Values], block: Values) -> Places:
    """Return shape, dtype, and first byte of each array in the block that contains them."""
    base = block.__array_interface__["data"][0]
    return {
        name: (array.shape, array.dtype.str, array.__array_interface__["data"][0] - base if array.size else 0)
        for name, array in arrays.items()
    }


def found_at(block: Values, places: Places) -> dict[str, Values]:
    """Return the arrays at these places in a block, without a copy."""
    found = {}
    for name, (shape, kind, start) in places.items():
        dtype = np.dtype(kind)
        found[name] = block[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return found


def allocate(layout: Layout) -> dict[str, Values]:
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
        """Return the random generator at the start of this sample's sequence.

        It is valid until the next call.
        """
        self._counter[2] = index
        self._bits.state = self._start
        return self._rng


_CUT_WAV = re.compile(r"^data *: (\d+) \(should be (\d+)\)", re.MULTILINE)
_ENDLESS = 0x7FFFFFFF  # programs write this or more into a WAV whose length they do not know yet
_TRIED = 100
"""Samples to look at until one tells the shape of all."""


class Item(NamedTuple):
    """What a maker is given of a sample.

    Args:
        data: The bytes of its own field; those of the first field for a field of values.
        first: The bytes of the first field: the image, say.
        rng: The sample's generator at its start.
        value: The value of a field of values.
    """

    data: Buffer
    first: Buffer
    rng: np.random.Generator
    value: Any = None


class Maker(Protocol):
    """Makes one field of a batch; a frozen dataclass that can be pickled."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one sample; None where samples differ in the length of their first dimension."""

    @property
    def dtype(self) -> Any:
        """Of the elements."""

    def of(self, item: Item, out: Values | None) -> Values | None:
        """Fill `out`, of this shape; or return the sample's part where the shape is None."""


class Viewer(Protocol):
    """A transform that says what it sees of a picture."""

    shape: tuple[int, ...]

    def view(self, width: int, height: int, rng: np.random.Generator) -> View:
        """Choose the part of a picture of this size that the transform shows, and the size that it gets."""


@dataclass(frozen=True)
class Image:
    """An encoded picture through a transform.

    Args:
        transform: One of `smallfiles.images`, or any function of a picture (see `callables`).
    """

    transform: Transform | Any

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the transform."""
        return tuple(self.transform.shape)

    @property
    def dtype(self) -> Any:
        """That of the transform."""
        return np.dtype(self.transform.dtype)

    def of(self, item: Item, out: Values | None) -> None:
        """See `Maker`."""
        assert out is not None
        self.transform.into(item.data, item.rng, out)


@dataclass(frozen=True)
class Mask:
    """Class numbers of pixels (a PNG of one channel or with a palette), in the very view of the image.

    Scaled by the nearest pixel, since the mean of classes 1 and 3 is not class 2.

    Args:
        view: The transform of the image.
        dtype: Of the class numbers; 255 in uint8 is what losses often leave out.
    """

    view: Viewer
    dtype: str = "uint8"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.view.shape[0], self.view.shape[1]

    def of(self, item: Item, out: Values | None) -> None:
        """See `Maker`.

        Raises:
            ImageError: No mask, or one of another size than its image.
        """
        classes = class_numbers(item.data)
        rows, columns = classes.shape
        width, height = size_of(item.first)
        if (width, height) != (columns, rows):
            raise not_a_picture(f"the mask has {columns} x {rows} pixels, and its image {width} x {height}")
        view = self.view.view(columns, rows, item.rng)
        seen = seen_through(view, classes)
        assert out is not None
        if len(seen) and seen.max() > np.iinfo(out.dtype).max:
            raise not_a_picture(f"the mask has class {seen.max()}, which {out.dtype} does not hold")
        out[...] = seen


def class_numbers(data: Buffer) -> Values:
    """Return the class numbers that a mask stores. For a palette these are its indices, not its colours.

    Args:
        data: An image file with one channel.

    Returns:
        Integers with the shape (rows, columns).

    Raises:
        ImageError: The data is not a picture, or has several channels.
    """
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(data)) as picture:
            if picture.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
                raise not_a_picture(
                    f"a mask of mode {picture.mode}, where each pixel should be a class number"
                )
            found = np.asarray(picture)
    except PILLOW_RAISES as error:
        raise not_a_picture(str(error)) from error
    return found.astype(np.uint8) if found.dtype == np.bool_ else found


def seen_through(view: View, pixels: Values) -> Values:
    """Crop and scale class numbers to a view, by nearest pixels as torchvision scales a mask."""
    part, scaled = view.part, pixels
    cut = pixels[part.top : part.top + part.height, part.left : part.left + part.width]
    if cut.shape != (view.rows, view.columns):
        given = torch.from_numpy(cut.astype(np.uint8 if cut.dtype == np.uint8 else np.float64))
        nearest: Any = torch.ops.aten.upsample_nearest2d
        scaled = nearest(given[None, None], [view.rows, view.columns])[0, 0].numpy()
    else:
        scaled = cut
    square = scaled[view.top : view.top + view.size, view.left : view.left + view.size]
    return square[:, ::-1] if view.mirrored else square


@dataclass(frozen=True)
class Boxes:
    """Rectangles [x1, y1, x2, y2] in pixels of the picture, moved and clipped with its view.

    One that is outside of the view stays, with no area, so that labels in another field still belong to it.

    Args:
        view: The transform of the image; None leaves them as they are.
    """

    view: Viewer | None = None

    shape = None
    dtype = np.dtype(np.float32)

    def of(self, item: Item, out: Values | None) -> Values:
        """See `Maker`."""
        boxes = np.array(item.value if item.value is not None else [], np.float32).reshape(-1, 4)
        if self.view is None:
            return boxes
        view = self.view.view(*size_of(item.first), item.rng)
        part = view.part
        x = (boxes[:, 0::2] - part.left) * (view.columns / part.width) - view.left
        y = (boxes[:, 1::2] - part.top) * (view.rows / part.height) - view.top
        if view.mirrored:
            x = view.size - x[:, ::-1]
        return np.stack([x, y], -1).reshape(-1, 4).clip(0, view.size).astype(np.float32)


@dataclass(frozen=True)
class Array:
    """A `.npy` file of one shape and type, straight into the batch; pickled objects are never loaded.

    Args:
        shape: Of one sample; None takes that of the first sample.
        dtype: Of its elements; likewise.
    """

    shape: tuple[int, ...] | None = None
    dtype: Any = None

    def bound(self, blob: Blob) -> Array:
        """Fill in a missing shape or type from the first sample that can be read."""
        if self.shape is not None and self.dtype is not None:
            return self
        first = _first(blob, _array)
        return Array(self.shape or first.shape, np.dtype(self.dtype or first.dtype))

    def of(self, item: Item, out: Values | None) -> None:
        """See `Maker`."""
        found = _array(item.data)
        assert out is not None
        if found.shape != out.shape or found.dtype != out.dtype:
            raise FormatError(
                f"an array of {found.dtype} {list(found.shape)}",
                expected=f"{out.dtype} {list(out.shape)} as in the first sample, since a batch is one array",
                next_step="Make all arrays of one shape and type, or take Function with a crop of your own",
            )
        out[...] = found


def _array(data: Buffer) -> Values:
    try:
        return array_view(data)
    except ValueError as error:
        raise FormatError(
            f"the bytes are no array ({first_line(error)})",
            expected="a .npy file of numbers, as numpy.save writes it",
            next_step="Save it again without objects, or leave it out",
        ) from error


@dataclass(frozen=True)
class Audio:
    """A crop of a sound file (WAV, FLAC, Ogg, MP3), of which only that part is decoded; -1 to 1.

    A file with fewer frames is filled with zeros at its end. Nothing is resampled.

    Args:
        frames: Of the crop: seconds times sampling rate.
        rate: The sampling rate that all files must have, per second; None takes files of any.
        channels: 1 takes the mean of all channels; a file must have any other number itself.
        random: Crop at a random place; False takes the middle, as for validation.
    """

    frames: int
    rate: int | None = None
    channels: int = 1
    random: bool = True

    dtype = np.dtype(np.float32)

    def __post_init__(self) -> None:
        if self.frames < 1 or self.channels < 1:
            raise UsageError(
                f"Audio was given {self.frames} frames and {self.channels} channels",
                expected="one at least of both",
                next_step="Give the frames of a crop: seconds times sampling rate",
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Channels and frames."""
        return self.channels, self.frames

    def of(self, item: Item, out: Values | None) -> None:
        """See `Maker`.

        Raises:
            FormatError: No sound, an empty one, or another sampling rate or number of channels.
            MissingPackageError: soundfile is not installed.
        """
        try:
            import soundfile
        except (ImportError, OSError) as error:  # OSError: its library of C is missing
            raise MissingPackageError.of_import(error, "sound files") or error from None
        try:
            with soundfile.SoundFile(io.BytesIO(item.data)) as sound:
                self._check(sound)
                spare = max(0, sound.frames - self.frames)
                sound.seek(int(item.rng.integers(spare + 1)) if self.random else spare // 2)
                found = sound.read(min(self.frames, sound.frames), dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise _no_sound(f"the bytes are no sound ({error})") from error
        if len(found) < min(self.frames, sound.frames):
            raise _no_sound(f"the sound ends after {len(found)} frames of a crop of {self.frames}")
        assert out is not None
        out[:, len(found) :] = 0
        out[:, : len(found)] = found.mean(1) if self.channels == 1 else found.T

    def _check(self, sound: Any) -> None:
        if not sound.frames:
            raise _no_sound("the sound has no frames")
        cut = _CUT_WAV.search(sound.extra_info)
        if cut and int(cut[2]) < int(cut[1]) < _ENDLESS:  # libsndfile only notes it
            raise _no_sound(f"the sound has {cut[2]} of {cut[1]} bytes")
        rates = self.rate in (None, sound.samplerate)
        if not rates or self.channels not in (1, sound.channels):
            raise FormatError(
                f"a sound of {sound.samplerate} Hz and {plural(sound.channels, 'channel')}",
                expected=f"{self.rate or 'any'} Hz and {self.channels}, as Audio was given",
                next_step="Convert the files before packing, or give Audio their rate and channels",
            )


def _no_sound(got: str) -> FormatError:
    return FormatError(
        got,
        expected="a whole WAV, FLAC, Ogg or MP3 file",
        next_step="Fetch the file again, or leave it out of the manifest",
    )


@dataclass(frozen=True)
class Function:
    """What a function of your own makes of the bytes of a file.

    Args:
        call: Of the bytes and the sample's random generator; gives an array. Defined in a module, since
            workers import it.
        shape: Of the array.
        dtype: Of its elements.
    """

    call: Callable[[Buffer, np.random.Generator], Any]
    shape: tuple[int, ...]
    dtype: Any = "float32"

    def of(self, item: Item, out: Values | None) -> None:
        """See `Maker`."""
        found = np.asarray(self.call(item.data, item.rng))
        assert out is not None
        if found.shape != out.shape:
            raise UsageError(
                f"the function made {list(found.shape)} of one sample",
                expected=f"{list(out.shape)}, as its Function says",
                next_step="Correct the shape, or have the function cut or fill up",
            )
        out[...] = found


@dataclass(frozen=True)
class Ragged:
    """The bytes of a file as they are."""

    shape = None
    dtype = np.dtype(np.uint8)

    def of(self, item: Item, out: Values | None) -> Values:
        """See `Maker`."""
        return np.frombuffer(item.data, np.uint8)


@dataclass(frozen=True)
class Value:
    """A number for each sample, or a text or list of any length.

    Lists that all have one length are a dimension. Of others, all elements come in a row with their offsets,
    and lists in lists, or texts in lists, have offsets of their own: `x_parts`, `x_parts2`.

    Args:
        missing: What stands for a missing number; None takes NaN for floats, and refuses others.
        length: Of all innermost lists; 0 if they differ. Found by `bound`.
    """

    missing: float | int | None = None
    length: int = 0

    def bound(self, column: pa.ChunkedArray) -> Value:
        """Fill in the length of the innermost lists, if all of them in the set have the same length."""
        *lists, elements = _levels(column)
        if not lists or pa.types.is_string(elements.type) or lists[-1].null_count:
            return replace(self, length=0)
        lengths = pc.min_max(pc.list_value_length(lists[-1])).as_py()
        return replace(self, length=lengths["max"] or 0 if lengths["min"] == lengths["max"] else 0)

    def is_fixed(self, type_: pa.DataType) -> bool:
        """Check whether the shape of a batch of this type does not depend on its values."""
        return not _depth(type_) or (_depth(type_) == 1 and self.length > 0)

    def layout(self, count: int, type_: pa.DataType) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of the array for a batch of values of a type for which `is_fixed` holds."""
        of_each = (self.length,) if pa.types.is_list(type_) else ()
        return (count, *of_each), numpy_type(type_.value_type if of_each else type_)

    def columns(self, name: str, column: pa.Array | pa.ChunkedArray) -> dict[str, Values]:
        """Return the arrays of some rows by name: numbers, or elements and their offsets.

        Args:
            name: Name of the field.
            column: The values of the field for the samples of the batch.

        Raises:
            UsageError: A number is missing, and no replacement for missing numbers was given.
        """
        *lists, elements = _levels(column)
        offsets = [list_borders(each) for each in lists]
        if pa.types.is_string(elements.type):
            borders, data = text_bytes(pc.fill_null(elements, scalar("")))
            offsets.append(borders)
            found = data.copy()  # torch wants to write
        else:
            found = self._numbers(name, elements)
            if self.length and lists:
                found = found.reshape(len(offsets.pop()) - 1, self.length)
        names = (f"{name}_offsets", f"{name}_parts", *(f"{name}_parts{level}" for level in range(2, 9)))
        return {name: found, **dict(zip(names, offsets, strict=False))}

    def _numbers(self, name: str, found: pa.Array) -> Values:
        if found.null_count:
            missing = self.missing
            if missing is None and not pa.types.is_floating(found.type):
                raise UsageError(
                    f"the field {name} has no value in {found.null_count} of {len(found)} rows",
                    expected="a number for each sample",
                    next_step=f'Say what stands for it: fields={{"{name}": Value(missing=-1)}}',
                )
            found = pc.fill_null(found, pa.scalar(float("nan") if missing is None else missing, found.type))
        numbers: Values = as_mask(found) if pa.types.is_boolean(found.type) else to_numpy(found)
        return numbers.copy()  # torch wants to write


def _levels(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """Return a column, then the elements of its lists, then the elements of those lists, and so on."""
    found = [one_chunk(column)]
    while pa.types.is_list(found[-1].type):
        found.append(found[-1].flatten())
    return found


def _depth(type_: pa.DataType) -> int:
    """Return how many levels of offsets the values of a type have."""
    if pa.types.is_list(type_):
        return 1 + _depth(type_.value_type)
    return int(pa.types.is_string(type_))


def _first(blob: Blob, made: Callable[[Buffer], Values]) -> Values:
    """Apply a function to the first sample that can be read, and return the result."""
    error: FormatError | None = None
    for index in range(min(len(blob), _TRIED)):
        try:
            return made(blob.read(index))
        except FormatError as problem:
            error = error or problem
    raise error or FormatError("there are no samples", expected="one at least", next_step="Pack some")
