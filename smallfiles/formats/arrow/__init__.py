"""Arrow IPC: one file that pyarrow, DuckDB and Hugging Face `datasets` read as a table.

    key: string · label: int64 or captions: list<string> · meta: string (JSON) · data: binary

Rows lie in record batches. One row per batch costs 250 bytes of header each; a reader that does not map
the file fetches a whole batch to get one row. So 1 to 4 rows where the reader is unknown, any number
where it maps the file or is ours.
`layout="juelich"` writes what the Jülich course's loader reads: `image_data: binary, label: uint16`,
one row a batch (and our `key` and `meta` behind them, which it does not look at). Hugging Face reads
either with `load_dataset("arrow", data_files="x.arrow")`; its `Dataset.from_file` wants an IPC stream.

The trap: an Arrow `binary` column holds at most 2 GiB a batch. The writer cuts batches by bytes too,
and takes `large_binary` when a single sample is larger. Notebook 03 teaches it.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.formats.arrow.reading import ArrowReader
from smallfiles.formats.arrow.writing import ArrowOptions as Options
from smallfiles.formats.arrow.writing import write
from smallfiles.formats.bytefile import Access

__all__ = ["ArrowReader", "Options", "open", "write"]


def open(path: Path, *, access: Access = "auto") -> ArrowReader:
    """Open an Arrow file: ours, the Jülich course's, or any with a binary column.

    Args:
        path: The file; IPC file or stream.
        access: `mmap`, `pread`, or `auto` to choose by file system.

    Returns:
        The reader; the file is touched at first use.
    """
    return ArrowReader(path, access)
