"""Write and find the table of samples, which lies between the data of the files and the inodes.

The table (`smallfiles.formats.embedded`) lies after the data of all files and belongs to none of them. Older
files have it as `TABLE`. With it, a raw squashfs file of a million samples opens in milliseconds: no inode
needs to be read.

The trap: a tree that is unpacked and packed again by another tool has no table, and its labels are those of
its class folders. Short, since the writer and the readers share it. Notebook 06 looks inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pysquashfs.errors import DamagedImageError, MissingToolError, SquashFSError
from smallfiles.errors import (
    DamagedFileError,
    FormatError,
    MissingPackageError,
    SmallfilesError,
    refuse_shortage,
)

TABLE = ".smallfiles/samples.arrow"
"""The table in files that were packed before it left the tree."""

ALIGNMENT = 64
_TEXT = """\

This image was packed by "smallfiles". Every sample is a file at its own path.
An Arrow file after this text has the keys, labels (or captions) and where they came from:

    import pyarrow as pa, struct
    image = open("x.sqfs", "rb").read()
    (end,) = struct.unpack_from("<Q", image, 64)
    start, stop = struct.unpack_from("<2Q", image, end - 24)
    table = pa.ipc.open_file(image[start:stop]).read_all()
    print(table, table.schema.metadata[b"smallfiles"])
"""


def readme(position: int) -> bytes:
    """The text, padded so that what follows it begins at a multiple of `ALIGNMENT`."""
    text = _TEXT.encode("ascii")
    return text + b"\n" * (-(position + len(text)) % ALIGNMENT)


@contextmanager
def as_sentences() -> Iterator[None]:
    """Turn an error of `pysquashfs` into the error of this package with the same sentence."""
    try:
        yield
    except SquashFSError as error:
        refuse_shortage(error, "the squashfs file")
        kind: type[SmallfilesError] = FormatError
        if isinstance(error, DamagedImageError):
            kind = DamagedFileError
        elif isinstance(error, MissingToolError):
            kind = MissingPackageError
        same = kind(error.got, expected=error.expected, next_step=error.next_step)
        if isinstance(cause := error.__cause__, ImportError):  # our sentence names the version too
            same = MissingPackageError.of_import(cause, error.expected.removeprefix("it for ")) or same
        raise same from error
