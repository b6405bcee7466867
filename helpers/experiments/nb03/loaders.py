"""The Jülich course's way of reading Arrow against ours, on their layout and on ours.

Their file has one row a record batch, so that batch i is sample i; their loader opens an `OSFile` and
takes the row as a Python object. That is a good design for an opened file. Each sample is hashed, and
the sum of the hashes shows that all ways delivered the same bytes. Notebook 03 reads the table.

The trap: their loader copies each image twice, which is invisible beside decoding a JPEG; so the
table says how fast images are fetched, not how fast a network trains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import xxhash

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.formats import arrow
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.reading import TOUCHED
from smallfiles.measure.record import Record, versions_of
from smallfiles.measure.table import times
from smallfiles.samples import Buffer
from smallfiles.sources import Source

PLAIN = "plain files"
THEIRS = "their loader, their layout"
OURS_THEIRS = "our reader, their layout"
OURS = "our reader, our layout"
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "xxhash")


def bench_loaders(
    source: Source, theirs: Path, ours: Path, repeats: int = 7, seed: int = 0
) -> tuple[list[Record], str]:
    """Measure random reads of all samples, interleaved.

    Args:
        source: The files themselves.
        theirs: Packed with `layout="juelich"`.
        ours: Packed with the layout of this package, in the same order.
        repeats: Rounds.
        seed: Of the order of reads and of rounds.

    Returns:
        One record a way, and what had to be capped (empty if nothing).

    Raises:
        UsageError: They delivered different bytes.
    """
    count = len(source.manifest)
    allowed = allowance([theirs, ours], count, 4 * (repeats + 1))
    indices = np.random.default_rng(seed).permutation(count)[: allowed.samples].tolist()
    ways: dict[str, Callable[[Sequence[int]], Outcome]] = {
        PLAIN: functools.partial(_plain, source),
        THEIRS: functools.partial(_their_loader, theirs),
        OURS_THEIRS: functools.partial(_our_reader, theirs),
        OURS: functools.partial(_our_reader, ours),
    }
    cases = [Case(name, functools.partial(way, indices)) for name, way in ways.items()]
    outcomes = interleaved(cases, repeats, seed, "loaders")
    if len({outcome.extra["sum"] for found in outcomes.values() for outcome in found}) > 1:
        raise UsageError(
            f"{theirs} and {ours} delivered different bytes",
            expected="files packed from one source in one order",
            next_step="Pack both again",
        )
    size = sum(arrow.open(ours).size(index) for index in range(count))
    return [
        _record(name, found, theirs, (count, size), seed) for name, found in outcomes.items()
    ], allowed.note


def finding(records: Sequence[Record]) -> str:
    """How our reader of our layout compares with their loader of theirs, as a sentence."""
    by_name = {record.name: record for record in records}
    factor = times(by_name[OURS], by_name[THEIRS])
    if factor.startswith("≈"):
        return "No clear difference between their loader on their file and our reader on ours."
    return f"Our reader on our file is {factor} times as fast as their loader on theirs."


def _plain(source: Source, indices: Sequence[int]) -> Outcome:
    buffer = memoryview(bytearray(1 << 24))
    paths = [source.manifest.path(index) for index in indices]

    def read(path: str) -> memoryview:
        return buffer[: source.store.read_into(path, buffer)]

    return _timed(read, paths)


def _their_loader(path: Path, indices: Sequence[int]) -> Outcome:
    with closing(pa.OSFile(str(path), "rb")) as file:
        reader = pa.ipc.open_file(file)
        return _timed(lambda index: reader.get_batch(index)["image_data"][0].as_py(), indices)


def _our_reader(path: Path, indices: Sequence[int]) -> Outcome:
    with arrow.open(path, access="mmap") as reader:
        for index in range(len(reader)):
            reader.span(index)  # looks up the place of each batch, once a file
        return _timed(reader.read, indices)


def _timed(read: Callable[..., Buffer], what: Sequence[object]) -> Outcome:
    total = read_bytes = 0
    began = perf_counter()
    for item in what:
        data = read(item)
        total += xxhash.xxh3_64_intdigest(data)
        read_bytes += len(data)
    seconds = perf_counter() - began
    return Outcome(len(what), read_bytes, seconds, {"sum": total & (2**64 - 1)})


def _record(
    name: str, outcomes: Sequence[Outcome], path: Path, whole_set: tuple[int, int], seed: int
) -> Record:
    seconds = sorted(outcome.seconds for outcome in outcomes)
    return Record(
        what="random reads",
        name=name,
        format="arrow",
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=seconds[len(seconds) // 2],
        filesystem=machine.filesystem(path).kind,
        cache="warm",
        touched=TOUCHED,
        set_samples=whole_set[0],
        set_bytes=whole_set[1],
        seed=seed,
        machine=machine.describe(),
        versions=versions_of(_PACKAGES),
    )
