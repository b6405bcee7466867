"""Values of some rows of an Arrow file, from wherever in the mapped file they are.

A batch of 64 samples has rows of 64 record batches. Its values are gathered with NumPy, at offsets that are
looked up once per record batch and column; nothing of a column is held by a process.

The trap: `get_batch` parses the header of a batch anew at every call, which costs as much as decoding a small
picture for each sample; and a table of a million samples that is read once is held once by every process of a
node. Notebook 03 teaches record batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import too_large

if TYPE_CHECKING:
    from smallfiles.formats.arrow.batches import Batches

_NOTHING = -1
_LARGEST = 2**31 - 1
_Numbers = npt.NDArray[np.int64]


def can_gather(kind: pa.DataType) -> bool:
    """Whether values of a type can be read at offsets: all types that our files have."""
    if pa.types.is_list(kind):
        return can_gather(kind.value_type)
    of_numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(of_numbers or pa.types.is_boolean(kind) or pa.types.is_string(kind))


class ValueColumn:
    """Where a column of values is: the offset of each of its buffers in the file, by record batch.

    Args:
        number: Of the column.
        kind: Its type, for which `can_gather` holds.
        batches: How many record batches there are.
    """

    def __init__(self, number: int, kind: pa.DataType, batches: int) -> None:
        self._number, self._kind = number, kind
        self._places = np.zeros((batches, _buffers(kind)), np.int64)
        self._known = np.zeros(batches, bool)

    def take(self, opened: Batches, numbers: _Numbers, rows: _Numbers) -> pa.Array:
        """The values of some rows.

        Args:
            opened: The file, which is not kept: each would hold the other, and the mapping with it.
            numbers: Of their record batches.
            rows: Their places in these.
        """
        known = self._known[numbers]
        for number in [] if known.all() else np.unique(numbers[~known]).tolist():
            column = opened.batch(number).column(self._number)
            found = [opened.offset(each) if each else _NOTHING for each in column.buffers()]
            self._places[number] = found
            self._known[number] = True  # last: other threads take it as the sign that the rest is known
        return _Gather(opened.file.view, self._places).values(self._kind, numbers, rows, 0)


class _Gather:
    """Reads values at offsets.

    Args:
        view: The file.
        places: The offset of each buffer, by record batch.
    """

    def __init__(self, view: memoryview, places: _Numbers) -> None:
        self._bytes, self._places = np.frombuffer(view, np.uint8), places

    def values(self, kind: pa.DataType, numbers: _Numbers, rows: _Numbers, at: int) -> pa.Array:
        """One level of values, whose buffers begin with number `at`."""
        marks, starts = self._places[numbers, at], self._places[numbers, at + 1]
        valid, validity = None, None
        if (marks != _NOTHING).any():
            valid = self._bits(marks, rows)
            validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
        if pa.types.is_boolean(kind):
            bits = np.packbits(self._bits(starts, rows), bitorder="little")
            return pa.Array.from_buffers(kind, len(rows), [validity, pa.py_buffer(bits)])
        if not (pa.types.is_list(kind) or pa.types.is_string(kind)):
            width = kind.bit_width // 8
            return pa.Array.from_buffers(
                kind, len(rows), [validity, self._read(starts + rows * width, width)]
            )
        borders = np.frombuffer(self._read(starts + rows * 4, 8), np.int32).reshape(-1, 2).astype(np.int64)
        lengths = borders[:, 1] - borders[:, 0]
        lengths = lengths if valid is None else np.where(valid, lengths, 0)
        ends = np.append(0, np.cumsum(lengths))
        if ends[-1] > _LARGEST:
            raise too_large()
        inner = np.repeat(borders[:, 0] - ends[:-1], lengths) + np.arange(ends[-1])
        buffers = [validity, pa.py_buffer(ends.astype(np.int32))]
        numbers = np.repeat(numbers, lengths)
        if pa.types.is_list(kind):
            child = self.values(kind.value_type, numbers, inner, at + 2)
            return pa.Array.from_buffers(kind, len(rows), buffers, children=[child])
        data = self._bytes[self._places[numbers, at + 2] + inner]
        return pa.Array.from_buffers(kind, len(rows), [*buffers, pa.py_buffer(data)])

    def _read(self, starts: _Numbers, width: int) -> pa.Buffer:
        """So many bytes at each offset, in a row."""
        if width == 8 and not (starts & 7).any():  # as in all files that pyarrow writes
            words = self._bytes[: len(self._bytes) & ~7].view(np.int64)
            return pa.py_buffer(words[starts >> 3])
        return pa.py_buffer(self._bytes[starts[:, None] + np.arange(width)].reshape(-1))

    def _bits(self, starts: _Numbers, rows: _Numbers) -> npt.NDArray[np.bool_]:
        """A bit for each row; set where there is no buffer."""
        there = starts != _NOTHING
        if not there.any():
            return np.ones(len(rows), bool)
        bits = self._bytes[np.where(there, starts + rows // 8, 0)] >> (rows % 8).astype(np.uint8)
        found: npt.NDArray[np.bool_] = ~there | (bits & 1).astype(bool)
        return found


def _buffers(kind: pa.DataType) -> int:
    """How many buffers a column of this type has."""
    if pa.types.is_list(kind):
        return 2 + _buffers(kind.value_type)
    return 3 if pa.types.is_string(kind) else 2
