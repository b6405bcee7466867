"""What a folder's file system does for one node, as records that may be published.

Metadata operations and reads are timed on files that are made for it and removed, or that are there. The
trap: what is written here is read by strangers. So a record holds numbers, rounded to two digits, and words
of closed lists, and nothing that names a user, a host, an account or a path; a file system of unknown kind is
"other".
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import numpy as np

from smallfiles import machine
from smallfiles.errors import UsageError, writing
from smallfiles.machine.filesystems import SHARED_FUSE_KINDS, SHARED_KINDS
from smallfiles.machine.nodelocal import NodeLocal, named_directories, node_local, problem_of
from smallfiles.measure.cache import drop
from smallfiles.measure.record import Record
from smallfiles.progress import bytes_text

Timed: TypeAlias = tuple[str, str, int, float]
"""What, name, bytes of one operation, operations per second."""

METADATA, READS, LOCAL = "metadata operations", "probe reads", "node-local storage"
_FILES, _FILE_BYTES, _SECONDS = 100, 64 << 20, 1.0
_SIZES, _IN_FLIGHT, _LEAST = (4 << 10, 128 << 10, 4 << 20), (1, 8), 16
_LOCAL_KINDS = {"btrfs", "ext2", "ext3", "ext4", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
_KINDS = _LOCAL_KINDS | SHARED_KINDS | SHARED_FUSE_KINDS | {f"fuse.{kind}" for kind in SHARED_FUSE_KINDS}


def probe(folder: Path) -> list[Record]:
    """Measure the file system of a folder, and the node-local storage, for some seconds.

    Args:
        folder: Where 64 MiB and a hundred small files are written, and removed. One that cannot be written
            to, as those with the data sets of a site, is measured with the first hundred files that are
            there, without `create`, and with reads of the largest of them.

    Raises:
        ResourceError: It is full.
        UsageError: It cannot be written to, and has no file that is large enough.
    """
    if os.access(folder, os.W_OK):
        with writing(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".smallfiles-probe-") as made:
            names, large = [Path(made, str(number)) for number in range(_FILES)], Path(made, "large")
            with large.open("wb") as file:
                file.write(np.random.default_rng(0).bytes(_FILE_BYTES))
                file.flush()
                os.fsync(file.fileno())
            timed = [*_operations(names, _OPERATIONS), *_large_reads(large)]
    else:
        names, large = _there(folder)
        timed = [*_operations(names, ("stat", "open")), *_large_reads(large)]
    places = [node_local(path) for _, path in named_directories() if problem_of(path) is None]
    return anonymous(machine.filesystem(folder).kind, timed, places)


def _there(folder: Path) -> tuple[list[Path], Path]:
    """Return a hundred files of a folder, and the largest of them."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in sorted(names))
    names = list(islice((path for path in found if path.is_file()), _FILES))
    largest = max(names, key=lambda path: path.stat().st_size, default=folder)
    least = _LEAST * _SIZES[0]
    if not names or largest.stat().st_size < least:
        raise UsageError(
            f"{folder} cannot be written to, and none of its first {_FILES} files has {bytes_text(least)}",
            expected="a folder where files may be made, or one with files to read",
            next_step="Name another folder",
        )
    return names, largest


def _operations(names: Sequence[Path], kinds: Iterable[str]) -> Iterator[Timed]:
    for kind in kinds:
        began = perf_counter()
        for path in names:
            _OPERATIONS[kind](path)
        yield METADATA, kind, 0, len(names) / (perf_counter() - began)


def _large_reads(path: Path) -> Iterator[Timed]:
    """Measure reads of each size that fits into the file often enough."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        whole = min(os.fstat(descriptor).st_size, _FILE_BYTES)
        for size, flight in product((size for size in _SIZES if size * _LEAST <= whole), _IN_FLIGHT):
            drop([path])
            yield READS, f"{size} bytes, {flight} in flight", size, _reads(descriptor, whole, size, flight)
    finally:
        os.close(descriptor)


def anonymous(kind: str, timed: Iterable[Timed], places: Sequence[NodeLocal]) -> list[Record]:
    """Return records that contain only numbers and known words, and no names of the user.

    Args:
        kind: Type of the file system.
        timed: The measurements.
        places: Node-local storage.
    """
    rows = [(what, name, kind, size, rate) for what, name, size, rate in timed]
    rows += [(LOCAL, "free", place.filesystem.kind, place.free_bytes, 1.0) for place in places]
    about = {"cpus": machine.usable_cpus(), "memory_bytes": int(_rounded(machine.memory_limit_bytes()))}
    return [
        Record(
            what,
            name,
            "files",
            (_rounded(rate),),
            samples=1,
            bytes=int(_rounded(size)),
            seconds=_rounded(1 / rate),
            filesystem=found if found in _KINDS else "other",
            cache="cold" if what == READS else "warm",
            touched="all",
            set_samples=1,
            set_bytes=int(_rounded(size)),
            machine=about,
        )
        for what, name, found, size, rate in rows
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


_OPERATIONS: dict[str, Callable[[Path], object]] = {
    "create": lambda path: path.touch(),
    "stat": os.stat,
    "open": lambda path: os.close(os.open(path, os.O_RDONLY)),
    "unlink": os.unlink,
}
"""In this order; the client may know names and attributes of files that it has just made."""


def _reads(descriptor: int, whole: int, size: int, flight: int) -> float:
    """Measure reads per second for at most a second. Each reads another block of the first `whole` bytes."""
    blocks = np.random.default_rng(size).permutation(whole // size).tolist()
    began, done = perf_counter(), 0
    with ThreadPoolExecutor(flight) as pool:
        while done < len(blocks) and perf_counter() < began + _SECONDS:
            batch = blocks[done : done + 4 * flight]
            for _ in pool.map(lambda block: os.pread(descriptor, size, block * size), batch):
                done += 1
    return done / (perf_counter() - began)
