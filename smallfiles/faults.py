"""Sentences for the faults of a manifest or a column: how many, and the first few by name.

The trap: a message that prints a whole entry may print a megabyte, and one that lists all faults a
million lines. Both are cut here. Notebook 02 shows the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from smallfiles.errors import ManifestError, ResourceError, SmallfilesError, first_few, refuse_shortage
from smallfiles.samples import ByteStore
from smallfiles.storage import ReadingPool

NEXT_STEP = "Correct the entries, or make the manifest again: smallfiles manifest"
_LONGEST = 120  # characters of one entry in a message
_IN_FLIGHT = 16
_SLICE = 4096  # futures at a time; a million would cost a gigabyte
_NAMED = 5


def fault(got: str, expected: str, next_step: str = NEXT_STEP) -> ManifestError:
    """A ManifestError with the usual next step."""
    return ManifestError(got, expected=expected, next_step=next_step)


@contextmanager
def summary_of(path: Path) -> Iterator[None]:
    """Put the name of the file in front of a fault in its columns."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(
            f"{path}: {error.got}", expected=error.expected, next_step=error.next_step
        ) from error


def counted(items: Sized, what: str) -> str:
    """`1 path is`, `3 paths are`, `3 entries are`."""
    if len(items) == 1:
        return f"1 {what} is"
    return f"{len(items):,} {what[:-1] + 'ie' if what.endswith('y') else what}s are"


def named(names: Iterable[str], total: int, problem: Callable[[str], str | None]) -> str:
    """The first few names, each with its problem."""
    return first_few((f"{short(name)} {problem(name) or ''}".rstrip() for name in names), total)


def short(value: object) -> str:
    """The `repr` of an entry, shortened."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = ascii(value) if isinstance(value, str) and not is_utf8(value) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}… ({len(text):,} characters)"


def is_utf8(text: str) -> bool:
    """Whether text can be stored: JSON allows half a surrogate pair, UTF-8 does not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_files(paths: pa.StringArray, store: ByteStore) -> None:
    """Open every file and name those that are missing, unreadable or empty, before hours of packing.

    Each check is a round trip on a parallel file system, so many are in flight.

    Args:
        paths: Paths in the store.
        store: Where the bytes are.

    Raises:
        ManifestError: There are such files; gives their number and the first few.
        ResourceError: The storage does not answer, or this machine lacks descriptors: no file is at fault.
    """
    count, examples = 0, []
    for problem in _problems(paths, store):
        count += 1
        if count <= _NAMED:
            examples.append(problem)
    if count:
        raise ManifestError(
            f"{count:,} of {len(paths):,} files in {store.describe()} cannot be used: "
            f"{first_few(examples, count, _NAMED)}",
            expected="a readable file with at least one byte for each path",
            next_step="Check the root folder, restore the files, or leave them out of the manifest",
        )


def _problems(paths: pa.StringArray, store: ByteStore) -> Iterator[str]:
    with ReadingPool(1 if store.sequential else _IN_FLIGHT) as pool:
        for start in range(0, len(paths), _SLICE):
            names = paths.slice(start, _SLICE).to_pylist()
            yield from filter(None, pool.map(lambda name: _problem(name, store), names))


def _problem(path: str, store: ByteStore) -> str | None:
    try:
        # Reading one byte opens the file; looking up its size would not.
        size = store.size(path) if store.sequential else store.read_into(path, memoryview(bytearray(1)))
    except ResourceError:
        raise
    except SmallfilesError as error:
        return error.got
    except OSError as error:
        refuse_shortage(error, path)
        return f"{path} cannot be read ({error.strerror or error})"
    return None if size > 0 else f"{path} is empty"
