"""Decoding and augmenting in memory, by ourselves and by others, on the same cores.

Reading is taken out of the question: the encoded pictures lie in the memory of the processes that work.
What remains is what a training job's CPUs do all day. Processor time is told beside the rate, since on a
shared machine it is what stays the same. Notebook 08 uses its records.

The trap: pictures differ. Rates hold for files of this size and these dimensions, which records carry;
a method that decodes parts gains more on large pictures than on small ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from smallfiles import formats, machine, sources
from smallfiles.errors import UsageError
from smallfiles.images import turbo
from smallfiles.images.header import read_header
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.decoding_methods import Kind, Method, Peer, candidates
from smallfiles.measure.decoding_pool import WorkerPool, worker_pool
from smallfiles.measure.protocol import Case, Outcome, attempt, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of

MOST_PICTURES = 400
WORKERS = (1, 2)
_PACKAGES = (
    *("smallfiles", "numpy", "pillow", "simplejpeg", "torch", "torchvision", "turbojpeg"),
    *("opencv-python-headless", "nvidia-dali-cuda120", "ffcv", "spdl-io"),
)
_WHAT = {"decode": "decoding", "augment": "decoding and augmenting"}


def bench_decoding(
    source: Path,
    config: BenchConfig | None = None,
    *,
    workers: Sequence[int] = WORKERS,
    kinds: Sequence[Kind] = ("decode", "augment"),
    only: Sequence[str] = (),
    others: str = "",
) -> Result:
    """Measure decoding and augmenting of a data set's pictures.

    Args:
        source: A packed file, or a data set.
        config: Repeats, seed, number of pictures (at most `MOST_PICTURES`).
        workers: Numbers of processes (threads, for the loaders of others) to measure with.
        kinds: Decoding alone, decoding with a random resized crop, or both.
        only: Names of methods and peers; none given means all that are installed.
        others: The module with the methods of others.

    Returns:
        One record for each method, kind and number of workers, processor time in `extra`.

    Raises:
        UsageError: There are no JPEGs, or no such method.
    """
    config = config or BenchConfig()
    files = jpegs(source, min(config.count, MOST_PICTURES))
    records: list[Record] = []
    failed: list[Failed] = []
    for count in workers:
        with worker_pool(files, count, config.seed, others) as hands:
            for kind in kinds:
                records += _measured(hands, names_of(kind, only, others), kind, count, config, failed)
    return Result(tuple(records), tuple(_missing(only, others)), tuple(failed))


def names_of(kind: Kind, only: Sequence[str] = (), others: str = "") -> list[str]:
    """Names of the methods of a kind that can run here.

    Raises:
        UsageError: One of `only` does not exist or is not installed.
    """
    methods, peers = candidates(others)
    found = [method.name for method in methods.values() if method.kind == kind and method.installed()]
    if turbo.library() is None:
        found = [name for name in found if name != "turbojpeg"]
    if kind == "augment":
        found += [peer.name for peer in peers.values() if peer.installed()]
    unknown = [name for name in only if name not in methods and name not in peers]
    if unknown:
        raise UsageError(
            f"there is no method {unknown[0]!r}",
            expected=f"one of {', '.join([*methods, *peers])}",
            next_step="Leave it out to measure all that are installed",
        )
    return [name for name in found if not only or name in only]


def jpegs(source: Path, most: int) -> list[bytes]:
    """Up to `most` JPEGs of a packed file or a data set, in memory.

    Raises:
        UsageError: There are none.
    """
    found = [data for data in _samples(source, 2 * most) if read_header(data) is not None][:most]
    if not found:
        raise UsageError(
            f"{source} holds no JPEG", expected="JPEGs to decode", next_step="Give another data set"
        )
    return found


def _samples(source: Path, most: int) -> list[bytes]:
    try:
        formats.name_of(source)
    except UsageError:  # no packed file by its name
        data_set = sources.load(source)
        paths = data_set.manifest.paths[:most].to_pylist()
        return [_read(data_set, path) for path in paths]
    with closing(formats.open(source)) as reader:
        return [bytes(reader.read(index)) for index in range(min(len(reader), most))]


def _read(data_set: sources.Source, path: str) -> bytes:
    buffer = bytearray(data_set.store.size(path))
    return bytes(buffer[: data_set.store.read_into(path, memoryview(buffer))])


def _measured(
    hands: WorkerPool,
    names: Sequence[str],
    kind: Kind,
    workers: int,
    config: BenchConfig,
    failed: list[Failed],
) -> list[Record]:
    what, reasons = f"{_WHAT[kind]}, {workers} at work", {each.name: each.why for each in failed}
    known = set(reasons)  # what failed once is not waited for again
    runs = {name: functools.partial(hands.run, name) for name in names}
    warm = [name for name in names if name not in known and attempt(name, runs[name], reasons) is not None]
    cases = [Case(name, runs[name], warm_up=False) for name in warm]
    outcomes = interleaved(cases, config.repeats, config.seed, what, reasons) if cases else {}
    failed += [Failed(what, name, reasons[name]) for name in names if name in reasons]
    return [_record(hands, name, found, kind, workers, config.seed) for name, found in outcomes.items()]


def _record(
    hands: WorkerPool, name: str, outcomes: list[Outcome], kind: Kind, workers: int, seed: int
) -> Record:
    middle = len(outcomes) // 2
    library = turbo.library()
    return Record(
        what=f"{_WHAT[kind]}, {workers} at work",
        name=name,
        format="jpeg",
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=hands.samples,
        bytes=hands.bytes,
        seconds=sorted(outcome.seconds for outcome in outcomes)[middle],
        filesystem="memory",
        cache="warm",
        touched="every picture decoded" if kind == "decode" else "every crop scaled to 224 x 224",
        set_samples=hands.samples,
        set_bytes=hands.bytes,
        workers=workers,
        seed=seed,
        extra={
            "cpu_s": sorted(outcome.extra["cpu_s"] for outcome in outcomes)[middle],
            "turbojpeg": library.origin if library is not None else None,
        },
        machine=machine.describe(),
        versions=versions_of(_PACKAGES),
    )


def _missing(only: Sequence[str], others: str) -> list[str]:
    """What is to be said of what is not installed."""
    if only:
        return []
    methods, peers = candidates(others)
    every: list[Method | Peer] = [*methods.values(), *peers.values()]
    missing = [each.name for each in every if not each.installed()]
    notes = [f"not installed here, so not measured: {', '.join(missing)}"] if missing else []
    if turbo.library() is None:
        notes.append("no TurboJPEG 3 here, so whole pictures are decoded: python -m pip install pylibjxl")
    return notes
