"""Two digests: one names a data set, the other finds a damaged byte in a packed file.

The *set digest* covers keys and values and does not depend on order, so a shuffled pack of a set is
still that set. The *content digest* of a file is a list of hashes of fixed blocks: it is taken
while writing, and can be checked in parallel, in any order, block by block while staging.

The trap: xxh3 is a checksum against damage, not against an attacker. It was chosen because it costs
2 µs for a 100 KB sample, and SHA-256 56 µs (measured); the `sha256` of a file in a manifest is for those
who need proof. Notebook 05 teaches it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from smallfiles.arrays import one_chunk
from smallfiles.errors import DamagedFileError, FormatError, UsageError, of_system, refuse_shortage
from smallfiles.fields import META, TARGETS, as_text
from smallfiles.samples import Buffer
from smallfiles.storage import ReadingPool, answered, reopening

ALGORITHM = "xxh3_128"
_READ_AT_ONCE = 4  # blocks
BLOCK_BYTES = 4 << 20
SIDECAR_SUFFIX = ".digest.json"
_OTHERS = (".idx", ".index.arrow", ".faults.json", ".resized.json")
SIDECARS = (SIDECAR_SUFFIX, *_OTHERS, *(suffix + SIDECAR_SUFFIX for suffix in _OTHERS))
"""Suffixes of the small files next to a packed one, all of which follow from it."""

_BESIDE = re.compile(
    rf"(?<=.)(\.[\w-]+\.fields\.arrow)?({'|'.join(map(re.escape, (*SIDECARS, '.croissant.json')))})*$"
)
_ADDED = re.compile(r"(.+)\.[A-Za-z0-9_-]+\.fields\.arrow", re.DOTALL)

_LARGEST_BLOCK, _LARGEST_FILE = 1 << 26, 1 << 63  # a hostile number must not become an allocation
_ROWS_AT_ONCE = 1 << 12  # bounds memory, whatever the size of the set


RowOrder: TypeAlias = "pa.Array | range"
"""Row numbers; a range if all rows are in order, which takes no memory."""


def byte_order(keys: pa.Array) -> RowOrder:
    """Row numbers in the order of the keys' bytes; nothing is sorted if they are already in order.

    Args:
        keys: String array without nulls.

    Returns:
        A range if each key is less than the next one.
    """
    if pc.all(pc.less(keys.slice(0, max(len(keys) - 1, 0)), keys.slice(1)), min_count=0).as_py():
        return range(len(keys))
    return pc.sort_indices(keys)


def in_order(column: pa.Array, order: RowOrder, start: int, count: int) -> pa.Array:
    """Return `count` entries of a column, from position `start` of an order of its rows."""
    if isinstance(order, range):
        return column.slice(start, count)
    return column.take(order.slice(start, count))


def key_digest(keys: pa.Array) -> str:
    """Hash the keys in their order, each followed by a NUL, with xxh3_128.

    The result connects files without keys, such as added columns, to the packed set that has the keys.

    Args:
        keys: String array without nulls.
    """
    found = xxhash.xxh3_128()
    for start in range(0, len(keys), _ROWS_AT_ONCE):
        found.update(_lines(keys.slice(start, _ROWS_AT_ONCE), _scalar(b""), b""))
    return f"{ALGORITHM}:{found.hexdigest()}"


def name_hashes(names: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Hash each name with xxh3.

    Finding equal names among these hashes needs a tenth of the memory that a table of the names would need.

    Args:
        names: String array without nulls.
    """
    found = np.empty(len(names), np.uint64)
    for start in range(0, len(names), _ROWS_AT_ONCE):  # never a million Python strings at once
        some = names.slice(start, _ROWS_AT_ONCE).cast(pa.binary()).to_pylist()
        found[start : start + len(some)] = np.fromiter(
            map(xxhash.xxh3_64_intdigest, some), np.uint64, len(some)
        )
    return found


def set_digest(
    keys: pa.Array, values: pa.Table | Mapping[str, pa.Array], order: RowOrder | None = None
) -> str:
    """Name a data set by its content, whatever the order of its samples.

    Two packs of one set are recognised as equal without comparing a million files.

    Defined as SHA-256 over the lines `key NUL target LF`, sorted by the bytes of `key`, where
    target is a decimal label or the captions as compact JSON (UTF-8). Further values follow the target, each
    as `NUL name = value` in the order of their names, as `fields.as_text` writes them.

    Args:
        keys: String array of unique keys.
        values: Columns without nulls in the order of the keys: integers `label` or lists of strings
            `captions`, and all others; JSON objects (`meta`) are no part of it.
        order: What `byte_order(keys)` returned, if known.

    Returns:
        The word sha256, a colon, and 64 hexadecimal digits.
    """
    names = values.column_names if isinstance(values, pa.Table) else [*values]
    targets = one_chunk(values[next(name for name in TARGETS if name in names)])
    order = byte_order(keys) if order is None else order
    further = [(name, values[name]) for name in sorted(names) if name not in TARGETS and name != META]
    digest = hashlib.sha256()
    for start in range(0, len(keys), _ROWS_AT_ONCE):
        some, theirs = (in_order(column, order, start, _ROWS_AT_ONCE) for column in (keys, targets))
        texts = _as_text(theirs)
        for name, column in further:
            value = as_text(one_chunk(in_order(column, order, start, _ROWS_AT_ONCE)))
            texts = pc.binary_join_element_wise(texts, _scalar(f"\0{name}=".encode()), value, _scalar(b""))
        digest.update(_lines(some, texts))
    return "sha256:" + digest.hexdigest()


def _lines(keys: pa.Array, texts: pa.Array | pa.Scalar, end: bytes = b"\n") -> memoryview:
    """Return the text to be hashed as the data buffer of an Arrow array, without a Python string per line."""
    ended = pc.binary_join_element_wise(texts, _scalar(b""), _scalar(end))
    lines = pc.binary_join_element_wise(keys.cast(pa.large_string()), ended, _scalar(b"\0"))
    _, offsets, data = lines.buffers()
    length = int(np.frombuffer(offsets, np.int64, len(lines) + 1)[-1])
    return memoryview(data)[:length]


def _scalar(text: bytes) -> pa.Scalar:
    # pa.scalar would import pandas where that is installed: a second and 40 MB for nothing.
    ends = np.array([0, len(text)], np.int64)
    return pa.LargeStringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(text))[0]


def _as_text(targets: pa.Array) -> pa.Array:
    if pa.types.is_integer(targets.type):
        return targets.cast(pa.large_string())
    compact = [json.dumps(t, ensure_ascii=False, separators=(",", ":")) for t in targets.to_pylist()]
    return pa.array(compact, pa.large_string())


@dataclass(frozen=True)
class ContentDigest:
    """Hashes of the fixed blocks of one file.

    Args:
        file_bytes: Size of the file.
        blocks: One hexadecimal hash a block; the last block may be shorter.
        block_bytes: Size of a block.
        algorithm: Name of the hash, stored so that a later choice can differ.
    """

    file_bytes: int
    blocks: tuple[str, ...]
    block_bytes: int = BLOCK_BYTES
    algorithm: str = ALGORITHM

    def save(self, path: Path) -> None:
        """Write as JSON, one hash per line.

        A copy that takes this small file along can be checked without the original.

        Raises:
            OSError: It cannot be written; packing tells why.
        """
        path.write_text(json.dumps(self.record(), indent=0) + "\n", encoding="utf-8")

    def record(self) -> dict[str, Any]:
        """Return the digest as a dictionary that JSON can store."""
        facts = {name: getattr(self, name) for name in ("algorithm", "block_bytes", "file_bytes")}
        return {**facts, "blocks": list(self.blocks)}

    @classmethod
    def load(cls, path: Path) -> ContentDigest:
        """Read what `save` wrote.

        Raises:
            FormatError: Not a digest file, or one of a hash that we do not know.
        """
        try:
            return cls.of_record(json.loads(answered(path, _text_of, path)), str(path))
        except (OSError, ValueError, RecursionError) as error:
            refuse_shortage(error, path)
            if isinstance(error, PermissionError):
                raise of_system(error, f"{path} cannot be read ({error.strerror})") from error
            raise _no_digest(str(path), error) from error

    @classmethod
    def of_record(cls, record: Any, where: str) -> ContentDigest:
        """Read what `record` gave.

        Args:
            record: Of JSON.
            where: It comes from, for messages.

        Raises:
            FormatError: As `load`.
        """
        try:
            digest = cls(
                _integer(record["file_bytes"], 0, _LARGEST_FILE),
                tuple(str(block) for block in record["blocks"]),
                _integer(record["block_bytes"], 1, _LARGEST_BLOCK),
                str(record["algorithm"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _no_digest(where, error) from error
        count = -(-digest.file_bytes // digest.block_bytes)
        if digest.algorithm != ALGORITHM or len(digest.blocks) != count:
            had = f"{len(digest.blocks)} blocks of {digest.algorithm} for {digest.file_bytes} bytes"
            raise FormatError(
                f"{where} has {had}",
                expected=f"{ALGORITHM} hashes of every block",
                next_step="Pack again, or use the version of this package that wrote it",
            )
        return digest

    def block_is_intact(self, number: int, data: Buffer) -> bool:
        """Check whether `data` equals block `number`. Staging checks each block that it copied."""
        return hash_block(data) == self.blocks[number]

    def damaged_blocks(self, path: Path, *, advance: Callable[[], None] | None = None) -> list[int]:
        """Return the numbers of the blocks of `path` that differ from what was written.

        Several blocks are read at once, since one stream cannot use all bandwidth of a parallel file system.

        Args:
            path: The file, or a copy of it.
            advance: Called for each block that was read.

        Raises:
            DamagedFileError: The file is missing, unreadable or of another size.
        """
        with _readable(path):
            status = answered(path, path.stat)
            same = size, _ = status.st_size, status.st_mtime_ns
            if size != self.file_bytes:
                raise DamagedFileError(
                    f"{path} has {size:,} bytes",
                    expected=f"the {self.file_bytes:,} bytes that were written",
                    next_step="Copy or pack it again; the transfer was cut or the file was changed",
                )
            with answered(path, path.open, "rb", buffering=0) as file, ReadingPool(_READ_AT_ONCE) as pool:

                def is_intact(number: int) -> bool:
                    read = partial(read_block, file.fileno(), number, self.block_bytes)
                    data = answered(path, reopening, path, file.fileno(), same, read)
                    return self.block_is_intact(number, data)

                damaged = []
                for number, good in enumerate(pool.map(is_intact, range(len(self.blocks)))):
                    damaged += [] if good else [number]
                    if advance is not None:
                        advance()
                return damaged


def _no_digest(where: str, error: Exception) -> FormatError:
    return FormatError(
        f"{where} cannot be read as a content digest ({type(error).__name__}: {error})",
        expected="the JSON file written next to a packed file",
        next_step="Pack again, or delete it and verify with --against the source",
    )


def _integer(value: object, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ValueError(f"{value!r} is not a whole number from {lowest} to {highest}")
    return value


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        refuse_shortage(error, path)
        raise DamagedFileError(
            f"{path} cannot be read ({error.strerror or error})",
            expected="the file that was written",
            next_step="Check the path and its permissions; copy or pack it again if it is gone",
        ) from error


def _text_of(path: Path) -> str:
    """Read the text of a plain file. Refuse anything else, such as a pipe, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        return file.read()


def hash_block(data: Buffer) -> str:
    """Hash one block, and return hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def sidecar(path: Path) -> Path:
    """Return the path of the file with the content digest of `path`."""
    return path.with_name(path.name + SIDECAR_SUFFIX)


def added_fields(path: Path, names: Iterable[str] | None = None) -> list[Path]:
    """List the files with fields that `annotate` added to a set, such as `train.arrow.scores.fields.arrow`.

    Args:
        path: The packed file or folder.
        names: All names in its folder, if they are known.
    """
    if names is None:
        names = []
        with suppress(OSError):  # a folder that may not be listed, or the URL of a store
            names = [found.name for found in path.parent.iterdir()]
    return [path.with_name(name) for name in sorted(names) if adds_to(name) == path.name]


def adds_to(name: str) -> str | None:
    """Return the name of the packed set to which a file with this name adds fields, or None."""
    found = _ADDED.fullmatch(name)
    return found[1] if found else None


def refuse_sidecar(path: Path) -> None:
    """Raise UsageError for a small file that belongs to a packed file beside it."""
    packed = path.parent / _BESIDE.sub("", path.name)
    if packed.name != path.name and os.path.lexists(packed):
        got = f"{path} is not a packed file: it belongs to {packed.name}"
        raise UsageError(got, expected="the packed file itself", next_step=f"Give {packed}")


class BlockHasher:
    """Computes the content digest of a file while it is written, without reading it back.

    Bytes that were written in order from `start` go through `update`; what lies outside (a header
    that is patched at the end, the few blocks of HDF5 metadata) is read back by `finish`.

    Args:
        start: Offset in the file of the first byte given to `update`.
    """

    def __init__(self, start: int = 0) -> None:
        self._position = start
        self._hash = xxhash.xxh3_128()
        self._done: dict[int, str] = {}
        self._whole = start % BLOCK_BYTES == 0

    def update(self, data: Buffer) -> None:
        """Add the next bytes of the file."""
        view = memoryview(data).cast("B")
        while len(view):
            room = BLOCK_BYTES - self._position % BLOCK_BYTES
            piece, view = view[:room], view[room:]
            self._hash.update(piece)
            self._position += len(piece)
            if self._position % BLOCK_BYTES == 0:
                self._close_block()

    def _close_block(self) -> None:
        if self._whole:
            self._done[self._position // BLOCK_BYTES - 1] = self._hash.hexdigest()
        self._hash = xxhash.xxh3_128()
        self._whole = True

    def finish(self, path: Path, rewritten: int = 0) -> ContentDigest:
        """Complete the digest with the blocks of `path` that did not pass through `update`.

        Args:
            path: The finished file, closed or flushed.
            rewritten: Number of leading bytes that were written again after they passed through `update`.

        Raises:
            OSError: The file cannot be read back; packing tells why.
        """
        size = path.stat().st_size
        if self._whole and self._position == size and size % BLOCK_BYTES:
            self._done[size // BLOCK_BYTES] = self._hash.hexdigest()
        if size < self._position:  # truncated since: the last block has changed
            self._done.pop(size // BLOCK_BYTES, None)
        for number in range(-(-rewritten // BLOCK_BYTES)):
            self._done.pop(number, None)
        with path.open("rb", buffering=0) as file:
            blocks = tuple(
                self._done.get(number) or hash_block(read_block(file.fileno(), number, BLOCK_BYTES))
                for number in range(-(-size // BLOCK_BYTES))
            )
        return ContentDigest(size, blocks, BLOCK_BYTES)


def digest_file(path: Path) -> ContentDigest:
    """Read a whole file, and return its content digest.

    Raises:
        DamagedFileError: It is missing or unreadable.
    """
    hasher = BlockHasher()
    with _readable(path):
        with path.open("rb", buffering=0) as file:
            while data := file.read(BLOCK_BYTES):
                hasher.update(data)
        return hasher.finish(path)


def read_block(descriptor: int, number: int, block_bytes: int) -> bytes:
    """Read one block by position, so that threads can share the descriptor.

    The last block of a file may be shorter.
    """
    start = number * block_bytes
    data = os.pread(descriptor, block_bytes, start)
    while len(data) < block_bytes and (
        more := os.pread(descriptor, block_bytes - len(data), start + len(data))
    ):
        data += more  # a network file system may return less than requested
    return data
