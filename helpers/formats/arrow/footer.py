"""How many rows each record batch has, without a visit to every batch.

An Arrow file ends with a table of its batches: offset, header and body size, but no row counts. Those
stand in each batch's header, spread over the whole file: for a million samples ten thousand small
reads at random, in each worker. Our writer says by which rule it cut, and then the sizes tell.

The trap: "all batches are full but the last" is wrong for a file that was cut by bytes too.
Notebook 04. Form of the footer: Apache Arrow `format/File.fbs`, encoded as FlatBuffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.formats.bytefile import damaged

_BLOCK = np.dtype([("offset", "<i8"), ("header", "<i4"), ("pad", "<i4"), ("body", "<i8")])
_ASK_ALL = 4096
_ASK_SOME = 64


@dataclass(frozen=True)
class Cuts:
    """The rule by which a file was cut into batches.

    Args:
        rows: A batch is full with this many.
        batch_bytes: It ends before its samples grow beyond this.
        largest: Bytes of the largest sample.
    """

    rows: int
    batch_bytes: int
    largest: int

    @classmethod
    def loads(cls, text: bytes | None) -> Cuts | None:
        """Read what the writer left; None if it is not there or makes no sense."""
        try:
            found = json.loads(text or b"")
            cuts = cls(int(found["rows"]), int(found["bytes"]), int(found["largest"]))
        except (ValueError, KeyError, TypeError):
            return None
        return cuts if 0 < cuts.rows <= 1 << 20 else None


def row_counts(
    count: int, bodies: np.ndarray | None, cuts: Cuts | None, ask: Callable[[int], int]
) -> np.ndarray:
    """Rows of each batch; a reader checks the answer for a batch when it first reads from it.

    Args:
        count: Number of batches.
        bodies: Their body sizes, where known.
        cuts: The writer's rule, where known.
        ask: Reads the row count from the header of a batch: one small read at random.

    Returns:
        int64 array.
    """
    if count == 0:
        return np.zeros(0, np.int64)
    if cuts is not None and bodies is not None and len(bodies) == count:
        counts = np.full(count, cuts.rows, np.int64)
        # A batch was cut by bytes only if the largest sample could have burst it.
        unsure = (
            np.flatnonzero(bodies > cuts.batch_bytes - cuts.largest) if cuts.rows > 1 else np.zeros(0, int)
        )
        for number in {*unsure.tolist(), count - 1}:
            counts[number] = ask(number)
        return counts
    if count > _ASK_ALL:
        some = np.unique(np.linspace(0, count - 2, _ASK_SOME).astype(int)).tolist()
        found = {ask(number) for number in some}
        if len(found) == 1:
            return np.array([*found] * (count - 1) + [ask(count - 1)], np.int64)
    return np.array([ask(number) for number in range(count)], np.int64)


def blocks(view: memoryview, path: Path) -> np.ndarray:
    """Offset, header and body size of each batch of an Arrow file, from its footer; a view of it.

    Raises:
        DamagedFileError: The footer is not one.
    """
    try:
        (length,) = struct.unpack_from("<i", view, len(view) - 10)
        footer = view[len(view) - 10 - length : len(view) - 10]
        (root,) = struct.unpack_from("<I", footer, 0)
        (back,) = struct.unpack_from("<i", footer, root)
        table, slot = root - back, 4 + 2 * 3  # the fourth field: recordBatches
        (table_bytes,) = struct.unpack_from("<H", footer, table)
        field = struct.unpack_from("<H", footer, table + slot)[0] if table_bytes >= slot + 2 else 0
        if field == 0:
            return np.zeros(0, _BLOCK)
        vector = root + field + struct.unpack_from("<I", footer, root + field)[0]
        (count,) = struct.unpack_from("<I", footer, vector)
        return np.frombuffer(footer, _BLOCK, count, vector + 4)
    except (struct.error, ValueError) as error:
        raise damaged(path, f"its footer cannot be read ({error})") from error
