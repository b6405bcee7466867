"""One image, read by our library, by another library, and through mounts, beside the folder it was made of.

Every way opens and looks names up first, and then gives a function from a number to bytes, as a data set
has it; so what is timed is reading alone. The order is random, one for all, and all bytes are compared
outside of the clock.

The trap: a mount is quick in the second epoch, when the kernel has all names and pages in memory, and
that is what a warm measurement shows. Notebook 06 says so.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import xxhash

from pysquashfs import SquashFS, SquashFSError, libsquashfs, mount
from pysquashfs.backend import Name as Backend
from pysquashfs.mounting import how_to_mount
from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.measure.config import BenchConfig, Cache
from smallfiles.measure.protocol import Case, Outcome, attempt, interleaved
from smallfiles.measure.record import Failed, Record, versions_of

Read: TypeAlias = Callable[[int], bytes | memoryview]
Way: TypeAlias = Callable[[Path, Sequence[str]], AbstractContextManager[Read]]
PLAIN = "plain files"
TOUCHED = "every byte copied into memory"
_PACKAGES = ("smallfiles", "numpy", "PySquashfsImage", "zstandard")
_RUN_S = 0.15
_MOST_PASSES = 20
_RANDOM = "random reads"


@contextmanager
def plain_files(folder: Path, names: Sequence[str]) -> Iterator[Read]:
    """Open, read and close a file, as the loaders of image folders do."""
    paths = [f"{folder}/{name}" for name in names]

    def read(number: int) -> bytes:
        with open(paths[number], "rb") as file:  # noqa: PTH123 - as ImageFolder does; Path takes twice the time
            return file.read()

    yield read


@contextmanager
def by_library(image: Path, names: Sequence[str], backend: Backend) -> Iterator[Read]:
    """`pysquashfs`, with one of its back ends."""
    with SquashFS(image, backend, cache=False) as opened:
        rows = [opened.row(name) for name in names]
        yield lambda number: opened.read_at(rows[number])


@contextmanager
def by_views(image: Path, names: Sequence[str]) -> Iterator[Read]:
    """`pysquashfs` without a copy of its own: into one buffer, as a loader copies into its batch."""
    with SquashFS(image, "pure", cache=False) as opened:
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
    "pysquashfs, pure": partial(by_library, backend="pure"),
    "pysquashfs, views": by_views,
    "pysquashfs, libsquashfs": partial(by_library, backend="libsquashfs"),
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
        if name == "pysquashfs, libsquashfs" and libsquashfs.available() is None:
            reason = "libsquashfs is not installed"
        elif name == "PySquashfsImage" and find_spec(name) is None:
            reason = "the package is not installed (extra: compare)"
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


def bench_ways(
    image: Path,
    folder: Path | None,
    config: BenchConfig | None = None,
    ways: Sequence[str] | None = None,
    failed: list[Failed] | None = None,
) -> list[Record]:
    """Random whole-file reads of one image, warm, in every way at hand.

    Args:
        image: A squashfs image.
        folder: The tree it was made of, to be measured beside; None leaves that out.
        config: Repeats, files at most, seed.
        ways: Some of `WAYS`; None takes all that can be gone here.
        failed: Gets the ways that fail; None lets a failure end the measurement.

    Returns:
        One record a way; plain files first.

    Raises:
        UsageError: A way gave other bytes than the first.
    """
    config = config or BenchConfig()
    chosen = usable_ways(image)[0] if ways is None else list(ways)
    with SquashFS(image, cache=False) as opened:
        names = [name for name in opened.paths if not name.startswith(".")]
    order = np.random.default_rng(config.seed).permutation(len(names))[: config.count]
    picked = [names[index] for index in order]
    with ExitStack() as stack:
        reads = {} if folder is None else {PLAIN: stack.enter_context(plain_files(folder, picked))}
        reasons: dict[str, str] | None = None if failed is None else {}
        for way in chosen:
            read = attempt(way, partial(stack.enter_context, WAYS[way](image, picked)), reasons)
            reads |= {} if read is None else {way: read}
        for way in _same_bytes(reads, len(picked), reasons):
            del reads[way]
        records = measured(reads, len(picked), config, what=_RANDOM, place=image, failed=reasons)
    if failed is not None and reasons:
        failed += [Failed(_RANDOM, name, why) for name, why in reasons.items()]
    return records


def measured(
    reads: dict[str, Read],
    count: int,
    config: BenchConfig,
    *,
    what: str,
    place: Path,
    failed: dict[str, str] | None = None,
) -> list[Record]:
    """Records of the same files read in several ways, interleaved.

    Args:
        reads: By name of the way; open.
        count: Of them.
        config: Repeats and seed.
        what: The operation.
        place: Something on the file system that is measured.
        failed: Gets the reason of ways that fail; None lets a failure end the measurement.
    """
    passes = {way: _passes(read, count) for way, read in reads.items()}
    cases = [
        Case(way, partial(_pass, read, count, passes[way]), warm_up=False) for way, read in reads.items()
    ]
    outcomes = interleaved(cases, config.repeats, config.seed, what, failed)
    return [
        record_of(what, way, found, place=place, samples=count, seed=config.seed)
        for way, found in outcomes.items()
    ]


def record_of(
    what: str,
    name: str,
    outcomes: Sequence[Outcome],
    *,
    place: Path,
    samples: int,
    seed: int,
    cache: Cache = "warm",
    touched: str = TOUCHED,
    extra: dict[str, Any] | None = None,
) -> Record:
    """A record with the conditions that all of these experiments share."""
    seconds = sorted(outcome.seconds for outcome in outcomes)
    return Record(
        what=what,
        name=name,
        format="files" if name == PLAIN else "squashfs",
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=seconds[len(seconds) // 2],
        filesystem=machine.filesystem(place).kind,
        cache=cache,
        touched=touched,
        set_samples=samples,
        set_bytes=outcomes[0].bytes * samples // max(1, outcomes[0].samples),
        seed=seed,
        extra=extra or {},
        machine=machine.describe(),
        versions=versions_of(_PACKAGES),
    )


def _passes(read: Read, count: int) -> int:
    """Read once, which warms, and learn how many passes make a run long enough to time."""
    seconds = _pass(read, count, 1).seconds
    return min(_MOST_PASSES, max(1, round(_RUN_S / max(seconds, 1e-6))))


def _pass(read: Read, count: int, passes: int) -> Outcome:
    total, began = 0, perf_counter()
    for _ in range(passes):
        for number in range(count):
            total += len(read(number))
    return Outcome(passes * count, total, perf_counter() - began)


def _same_bytes(reads: dict[str, Read], count: int, failed: dict[str, str] | None = None) -> list[str]:
    """Refuse ways that give other bytes; names of those that fail to give any."""
    sums = {
        way: attempt(way, lambda read=read: [xxhash.xxh3_64_intdigest(read(n)) for n in range(count)], failed)  # type: ignore[misc]
        for way, read in reads.items()
    }
    found = {way: told for way, told in sums.items() if told is not None}
    first = next(iter(found), "")
    for way, told in found.items():
        if told != found[first]:
            raise UsageError(
                f"{way} gave other bytes than {first}",
                expected="the same files in all ways",
                next_step="Make the image again from this folder",
            )
    return [way for way in sums if way not in found]
