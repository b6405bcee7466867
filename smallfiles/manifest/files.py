"""Look at the files that a manifest names before hours are spent on packing them.

The trap: on a parallel file system each look costs a round trip to the metadata server, about a
millisecond; one after the other, a million files take a quarter of an hour, with many in flight a
minute. Notebook 02 teaches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from smallfiles.errors import ManifestError, SmallfilesError, first_few
from smallfiles.samples import ByteStore

IN_FLIGHT = 16
_SLICE = 4096  # futures that exist at once; a million would cost a gigabyte
_NAMED = 5


def check_files(paths: pa.StringArray, store: ByteStore) -> None:
    """Open every file and name those that are missing, unreadable or empty.

    Args:
        paths: Paths in the store.
        store: Where the bytes are.

    Raises:
        ManifestError: There are such files; says how many and the first few.
    """
    count, examples = 0, []
    for fault in _faults(paths, store):
        count += 1
        if count <= _NAMED:
            examples.append(fault)
    if count:
        raise ManifestError(
            f"{count:,} of {len(paths):,} files in {store.describe()} cannot be used: "
            f"{first_few(examples, count, _NAMED)}",
            expected="a readable file with at least one byte for each path",
            next_step="Check the root folder, restore the files, or leave them out of the manifest",
        )


def _faults(paths: pa.StringArray, store: ByteStore) -> Iterator[str]:
    with ThreadPoolExecutor(1 if store.sequential else IN_FLIGHT) as pool:
        for start in range(0, len(paths), _SLICE):
            names = paths.slice(start, _SLICE).to_pylist()
            yield from filter(None, pool.map(lambda name: _fault(name, store), names))


def _fault(path: str, store: ByteStore) -> str | None:
    try:
        # Reading into one byte opens the file, which a look at its size would not.
        size = store.size(path) if store.sequential else store.read_into(path, memoryview(bytearray(1)))
    except SmallfilesError as error:
        return error.got
    except OSError as error:
        return f"{path} cannot be read ({error.strerror or error})"
    return None if size > 0 else f"{path} is empty"
