"""Decoding and augmenting in memory, by ourselves and by others, on the same cores.

Reading is taken out of the question: the encoded pictures lie in the memory of the processes that work.
What remains is what a training job's CPUs do all day. Processor time is told beside the rate, since on a
shared machine it is what stays the same. Notebook 08 uses its records.

Rates are compared within one filter. `pipelines` has what runs in our processes, `batch_decoders` what brings
threads of its own.

The trap: pictures differ. Rates hold for files of this size and these dimensions, which records carry;
a method that decodes parts gains more on large pictures than on small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks import missing
from benchmarks.batch_decoders import PEERS, Peer
from benchmarks.pipelines import METHODS, Kind, Method, One
from smallfiles import formats, sources
from smallfiles.errors import UsageError
from smallfiles.images import picture
from smallfiles.images.crops import read_header
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench, medians
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Failed, Result
from smallfiles.measure.workers import WorkerPool, WorkerState, WorkFailed, last_words

MOST_PICTURES = 400
WORKERS = (1, 2)
_PACKAGES = (
    *("smallfiles", "numpy", "pillow", "simplejpeg", "torch", "torchvision", "turbojpeg"),
    *("torchcodec", "opencv-python-headless", "nvidia-dali-cuda120", "ffcv", "spdl-io"),
)
_KINDS: dict[Kind, tuple[str, str]] = {
    "decode": ("decoding", "every picture decoded"),
    "augment": ("decoding and augmenting", "every crop scaled to 224 x 224"),
}


def installed(candidate: Method | Peer) -> bool:
    """Whether it can run here."""
    return not _absent(candidate)


def _absent(candidate: Method | Peer) -> str:
    """Why it cannot run here; empty if it can."""
    if candidate.name == "turbojpeg" and picture.library() is None:
        return "no TurboJPEG 3 here, so whole pictures are decoded: python -m pip install pylibjxl"
    return missing(candidate.modules)


def bench_decoding(
    source: Path, config: BenchConfig | None = None, kinds: Sequence[Kind] = ("decode", "augment")
) -> Result:
    """Measure decoding and augmenting of a data set's pictures, with one and two at work.

    Args:
        source: A packed file, or a data set.
        config: Repeats, seed, number of pictures (at most `MOST_PICTURES`).
        kinds: What to measure.

    Returns:
        One record for each method, kind and number of workers, processor time in `extra`.

    Raises:
        UsageError: There are no JPEGs.
    """
    config = config or BenchConfig()
    bench = Bench(config, _PACKAGES)
    files = jpegs(source, min(config.count, MOST_PICTURES))
    known: list[Method | Peer] = [*METHODS.values(), *PEERS.values()]
    broken: dict[str, str] = {}
    preload = ("benchmarks.decoding", "torchvision")
    for count in WORKERS:
        with WorkerPool("forkserver", preload, partial(_hold, files)) as pool:
            for kind in kinds:
                what, touched = _KINDS[kind]
                told = f"{what}, {count} at work"
                fit = [each for each in known if each.kind == kind]
                bench.failed += [Failed(told, each.name, why) for each in fit if (why := _absent(each))]
                cases = [
                    Case(
                        each.name,
                        partial(_run, pool, each, files, count, config.seed, broken),
                        format="jpeg",
                        workers=count,
                    )
                    for each in fit
                    if installed(each)
                ]
                whole = (len(files), sum(map(len, files)))
                bench.measure(told, cases, place=None, whole=whole, touched=touched, extra=_facts)
    return bench.result()


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


def _run(
    pool: WorkerPool,
    each: Method | Peer,
    files: Sequence[bytes],
    workers: int,
    seed: int,
    broken: dict[str, str],
) -> Outcome:
    """All pictures once: by so many processes, or by as many threads of one process."""
    if each.name in broken:  # what failed once is not waited for again
        raise WorkFailed(broken[each.name])
    if isinstance(each, Peer):
        jobs: dict[object, Any] = {each.name: partial(_epoch, name=each.name, threads=workers)}
    else:
        parts = [slice(number, None, workers) for number in range(workers)]
        jobs = {part.start: partial(_decoded, name=each.name, seed=seed, part=part) for part in parts}
    pool.start(*jobs)
    began = perf_counter()
    try:
        cpu_s = sum(pool.run(jobs, len(files)))
    except WorkFailed as error:
        broken[each.name] = str(error)
        raise
    seconds = perf_counter() - began
    return Outcome(len(files), sum(map(len, files)), seconds, {"cpu_s": cpu_s})


def _hold(files: list[bytes], place: WorkerState) -> None:
    """In a worker: keep the pictures, and use one thread."""
    import torch

    torch.set_num_threads(1)
    place.kept["files"] = files


def _decoded(place: WorkerState, name: str, seed: int, part: slice) -> float:
    """In a worker: processor time of a method for its part of the pictures."""
    one: One = place.keep(name, METHODS[name].make)
    rng = place.keep("rng", lambda: np.random.default_rng((seed, part.start)))
    began = process_time()
    for data in place.kept["files"][part]:
        one(data, rng)
    return process_time() - began


def _epoch(place: WorkerState, name: str, threads: int) -> float:
    """In a worker: processor time of an epoch of a loader of others."""
    files = place.kept["files"]
    epoch = place.keep(name, lambda: place.stack.enter_context(PEERS[name].start(files, threads)))
    began, done = process_time(), epoch()
    if done != len(files):
        raise WorkFailed(f"{done:,} of {len(files):,} pictures came{last_words()}")
    return process_time() - began


def _facts(runs: Sequence[Outcome]) -> dict[str, Any]:
    library = picture.library()
    return medians(runs) | {"turbojpeg": library.origin if library is not None else None}
