"""Write and read rates of the HDF5 layouts, and the bytes that a random read costs.

Every round writes or reads each layout once; reads hash every byte and compare. How many
bytes a layout reads for each byte that it delivers is counted by a file object below the library.

The trap: rates of a warm cache hide bytes that are read in vain; on a parallel file system those bytes
come over the network, so both numbers belong together. Notebook 04 draws them.
"""

from __future__ import annotations

import io
import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from helpers.experiments.nb04.layouts import READ, WRITTEN, Layout, blob_slices, vlen_rows
from smallfiles import machine
from smallfiles.errors import DamagedFileError
from smallfiles.formats import hdf5
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Record, versions_of
from smallfiles.samples import Sample

SLOW_SAMPLES = 40
RUN_S = 0.15
COUNTED = 60


def bench_writes(samples: Sequence[Sample], folder: Path, repeats: int = 5, seed: int = 0) -> list[Record]:
    """Write every layout, interleaved; what each run wrote is removed again.

    Args:
        samples: In memory.
        folder: Where to write.
        repeats: Rounds.
        seed: Of the order within rounds.
    """
    cases = [
        Case(layout.name, partial(_write_once, layout, samples, folder), warm_up=False) for layout in WRITTEN
    ]
    found = interleaved(cases, repeats, seed, "writing")
    return [_record("writing", name, outcomes, samples, folder) for name, outcomes in found.items()]


def _write_once(layout: Layout, samples: Sequence[Sample], folder: Path) -> Outcome:
    chosen, out = samples[:SLOW_SAMPLES] if layout.slow else samples, folder / "write.h5"
    began = time.perf_counter()
    try:
        layout.write(chosen, out)
        seconds = time.perf_counter() - began
    finally:
        out.unlink(missing_ok=True)
    return Outcome(len(chosen), sum(len(sample.data) for sample in chosen), seconds)


def bench_random_reads(
    samples: Sequence[Sample], folder: Path, repeats: int = 5, seed: int = 0
) -> list[Record]:
    """Read samples at random from every layout, interleaved, and count what each read costs.

    A run goes through all samples, since a few would stay in the processor's own cache, and ends when
    it is long enough to be timed.

    Args:
        samples: In memory; written to each layout once, and removed.
        folder: Where to write.
        repeats: Rounds.
        seed: Of the order of reads and of rounds.

    Returns:
        One record a layout; `extra["read_per_delivered"]` tells the cost in bytes.

    Raises:
        DamagedFileError: A layout gave back other bytes than it was given.
    """
    order = np.random.default_rng(seed).permutation(len(samples)).tolist()
    wanted = [xxhash.xxh3_64_intdigest(sample.data) for sample in samples]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        files = {one.name: Path(name) / f"{number}.h5" for number, one in enumerate(READ)}
        for one in READ:
            one.write(samples, files[one.name])
        cases = [Case(one.name, partial(_read_once, one, files[one.name], order, wanted)) for one in READ]
        found = interleaved(cases, repeats, seed, "random reads")
        costs = {one.name: read_per_delivered(one, files[one.name], order[:COUNTED]) for one in READ}
    records = [_record("random reads", name, runs, samples, folder) for name, runs in found.items()]
    return [replace(record, extra={"read_per_delivered": costs[record.name]}) for record in records]


def _read_once(layout: Layout, path: Path, order: Sequence[int], wanted: Sequence[int]) -> Outcome:
    """Read in this order, around and around, until the run is long enough to be timed."""
    assert layout.open is not None
    hashed, reads, size = xxhash.xxh3_64_intdigest, 0, 0
    with layout.open(path) as read:
        began = time.perf_counter()
        for index in itertools.cycle(order):
            data = read(index)
            if hashed(data) != wanted[index]:
                raise _other_bytes(layout, path, index)
            reads, size = reads + 1, size + len(data)
            if not reads % 8 and time.perf_counter() - began > RUN_S:
                break
        seconds = time.perf_counter() - began
    return Outcome(reads, size, seconds)


def _other_bytes(layout: Layout, path: Path, index: int) -> DamagedFileError:
    return DamagedFileError(
        f"sample {index} of {path} came back with other bytes than were written ({layout.name})",
        expected="equal bytes from every layout",
        next_step="Check the file system, and run the cell again",
    )


class CountedFile(io.FileIO):
    """A file that counts what is read from it; HDF5 reads through it as through any file object."""

    bytes_read = 0

    def readinto(self, buffer: Any) -> int:
        """Read, and count what came."""
        got = super().readinto(buffer) or 0
        self.bytes_read += got
        return got


def read_per_delivered(layout: Layout, path: Path, order: Sequence[int]) -> float:
    """Bytes that are read from the file for each byte that is delivered; opening is not counted.

    Our reader fetches by position, so its share follows from the spans that it reads.

    Args:
        layout: Tells how to read.
        path: Written by the same layout.
        order: Samples to read.
    """
    if layout.open not in (vlen_rows, blob_slices):
        reader = hdf5.open(path)
        spans = [reader.span(index) for index in order]
        fetched = sum(span[2] - span[1] for span in spans if span is not None)
        return fetched / max(sum(reader.size(index) for index in order), 1)
    with CountedFile(path) as file, layout.open(file) as read:
        before = file.bytes_read
        delivered = sum(len(read(index)) for index in order)
        return (file.bytes_read - before) / max(delivered, 1)


def _record(what: str, name: str, outcomes: list[Outcome], samples: Sequence[Sample], folder: Path) -> Record:
    seconds = sorted(outcome.seconds for outcome in outcomes)
    return Record(
        what=what,
        name=name,
        format="hdf5",
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=seconds[len(seconds) // 2],
        filesystem=machine.filesystem(folder).kind,
        cache="warm",
        touched="every byte written" if what == "writing" else "every byte hashed (xxh3_64)",
        set_samples=len(samples),
        set_bytes=sum(len(sample.data) for sample in samples),
        machine=machine.describe(),
        versions=versions_of(("h5py", "numpy", "smallfiles")),
    )
