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

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smallfiles.errors import UsageError
from smallfiles.formats.arrow.reading import ArrowReader
from smallfiles.formats.arrow.writing import write_batches
from smallfiles.formats.bytefile import Access
from smallfiles.samples import Packed, Sample, Schema

NAME = "arrow"


@dataclass(frozen=True)
class Options:
    """How to cut and lay out an Arrow file.

    Args:
        layout: `smallfiles`, or `juelich` for the Jülich loaders (labels of 16 bits, no captions).
        rows_per_batch: Rows a record batch; always 1 in the Jülich layout.
        max_batch_bytes: A batch is cut before its samples grow beyond this; bounds memory too.
    """

    layout: Literal["smallfiles", "juelich"] = "smallfiles"
    rows_per_batch: int = 64
    max_batch_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.layout not in ("smallfiles", "juelich"):
            raise UsageError(
                f"the Arrow layout is {self.layout!r}",
                expected="smallfiles or juelich",
                next_step="Choose smallfiles unless a Jülich loader shall read the file",
            )
        if not (1 <= self.rows_per_batch <= 1 << 20 and 1 <= self.max_batch_bytes <= 1 << 40):
            raise UsageError(
                f"batches of {self.rows_per_batch} rows and {self.max_batch_bytes} bytes were asked for",
                expected="1 to 1,048,576 rows and a positive number of bytes",
                next_step="Start with 64 rows",
            )


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one Arrow IPC file.

    Samples are gathered in one buffer that is used again and again, and go out a batch at a time:
    few large writes, which is what a parallel file system is built for.

    Args:
        samples: In the order they shall be stored.
        out: A name that is free.
        schema: What is packed.
        options: Layout and batch size.
        digest: Whether to write the content digest beside it.

    Returns:
        What was written.

    Raises:
        FormatError: A sample does not fit the schema or the layout.
        ResourceError: No space or no permission.
    """
    return write_batches(samples, out, schema, options or Options(), digest)


def open(path: Path, *, access: Access = "auto") -> ArrowReader:
    """Open an Arrow file: ours, the Jülich course's, or any with a binary column.

    Args:
        path: The file; IPC file or stream.
        access: `mmap`, `pread`, or `auto` to choose by file system.

    Returns:
        The reader; the file is touched at first use.
    """
    return ArrowReader(path, access)
