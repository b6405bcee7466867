"""Store a data set as LMDB: one file that is a sorted tree of keys and values.

    0000000000 … one entry per sample, in stored order: its encoded bytes
    labels, key_data, key_offsets, … the arrays of `smallfiles.formats.blob`, as little-endian numbers
    provenance (JSON)

    env = lmdb.open("x.lmdb", subdir=False, readonly=True, lock=False)
    with env.begin() as txn:
        jpeg, labels = txn.get(b"%010d" % 7), np.frombuffer(txn.get(b"labels"), "<i8")

This module is also the example of a format that a package adds to `smallfiles`: it has `SUFFIXES`, `Options`,
`write`, and `open`, and its `pyproject.toml` names it in the group `smallfiles.formats`.

The trap: liblmdb trusts its file, so a damaged file can end the process with a signal. An environment that
was opened before a fork must not be used after it. Notebook 11 compares LMDB with the other formats.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from smallfiles.errors import FormatError, SmallfilesError, cannot_write, writing
from smallfiles.formats.blob import NAMES, ArrayTable, arrays_of, required
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.output import SampleColumns, add_digest, packed, refuse_fields
from smallfiles.formats.reader import TableReader
from smallfiles.formats.table import Extents, Place, dump_record, load_record, record_of
from smallfiles.samples import Buffer, Packed, Sample, Schema

SUFFIXES = (".lmdb",)

_COMMIT_BYTES = 8 << 20
_SPARE_BYTES, _FEW_BLOCKS = 1 << 30, 2048
_PROVENANCE = b"provenance"


@dataclass(frozen=True)
class Options:
    """LMDB has no options."""


def write(
    samples: Iterable[Sample], out: Path, *, schema: Schema, options: Any = None, digest: bool = True
) -> Packed:
    """Write samples into one LMDB file, as `smallfiles.formats` describes.

    Raises:
        FormatError: There are several files per sample.
        ResourceError: There is no space or no permission, or a sample has 4 GiB or more.
    """
    refuse_fields(out, schema, "LMDB")
    columns, total_bytes, held_bytes = SampleColumns(out, schema), 0, 0
    room = 2 * schema.total_bytes + (schema.count << 14) + _SPARE_BYTES  # of addresses, not of the disk
    with writing(out), _reported(out, _unwritten):
        out.touch(exist_ok=False)
        with lmdb.open(str(out), subdir=False, map_size=room, lock=False, sync=False) as env:
            txn = env.begin(write=True)
            for number, sample in enumerate(samples):
                columns.add(sample)
                txn.put(b"%010d" % number, sample.data, append=True)
                total_bytes, held_bytes = total_bytes + len(sample.data), held_bytes + len(sample.data)
                if held_bytes >= _COMMIT_BYTES:  # a transaction keeps its pages in memory
                    txn.commit()
                    txn, held_bytes = env.begin(write=True), 0
            keys, values = columns.finish()
            for name, numbers in arrays_of(keys["key"], values):
                txn.put(name.encode(), np.ascontiguousarray(numbers).tobytes())
            record = record_of("lmdb", schema, options or Options())
            txn.put(_PROVENANCE, dump_record(record).encode())
            txn.commit()
            env.sync(True)
    return packed(out, "lmdb", len(keys["key"]), total_bytes, add_digest(out) if digest else (out,))


def _unwritten(path: Path, text: str) -> SmallfilesError:
    # liblmdb calls it an input/output error, too, if a full disk cuts a write short.
    number = errno.ENOSPC if os.statvfs(path.parent).f_bavail < _FEW_BLOCKS else errno.EIO
    return cannot_write(path, OSError(number, os.strerror(number)))


@contextmanager
def _reported(path: Path, as_error: Callable[[Path, str], SmallfilesError] = damaged) -> Iterator[None]:
    """Turn the exceptions of the library into sentences."""
    try:
        yield
    except lmdb.Error as error:
        raise as_error(path, str(error)) from error


_environments: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _environment(path: Path) -> Any:
    """Return this process's environment of a file, because the library refuses to open one file twice."""
    status = path.stat()
    with _opening, _reported(path):
        env = _environments.get((status.st_dev, status.st_ino))
        if env is None:
            env = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False)
            _environments[status.st_dev, status.st_ino] = env
    return env


def _close_after_fork() -> None:
    global _opening
    _opening = threading.Lock()  # another thread of the parent may have held it
    for env in list(_environments.values()):
        env.close()
    _environments.clear()


os.register_at_fork(after_in_child=_close_after_fork)


class _Values:
    """The values of an LMDB file, copied out of it; the position of a sample is its number."""

    is_stored, size = False, 0  # liblmdb does not say where a value is

    def __init__(self, path: Path) -> None:
        self._env, self.path = _environment(path), path

    def get(self, key: bytes, what: Callable[[memoryview], Any] = bytes) -> Any:
        """Apply `what` to the value of a key, to copy it or to measure it; None if there is no such key."""
        with _reported(self.path), self._env.begin(buffers=True) as txn:
            return None if (view := txn.get(key)) is None else what(view)

    def sample(self, row: int, what: Callable[[memoryview], Any]) -> Any:
        """Apply `what` to the bytes of a sample."""
        if (found := self.get(b"%010d" % row, what)) is None:
            raise damaged(self.path, f"sample {row} is missing")
        return found

    def read(self, start: int, stop: int) -> Buffer:
        """Return the bytes of sample `start`."""
        return bytes(self.sample(start, bytes))

    def prefetch(self, start: int, stop: int) -> None:
        """Do nothing: liblmdb has nothing to announce."""


class _Samples(Extents):
    """The samples among the values. Nobody may write to the file meanwhile."""

    def __init__(self, values: _Values, count: int) -> None:
        self._values, self._count = values, count

    def place(self, row: int) -> Place:
        return self._values, row, row

    def size(self, row: int) -> int:
        return int(self._values.sample(row, len))

    def total_bytes(self) -> int:
        return sum(map(self.size, range(self._count)))


class _Table(ArrayTable):
    format = "lmdb"


def locate(path: Path) -> ArrayTable:
    """Open an LMDB file, as `smallfiles.formats` describes.

    Raises:
        FormatError: Another program wrote it.
        DamagedFileError: It is not what was written.
    """
    values = _Values(path)
    record = values.get(_PROVENANCE)
    if record is None:
        raise FormatError(
            f"{path} is an LMDB file of another program",
            expected="one that smallfiles packed",
            next_step="Write its images to a folder with the program that wrote it, and pack that folder",
        )
    kinds = {name: "u1" if name.endswith("_data") else "<u8" for name in NAMES} | {"labels": "<i8"}
    found = {name: values.get(name.encode()) for name in NAMES}
    arrays = {name: np.frombuffer(data, kinds[name]) for name, data in found.items() if data is not None}
    count = len(required(path, arrays, "key_offsets")) - 1
    blobs, size = {"": _Samples(values, count)}, path.stat().st_size
    return _Table(path, arrays, load_record(record), blobs, count, file_bytes=size)


def open(path: Path, access: str = "auto") -> TableReader:
    """Open an LMDB file for random access; it is touched at first use, and `access` changes nothing."""
    return TableReader(path, locate)
