"""Arrow IPC: one file that pyarrow, DuckDB and Hugging Face `datasets` read as a table.

    key: string · label: int64 or captions: list<string> · meta: string (JSON) · data: binary

Between the record batches and the footer is a table of all samples (`smallfiles.formats.embedded`), which
says where the bytes of each are. Other programs do not see it; a file without it is looked up batch by batch.

Rows are stored in record batches. Each batch costs 250 bytes of header; a reader that does not map the
file fetches a whole batch to get one row. So use 1 to 4 rows per batch for unknown readers, and any
number for ours or one that maps the file.
`layout="juelich"` writes what the Jülich course's loader reads: `image_data: binary, label: uint16`,
one row per batch (followed by our `key` and `meta`, which it ignores). Hugging Face reads both with
`load_dataset("arrow", data_files="x.arrow")`, ours with class names; `.cast_column("data", Image())` gives
pictures, since only a struct of bytes and path can say that it holds some. Its `Dataset.from_file` needs an
IPC stream.

The trap: an Arrow `binary` column holds at most 2 GiB per batch. So the writer also cuts batches by
bytes, and uses `large_binary` if a single sample is larger. Notebook 03 teaches it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from smallfiles.formats.arrow.batches import locate
from smallfiles.formats.arrow.writing import ArrowOptions as Options
from smallfiles.formats.arrow.writing import write
from smallfiles.formats.bytefile import Access
from smallfiles.formats.reader import TableReader

__all__ = ["Options", "locate", "open", "write"]


def open(path: Path, *, access: Access = "auto") -> TableReader:
    """Open an Arrow file: one of ours, one of the Jülich course, or any with a binary column.

    Args:
        path: The file; IPC file or stream.
        access: `mmap`, `pread`, or `auto` to choose by file system.

    Returns:
        The reader; the file is touched at first use.
    """
    return TableReader(path, partial(locate, access=access))
