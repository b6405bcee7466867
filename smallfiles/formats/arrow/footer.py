"""How many rows each record batch has, without reading every batch.

An Arrow file ends with a table of its batches: offset, header and body size, but no row counts. Those
are in the headers of the batches, spread over the whole file: ten thousand small random reads for a
million samples, in each worker. Our writer stores the rule by which it cut, so that the sizes suffice.

The trap: "all batches but the last are full" is wrong for a file that was also cut by bytes.
Short, since pyarrow gives everything in a footer except where the batches are. Notebook 03.
Form of the footer: Apache Arrow `format/File.fbs`, encoded as FlatBuffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smallfiles.formats.bytefile import ByteFile, damaged

_BLOCK = np.dtype([("offset", "<i8"), ("header", "<i4"), ("pad", "<i4"), ("body", "<i8")])
_READ_ALL = 4096
_READ_SOME = 64


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
        """Read what the writer stored; None if it is not there or makes no sense."""
        try:
            found = json.loads(text or b"")
            cuts = cls(int(found["rows"]), int(found["bytes"]), int(found["largest"]))
        except (ValueError, KeyError, TypeError):
            return None
        return cuts if 0 < cuts.rows <= 1 << 20 else None


def row_counts(
    bodies: np.ndarray, cuts: Cuts | None, rows_in: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Rows of each batch; a reader checks a count when it first reads from that batch.

    Args:
        bodies: Size of the body of each batch.
        cuts: The writer's rule, where known.
        rows_in: Reads the row counts of some batches from their headers: small random reads.

    Returns:
        int64 array.
    """
    count = len(bodies)
    counts = np.full(count, 1 if cuts is None else cuts.rows, np.int64)
    if cuts is not None:
        # A batch was cut by bytes only if the largest sample might not have fitted into it.
        unsure = (bodies > cuts.batch_bytes - cuts.largest) & (cuts.rows > 1)
        unsure[count - 1 :] = True
        counts[unsure] = rows_in(np.flatnonzero(unsure))
    elif count <= _READ_ALL or (rows_in(np.linspace(0, count - 1, _READ_SOME).astype(int)) != 1).any():
        counts = rows_in(np.arange(count))  # else one row per batch, as the Jülich course writes them
    return counts


_RECORD_BATCH = 3  # what a message of a stream may hold


def stream_blocks(file: ByteFile) -> np.ndarray:
    """Find the record batches of a stream, one after the other.

    Form of a message: Apache Arrow `format/Message.fbs`.

    Raises:
        DamagedFileError: It is not a stream of whole messages.
    """
    found, at = [], 0
    try:
        while at + 8 <= file.size:
            _, length = struct.unpack("<ii", file.read(at, at + 8))
            if length == 0:
                break
            header, body = _message(bytes(file.read(at + 8, at + 8 + length)))
            if header == _RECORD_BATCH:
                found.append((at, 8 + length, 0, body))
            at += 8 + length + max(0, body)
    except (struct.error, IndexError) as error:
        raise damaged(file.path, f"the message at byte {at:,} cannot be read ({error})") from error
    return np.array(found, _BLOCK)


def _message(data: bytes) -> tuple[int, int]:
    """Return the kind of a message, and the number of bytes of its body."""
    (root,) = struct.unpack_from("<I", data, 0)
    (back,) = struct.unpack_from("<i", data, root)
    table_bytes, _, _, kind, _, body = struct.unpack_from("<6H", data, root - back)
    body = body if table_bytes >= 12 else 0  # the last field may be left out, as that of a schema is
    (size,) = struct.unpack_from("<q", data, root + body) if body else (0,)
    return data[root + kind] if kind else 0, size


def blocks(file: ByteFile) -> np.ndarray:
    """Offset, header and body size of each batch of an Arrow file, from its footer.

    Raises:
        DamagedFileError: The footer is not one.
    """
    try:
        end = file.size - 10
        (length,) = struct.unpack("<i", file.read(end, end + 4))
        footer = file.read(end - length, end)
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
        raise damaged(file.path, f"its footer cannot be read ({error})") from error
