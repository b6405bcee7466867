"""One image, read by both of our back ends, by another package, and through mounts, beside its folder.

    measure_ways(bench, image, folder, …)    both back ends, peers and mounts on one squashfs file

Every way opens and looks names up first, and then gives a function from a number to bytes, as a data set
has it; so what is timed is reading alone. The order is random, one for all, and all bytes are compared
outside of the clock. Notebook 06 measures with it.

The trap: a mount is quick in the second epoch, when the kernel has all names and pages in memory, and
that is what a warm measurement shows. A few hundred photographs fit into caches that a real data set does
not fit into.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TypeAlias

import numpy as np
import xxhash

from pysquashfs import SquashFS, SquashFSError, mount
from pysquashfs.libsquashfs import available
from pysquashfs.mounting import how_to_mount
from smallfiles.errors import UsageError
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome, attempt, long_enough
from smallfiles.measure.record import Failed

Read: TypeAlias = Callable[[int], bytes | memoryview]
Way: TypeAlias = Callable[[Path, Sequence[str]], AbstractContextManager[Read]]
PLAIN = "plain files"
LIBRARY = "pysquashfs, libsquashfs"
PACKAGES = ("smallfiles", "numpy", "PySquashfsImage", "zstandard")
TOUCHED = "every byte copied into memory"
RANDOM = "random reads"


@contextmanager
def plain_files(folder: Path, names: Sequence[str]) -> Iterator[Read]:
    """Open, read and close a file, as the loaders of image folders do."""
    paths = [f"{folder}/{name}" for name in names]

    def read(number: int) -> bytes:
        with open(paths[number], "rb") as file:  # noqa: PTH123 - as ImageFolder does; Path takes twice the time
            return file.read()

    yield read


@contextmanager
def by_library(image: Path, names: Sequence[str], backend: str = "python") -> Iterator[Read]:
    """`pysquashfs`, a copy of each file."""
    with SquashFS(image, backend=backend) as opened:
        rows = [opened.row(name) for name in names]
        yield lambda number: opened.read_at(rows[number])


@contextmanager
def by_views(image: Path, names: Sequence[str]) -> Iterator[Read]:
    """`pysquashfs` without a copy of its own: into one buffer, as a loader copies into its batch."""
    with SquashFS(image) as opened:
        rows = [opened.row(name) for name in names]
        room = memoryview(bytearray(max((opened.stat(name).size for name in names), default=0)))

        def read(number: int) -> memoryview:
            found = opened.view_at(rows[number])
            room[: len(found)] = found
            return room[: len(found)]

        yield read


@contextmanager
def by_peer(image: Path, names: Sequence[str]) -> Iterator[Read]:
    """The package PySquashfsImage."""
    from PySquashfsImage import SquashFsImage

    with io.FileIO(image) as file, SquashFsImage(file, closefd=False) as opened:
        found = {entry.path.lstrip("/"): entry.inode for entry in opened if entry.is_file}
        inodes = [found[name] for name in names]
        yield lambda number: opened.read_file(inodes[number])


@contextmanager
def by_mount(image: Path, names: Sequence[str], way: str) -> Iterator[Read]:
    """A mount, and then plain files."""
    with mount(image, way=way) as folder, plain_files(folder, names) as read:
        yield read


WAYS: dict[str, Way] = {
    "pysquashfs": by_library,
    LIBRARY: partial(by_library, backend="libsquashfs"),
    "pysquashfs, views": by_views,
    "PySquashfsImage": by_peer,
    "kernel mount": partial(by_mount, way="kernel"),
    "squashfuse_ll": partial(by_mount, way="squashfuse_ll"),
    "squashfuse": partial(by_mount, way="squashfuse"),
}
"""By the name that the records carry."""


def usable_ways(image: Path) -> tuple[list[str], list[str]]:
    """Which of `WAYS` can be gone on this machine, and a note on each that cannot.

    Args:
        image: Tried with mounts, which may be refused although all tools are there.
    """
    mounts = {way.name.replace("kernel", "kernel mount"): way for way in how_to_mount(image)}
    usable, notes = [], []
    for name in WAYS:
        reason = ""
        if name == "PySquashfsImage" and find_spec(name) is None:
            reason = "the package is not installed (extra: compare)"
        elif name == LIBRARY:
            reason = "" if available() else "the library is not installed (package libsquashfs1)"
        elif name in mounts:
            reason = "" if mounts[name].available else mounts[name].reason
            reason = reason or _refusal(image, name)
        if reason:
            notes.append(f"{name} was not measured: {reason}")
        else:
            usable.append(name)
    return usable, notes


def _refusal(image: Path, name: str) -> str:
    try:
        with WAYS[name](image, ()):
            return ""
    except SquashFSError as error:
        return error.got


def measure_ways(
    bench: Bench,
    image: Path,
    folder: Path | None,
    config: BenchConfig,
    ways: Sequence[str],
    what: str = RANDOM,
) -> None:
    """Random whole-file reads of one image, warm; a way that fails is left out and said.

    Args:
        bench: Gets the records, and what fails.
        image: A squashfs image.
        folder: The tree it was made of, to be measured beside; None leaves that out.
        config: Files at most, and the seed.
        ways: Some of `WAYS`.
        what: The operation, for the records.

    Raises:
        UsageError: A way gave other bytes than the first.
    """
    with SquashFS(image) as opened:
        names = [name for name in opened.paths if not name.startswith(".")]
    order = np.random.default_rng(config.seed).permutation(len(names))[: config.count]
    picked = [names[index] for index in order]
    reasons: dict[str, str] = {}
    with ExitStack() as stack:
        reads = {} if folder is None else {PLAIN: stack.enter_context(plain_files(folder, picked))}
        for way in ways:
            read = attempt(way, partial(stack.enter_context, WAYS[way](image, picked)), reasons)
            reads |= {} if read is None else {way: read}
        same = _same_bytes(reads, len(picked), reasons)
        measure_reads(bench, {way: reads[way] for way in same}, len(picked), image, what)
    bench.failed += [Failed(what, name, why) for name, why in reasons.items()]


def measure_reads(
    bench: Bench, reads: Mapping[str, Read], count: int, place: Path, what: str = RANDOM
) -> None:
    """Read the same files in several ways, interleaved.

    Args:
        bench: Gets the records.
        reads: By name of the way; open.
        count: Of the files.
        place: Something on the file system that is measured.
        what: The operation, for the records.
    """
    sizes = sum(len(read(number)) for read in [*reads.values()][:1] for number in range(count))
    cases = [
        Case(
            way,
            with_processor_time(long_enough(partial(_pass, read, count), 0.15), count),
            format="files" if way == PLAIN else "squashfs",
        )
        for way, read in reads.items()
    ]
    bench.measure(what, cases, place=place, whole=(count, sizes), touched=TOUCHED)


def with_processor_time(run: Callable[[], Outcome], samples: int) -> Callable[[], Outcome]:
    """A run that adds the processor time of `samples` to its outcome.

    It counts this process and the children that ended, and also says something on a busy machine. It does not
    count the server of a FUSE mount.
    """

    def measured() -> Outcome:
        began = _processor_s()
        outcome = run()
        spent = (_processor_s() - began) * samples / max(outcome.samples, 1)
        return replace(outcome, extra={**outcome.extra, "cpu_s": spent})

    return measured


def _processor_s() -> float:
    spent = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def _pass(read: Read, count: int) -> Outcome:
    began = perf_counter()
    total = sum(len(read(number)) for number in range(count))
    return Outcome(count, total, perf_counter() - began)


def _same_bytes(reads: Mapping[str, Read], count: int, failed: dict[str, str]) -> list[str]:
    """Names of the ways that give bytes; ways that give other bytes are refused."""

    def hashes(read: Read) -> list[int]:
        return [xxhash.xxh3_64_intdigest(read(number)) for number in range(count)]

    tried = {way: attempt(way, partial(hashes, read), failed) for way, read in reads.items()}
    found = {way: sums for way, sums in tried.items() if sums is not None}
    first = next(iter(found), "")
    for way, sums in found.items():
        if sums != found[first]:
            raise UsageError(
                f"{way} gave other bytes than {first}",
                expected="the same files in all ways",
                next_step="Make the image again from this folder",
            )
    return list(found)
