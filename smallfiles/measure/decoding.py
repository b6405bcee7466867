"""Decoding and augmenting in memory, by ourselves and by others, on the same cores.

Reading is taken out of the question: the encoded pictures lie in the memory of the processes that work.
What remains is what a training job's CPUs do all day. Processor time is told beside the rate, since on a
shared machine it is what stays the same. Notebook 08 uses its records.

A method is a function from bytes to 224 x 224 x 3 uint8, a random resized crop, mirrored half of the time;
or to the whole picture where only decoding is measured. The filter is in the name: a picture scaled with
another filter is another picture, and rates are compared within one filter (`area` is antialiased too). A
module of others holds `METHODS`, which run in our processes, and `PEERS`, which bring their own threads.

The trap: pictures differ. Rates hold for files of this size and these dimensions, which records carry;
a method that decodes parts gains more on large pictures than on small ones.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal, TypeAlias

import numpy as np

from smallfiles import formats, sources
from smallfiles.errors import UsageError
from smallfiles.images import RandomResizedCrop, resize, turbo
from smallfiles.images.crops import random_resized
from smallfiles.images.decoders import DECODERS
from smallfiles.images.header import read_header
from smallfiles.images.resizing import Filter
from smallfiles.measure.bench import Bench, medians
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.workers import Place, WorkerPool, WorkFailed, last_words

Kind: TypeAlias = Literal["decode", "augment"]
One: TypeAlias = Callable[[bytes, np.random.Generator], Any]
Epoch: TypeAlias = Callable[[], int]
"""Runs through all pictures once; returns how many."""
Scale: TypeAlias = Callable[[Any, bool], Any]
"""Scales a part of a picture to the square, mirrored or not."""

SIZE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
MOST_PICTURES = 400
WORKERS = (1, 2)
_PACKAGES = (
    *("smallfiles", "numpy", "pillow", "simplejpeg", "torch", "torchvision", "turbojpeg"),
    *("opencv-python-headless", "nvidia-dali-cuda120", "ffcv", "spdl-io"),
)
_KINDS: dict[Kind, tuple[str, str]] = {
    "decode": ("decoding", "every picture decoded"),
    "augment": ("decoding and augmenting", "every crop scaled to 224 x 224"),
}


@dataclass(frozen=True)
class Method:
    """A way to measure, in our processes.

    Args:
        name: In records; says the filter.
        kind: What it does.
        make: Gives the function; called once in each process that works.
        modules: What it imports, to know whether it can run here.
    """

    name: str
    kind: Kind
    make: Callable[[], One]
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Peer:
    """A loader of others that decodes in threads of its own.

    Args:
        name: In records; says the filter.
        modules: What it imports.
        start: Gives its epoch for as long as the block lasts.
    """

    name: str
    modules: tuple[str, ...]
    start: Callable[[Sequence[bytes], int], AbstractContextManager[Epoch]]


def installed(candidate: Method | Peer) -> bool:
    """Whether it can run here."""
    if candidate.name == "turbojpeg" and turbo.library() is None:
        return False
    try:
        return all(find_spec(module) is not None for module in candidate.modules)
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False


def candidates(others: str) -> dict[str, Method | Peer]:
    """Methods and peers by name.

    Args:
        others: Name of the module with the tables of others; "" has ours only.
    """
    more = importlib.import_module(others) if others else None
    return dict(METHODS) if more is None else {**more.METHODS, **METHODS, **more.PEERS}


def plain(decoder: str, scale: Callable[[], Scale]) -> Callable[[], One]:
    """A method of a decoder and something that scales: decode all, cut out, scale."""

    def make() -> One:
        decode = DECODERS[decoder]
        scaled = scale()

        def one(data: bytes, rng: np.random.Generator) -> Any:
            pixels = decode(data)
            box = random_resized(pixels.shape[1], pixels.shape[0], rng, SCALE, RATIO)
            part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
            return scaled(part, rng.random() < 0.5)

        return one

    return make


def _by_us(filter: Filter) -> Callable[[], Scale]:
    def scaled(part: Any, flip: bool) -> Any:
        out = np.empty((SIZE, SIZE, 3), np.uint8)
        resize(part, out, filter, flip=flip)
        return out

    return lambda: scaled


def _only(decoder: str) -> Method:
    decode = DECODERS[decoder]
    modules = {"opencv": ("cv2",), "torchvision": ("torchvision",)}.get(decoder, ())
    return Method(decoder, "decode", lambda: lambda data, rng: decode(data), modules)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("ours without TurboJPEG 3, antialias", "augment", plain("simplejpeg", _by_us("antialias"))),
        Method("ours, antialias", "augment", lambda: RandomResizedCrop(SIZE, filter="antialias")),
        Method("ours, linear", "augment", lambda: RandomResizedCrop(SIZE, filter="linear")),
        *(_only(name) for name in ("pillow", "torchvision", "opencv", "simplejpeg", "turbojpeg")),
    )
}
"""By the name that the records carry."""


def bench_decoding(source: Path, config: BenchConfig | None = None, *, others: str = "") -> Result:
    """Measure decoding and augmenting of a data set's pictures, with one and two at work.

    Args:
        source: A packed file, or a data set.
        config: Repeats, seed, number of pictures (at most `MOST_PICTURES`).
        others: The module with the methods of others.

    Returns:
        One record for each method, kind and number of workers, processor time in `extra`.

    Raises:
        UsageError: There are no JPEGs.
    """
    config = config or BenchConfig()
    bench, known = Bench(config, _PACKAGES), candidates(others)
    files = jpegs(source, min(config.count, MOST_PICTURES))
    bench.notes += _missing(known)
    here = [each for each in known.values() if installed(each)]
    broken: dict[str, str] = {}
    preload = ("smallfiles.measure.decoding", "torchvision")
    for count in WORKERS:
        with WorkerPool("forkserver", preload, partial(_hold, files)) as pool:
            for kind, (what, touched) in _KINDS.items():
                cases = [
                    Case(
                        each.name,
                        partial(_run, pool, each, files, count, (config.seed, others), broken),
                        format="jpeg",
                        workers=count,
                    )
                    for each in here
                    if kind == (each.kind if isinstance(each, Method) else "augment")
                ]
                whole = (len(files), sum(map(len, files)))
                told = f"{what}, {count} at work"
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
    told: tuple[int, str],
    broken: dict[str, str],
) -> Outcome:
    """All pictures once: by so many processes, or by as many threads of one process."""
    if each.name in broken:  # what failed once is not waited for again
        raise WorkFailed(broken[each.name])
    if isinstance(each, Peer):
        jobs: dict[object, Any] = {
            each.name: partial(_epoch, name=each.name, others=told[1], threads=workers)
        }
    else:
        parts = [slice(number, None, workers) for number in range(workers)]
        jobs = {part.start: partial(_decoded, name=each.name, told=told, part=part) for part in parts}
    pool.start(*jobs)
    began = perf_counter()
    try:
        cpu_s = sum(pool.run(jobs, len(files)))
    except WorkFailed as error:
        broken[each.name] = str(error)
        raise
    seconds = perf_counter() - began
    return Outcome(len(files), sum(map(len, files)), seconds, {"cpu_s": cpu_s})


def _hold(files: list[bytes], place: Place) -> None:
    """In a worker: keep the pictures, and use one thread."""
    import torch

    torch.set_num_threads(1)
    place.kept["files"] = files


def _decoded(place: Place, name: str, told: tuple[int, str], part: slice) -> float:
    """In a worker: processor time of a method for its part of the pictures."""
    seed, others = told
    method: Any = candidates(others)[name]
    one: One = place.keep(name, method.make)
    rng = place.keep("rng", lambda: np.random.default_rng((seed, part.start)))
    began = process_time()
    for data in place.kept["files"][part]:
        one(data, rng)
    return process_time() - began


def _epoch(place: Place, name: str, others: str, threads: int) -> float:
    """In a worker: processor time of an epoch of a loader of others."""
    peer: Any = candidates(others)[name]
    files = place.kept["files"]
    epoch: Epoch = place.keep(name, lambda: place.stack.enter_context(peer.start(files, threads)))
    began, done = process_time(), epoch()
    if done != len(files):
        raise WorkFailed(f"{done:,} of {len(files):,} pictures came{last_words()}")
    return process_time() - began


def _facts(runs: Sequence[Outcome]) -> dict[str, Any]:
    library = turbo.library()
    return medians(runs) | {"turbojpeg": library.origin if library is not None else None}


def _missing(known: dict[str, Method | Peer]) -> list[str]:
    """What is to be said of what is not installed."""
    missing = [each.name for each in known.values() if not installed(each) and each.name != "turbojpeg"]
    notes = [f"not installed here, so not measured: {', '.join(missing)}"] if missing else []
    if turbo.library() is None:
        notes.append("no TurboJPEG 3 here, so whole pictures are decoded: python -m pip install pylibjxl")
    return notes
