"""Python values to Arrow arrays, strictly and with little memory.

Arrow alone is too kind for a manifest: it takes True for 1, bytes for text, and doubles its memory
while an array grows. Here each entry has the type it should have, or all that have not are named.

The trap: Python objects of a million rows, once made, leave a heap full of holes that is not given
back to the system. So long columns come in slices. Notebook 02 measures it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.errors import NEXT_STEP, ManifestError, counted, fault, first_few, is_utf8, short
from smallfiles.samples import Buffer

Namer = Callable[[int], str]
"""Tells where a row is: `'n01440764/a.JPEG'`, or `row 3` where names are not known."""

SLICE_ROWS = 1 << 16
TEXTS = (pa.string(), pa.large_string())
_INT64 = np.iinfo(np.int64)
_LARGEST_COLUMN = (1 << 31) - 1  # Arrow's 32-bit offsets


class _Pages:
    """Bytes that grow in pages of their own: never held twice, and no holes in the heap behind them.

    `pa.concat_arrays` would hold all pieces and their sum, a bytearray moves as long as it is small.
    """

    def __init__(self) -> None:
        self._pages = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def add(self, data: Buffer) -> None:
        end = self._used + len(data)
        if end > len(self._pages):
            self._pages.resize(max(end, 2 * len(self._pages)))  # pages cost only when touched
        self._pages[self._used : end] = data
        self._used = end

    def finish(self) -> pa.Buffer:
        return pa.py_buffer(self._pages).slice(0, self._used)


class GrowingStrings:
    """A string column that grows without ever being held twice."""

    def __init__(self) -> None:
        self._data, self._ends = _Pages(), _Pages()
        self._ends.add(bytes(4))

    def add(self, texts: Sequence[str]) -> None:
        """Append strings.

        Raises:
            UnicodeEncodeError: One is not valid UTF-8.
            ManifestError: The column grew beyond 2 GB.
        """
        joined = "".join(texts)
        if joined.isascii():
            data, lengths = joined.encode("ascii"), map(len, texts)
        else:
            encoded = [text.encode("utf-8") for text in texts]
            data, lengths = b"".join(encoded), map(len, encoded)
        self._append(data, np.fromiter(lengths, np.int64, len(texts)).cumsum())

    def extend(self, texts: pa.StringArray) -> None:
        """Append an Arrow column without nulls.

        Raises:
            ManifestError: The column grew beyond 2 GB.
        """
        borders, data = text_bytes(texts)
        self._append(data.data, borders[1:])

    def _append(self, data: Buffer, ends: npt.NDArray[np.int64]) -> None:
        ends = ends + len(self._data)
        if len(self._data) + len(data) > _LARGEST_COLUMN:
            raise too_large()
        self._data.add(data)
        self._ends.add(ends.astype(np.int32).data.cast("B"))

    def finish(self) -> pa.StringArray:
        """Return the collected strings as one Arrow array, without a copy."""
        return pa.StringArray.from_buffers(len(self._ends) // 4 - 1, self._ends.finish(), self._data.finish())


class GrowingNumbers:
    """A column of whole numbers that grows without ever being held twice.

    Args:
        type_: The Arrow type of the numbers.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self._type, self._data = type_, _Pages()

    def extend(self, numbers: pa.Array) -> None:
        """Append an Arrow column of the type without nulls."""
        if len(numbers):
            self._data.add(to_numpy(numbers).data.cast("B"))

    def finish(self) -> pa.Array:
        """Return the collected numbers as one Arrow array, without a copy."""
        count = len(self._data) * 8 // int(self._type.bit_width)
        return pa.Array.from_buffers(self._type, count, [None, self._data.finish()])


@contextmanager
def plain_allocator() -> Iterator[None]:
    """Make Arrow use the C library's allocator inside the block.

    Arrow's own allocator reserves 4 MB for the first kilobyte.
    """
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(usual)


def give_back_memory() -> None:
    """Return memory that loading needed only for a moment to the system.

    The allocators would otherwise keep 60 to 110 MB for ImageNet.
    """
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):  # only the GNU C library has it
        ctypes.CDLL(None).malloc_trim(0)


def too_large() -> ManifestError:
    """Return the error for a column that is larger than one Arrow array can be."""
    return fault("a column is larger than 2 GB", "a smaller set", "Cut the set into several manifests")


def is_arrow(values: Any) -> bool:
    """Check whether values are already an Arrow column."""
    return isinstance(values, pa.Array | pa.ChunkedArray)


def to_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return the numbers of an Arrow column without nulls as a read-only NumPy view, without a copy.

    Arrow's own `to_numpy` would first import pandas where that is installed: a second and 40 MB for nothing.
    """
    kind = numpy_type(column.type)
    if not len(column):
        return np.zeros(0, kind)
    stored = np.frombuffer(column.buffers()[1], kind, column.offset + len(column))
    stored.flags.writeable = False
    return stored[column.offset :]


def numpy_type(type_: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy type for an Arrow type of numbers or truth values.

    Before Arrow 18, `to_pandas_dtype` needed pandas for this.
    """
    if pa.types.is_boolean(type_):
        return np.dtype(np.bool_)
    return np.dtype(f"{'f' if pa.types.is_floating(type_) else 'i'}{type_.bit_width // 8}")


def text_bytes(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the offsets of texts without nulls, and the bytes of all texts joined.

    Text i lies between offsets i and i + 1.
    """
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, borders, data = texts.buffers()
    ends = np.frombuffer(borders, np.int32, len(texts) + 1, 4 * texts.offset).astype(np.int64)
    return ends - ends[0], np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]


def as_integers(values: npt.NDArray[Any]) -> memoryview[int]:
    """Return a view whose elements are Python integers.

    An element costs a third of what a NumPy integer costs, and no list with 32 bytes per number is made.
    """
    return np.ascontiguousarray(values, np.int64).data.cast("B").cast("q")


def spread(count: int, some: int) -> list[int]:
    """Choose `some` evenly spread row numbers out of `count`, the first and the last among them.

    If there are at most `some` rows, all of them are chosen.
    """
    rows: list[int] = np.unique(np.linspace(0, max(count - 1, 0), min(some, count), dtype=np.int64)).tolist()
    return rows


def from_numpy(values: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> pa.Array:
    """Return 64-bit numbers as an Arrow array, without a copy.

    `pa.array` would first import pandas where that is installed: a second and 40 MB for nothing.
    """
    kind = pa.float64() if values.dtype == np.float64 else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def scalar(value: str | int | None) -> pa.Scalar:
    """Return a string, a whole number, or a missing string as an Arrow scalar, to compare a column with it.

    `pa.scalar`, and every function of `pyarrow.compute` that is given a Python value, would first import
    pandas where that is installed: packing a folder then took twice the processor time.
    """
    return column([value], pa.int64() if isinstance(value, int) else pa.string())[0]


def column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return strings, lists of strings, or whole numbers as an Arrow array, with null for None.

    `pa.array` would first import pandas where that is installed: a second and 40 MB for nothing.

    Args:
        values: Values that are known to have this type.
        type_: `string`, `list<string>` or an integer type.
    """
    if pa.types.is_list(type_):
        flat = column([text for texts in values for text in texts], type_.value_type)
        return pa.Array.from_buffers(type_, len(values), [None, _borders(map(len, values))], children=[flat])
    known, empty = None, "" if pa.types.is_string(type_) else 0
    if None in values:
        known = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
        values = [empty if value is None else value for value in values]
    if pa.types.is_string(type_):
        text = "".join(values)
        each = values if text.isascii() else [entry.encode() for entry in values]
        buffers = [known, _borders(map(len, each)), pa.py_buffer(text.encode())]
    else:
        letter = "u" if pa.types.is_unsigned_integer(type_) else "i"
        buffers = [known, pa.py_buffer(np.array(values, f"{letter}{type_.bit_width // 8}"))]
    return pa.Array.from_buffers(type_, len(values), buffers)


def _borders(lengths: Iterable[int]) -> pa.Buffer:
    return pa.py_buffer(np.fromiter(accumulate(lengths, initial=0), np.int32))


def one_chunk(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Join the chunks of an Arrow column into a single array."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    if values.nbytes > _LARGEST_COLUMN:
        raise too_large()
    combined = values.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def strings(values: Any, what: str, name: Namer, *, nullable: bool = False) -> pa.StringArray:
    """Convert values to an Arrow column of strings, and refuse all that are not strings in UTF-8.

    Args:
        values: Strings, or an Arrow column of them.
        what: What one entry is, in the singular, for messages.
        name: Tells where a row is.
        nullable: Whether None is allowed, for unknown.
    """
    if is_arrow(values):
        found = one_chunk(values)
        if found.type in TEXTS and (nullable or not found.null_count):
            return valid(found, pa.string(), what)
        values = found.to_pylist()
    values = values if isinstance(values, list | tuple) else list(values)
    kinds = (str, type(None)) if nullable else (str,)
    if not set(map(type, values)) <= set(kinds):
        bad = [row for row, value in enumerate(values) if not isinstance(value, kinds)]
        if bad:  # NumPy's strings are strings
            raise fault_of(bad, what, "not of string type", values, name, "strings")
    try:
        if nullable and None in values:
            return column(values, pa.string())
        grown = GrowingStrings()
        for start in range(0, len(values), SLICE_ROWS):
            grown.add(values[start : start + SLICE_ROWS])
    except UnicodeEncodeError:
        bad = [row for row, value in enumerate(values) if isinstance(value, str) and not is_utf8(value)]
        raise fault_of(bad, what, "not valid UTF-8", values, name, "text in UTF-8") from None
    return grown.finish()


def valid(found: pa.Array, type_: pa.DataType, what: str) -> pa.Array:
    """Validate an Arrow column from another program, and cast it to a similar type.

    Raises:
        ManifestError: The bytes inside the column do not fit its type.
    """
    try:
        found.validate(full=True)
        return found.cast(type_)
    except pa.ArrowException as error:
        raise fault(f"the column of each {what} is malformed ({error})", "text in UTF-8") from error


def fault_of(
    rows: Sequence[int],
    what: str,
    problem: str,
    values: Any,
    name: Namer,
    expected: str,
    next_step: str = NEXT_STEP,
) -> ManifestError:
    """Return the error that counts the rows with a problem and shows the first few entries."""
    found = ((values[row].as_py() if is_arrow(values) else values[row], row) for row in rows)
    shown = first_few((f"{short(value)} ({name(row)})" for value, row in found), len(rows))
    return fault(f"{counted(rows, what)} {problem}: {shown}", expected, next_step)


def integers(values: Any, what: str, name: Namer, *, nullable: bool = False) -> pa.Array:
    """Convert whole numbers to an int64 column.

    Truth values and floats are refused, even if they are equal to whole numbers.

    Args:
        values: Integers, a NumPy array or an Arrow column of them.
        what: What one entry is, in the singular, for messages.
        name: Tells where a row is.
        nullable: Whether None is allowed, for unknown.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.dtype.itemsize < 8:
        values = values.astype(np.int64)
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return from_numpy(values.copy())
    if is_arrow(values):
        found = one_chunk(values)
        is_whole = pa.types.is_integer(found.type) and found.type != pa.uint64()
        if is_whole and (nullable or not found.null_count):
            return found.cast(pa.int64())
        values = found.to_pylist()
    values = list(values)
    allowed: set[type] = {int, type(None)} if nullable else {int}
    if not set(map(type, values)) <= allowed:
        kinds = (np.integer, *allowed)
        bad = [row for row, each in enumerate(values) if not isinstance(each, kinds) or type(each) is bool]
        if bad:
            expected = "whole numbers" + (" or null" if nullable else "")
            raise fault_of(bad, what, "not of integer type", values, name, expected)
    try:
        return column(values, pa.int64())
    except OverflowError:
        huge = [row for row, value in enumerate(values) if not (value is None or _fits(value))]
        raise fault_of(huge, what, "too large", values, name, "whole numbers of 64 bits") from None


def _fits(value: int) -> bool:
    return int(_INT64.min) <= value <= int(_INT64.max)


def as_mask(found: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return truth values without nulls as a NumPy array.

    `to_numpy` would first import pandas where it is installed, which costs a second and 40 MB.
    """
    stop = found.offset + len(found)
    bits = np.frombuffer(found.buffers()[1], np.uint8) if len(found) else np.zeros(0, np.uint8)
    return np.unpackbits(bits, count=stop, bitorder="little")[found.offset :].view(np.bool_)


def joined(*texts: pa.Array | pa.ChunkedArray | pa.Scalar) -> pa.Array | pa.ChunkedArray:
    """Concatenate the texts of each row. The result is null where any of them is null."""
    return pc.binary_join_element_wise(*texts, scalar(""))


def folders_of(paths: pa.Array) -> pa.Array:
    """Return the folder of each path with a trailing slash, or an empty text if the path has none."""
    return pc.replace_substring_regex(paths, r"(?s)[^/]*$", "")


def file_names_of(paths: pa.Array) -> pa.Array:
    """Return the file name of each path, without its folder."""
    return pc.replace_substring_regex(paths, r"(?s)^.*/", "")


def stems_of(paths: pa.Array) -> pa.Array:
    """Return each path without its suffix."""
    return pc.replace_substring_regex(paths, r"\.[^./]*$", "")


def suffixes_of(paths: pa.Array) -> pa.Array:
    """Return the suffix of each path in lower case with its dot, or an empty text if it has none."""
    return pc.utf8_lower(pc.replace_substring_regex(paths, r"(?s)^.*?(\.[^./]*)?$", r"\1"))
