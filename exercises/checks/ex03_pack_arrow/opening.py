"""Is it an Arrow file at all, and one whose rows can be read at random?

The trap: a file whose writer was not closed has all its data and no footer, and nobody can read it.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from exercises.checks.attempt import Attempt
from smallfiles import formats
from smallfiles.errors import FormatError

_START = b"ARROW1"


def opened(attempt: Attempt, path: Path) -> pa.RecordBatchFileReader:
    """Open the learner's file, memory-mapped.

    Raises:
        Wrong: It cannot be read as an Arrow file of uncompressed record batches.
    """
    attempt.require(
        path.is_file(),
        got="no file" if not path.exists() else "a folder",
        expected="an Arrow file at the path `out`",
        because="nothing was written there; open `out` for writing, not another name",
    )
    with path.open("rb") as file:
        start = file.read(8)
    wanted = "an Arrow IPC file"
    if start[:6] != _START:
        raise attempt.wrong(f"a file that begins with {start!r}", wanted, _what_else(start))
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        formats.get("arrow").open(path).info()
    except pa.ArrowInvalid as error:
        because = "its footer is missing: the writer was not closed; use `with pa.ipc.new_file(…) as writer`"
        raise attempt.wrong(f"a file that cannot be opened ({error})", wanted, because) from error
    except FormatError as error:
        if "compressed" in error.got:
            because = "one image cannot be read out of a compressed batch alone, and JPEGs do not shrink"
            raise attempt.wrong("compressed record batches", "uncompressed ones", because) from error
        if not any(kind in error.expected for kind in ("binary column", "captions")):  # types tell more later
            raise attempt.wrong(error.got, wanted, "its parts do not fit together; write it again") from error
    return reader


def _what_else(start: bytes) -> str:
    if start.startswith(b"PAR1"):
        return "this is Parquet, which compresses columns and has no way to read one row alone"
    if start.startswith(b"\xff\xff\xff\xff"):
        return "this is an IPC stream, without a footer that tells where batches are; use pa.ipc.new_file"
    if not start:
        return "the file is empty; the writer was not closed, or never used"
    return "it does not begin with ARROW1; write it with pa.ipc.new_file"
