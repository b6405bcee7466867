"""Whole epochs through a loader: how fast, how long for the first batch, and where the time goes.

Every case is measured once per round, in changing order, in a separate process. Ours share one process; each
other loader (`benchmarks.loaders`) has its own, since the threads of their libraries conflict. The clock runs
in that process, around the epoch. `steps` has an epoch as the trainer sees it, and emulates accelerators.
`smallfiles.measure.table` shows the records, and recommends a mode and a number of workers.

Our batches are made by processes, by threads of the trainer, or ahead in a ring. Each run makes a loader,
takes the last few batches of one epoch, during which its workers start, and measures the next epoch. A ring
that is filled for two epochs has no work left when the clock stops, and no batch ready when it starts, since
batches are taken as fast as they are made.

The stages of a batch (read, decode, augment, collate, transfer) are measured separately: the work of one
worker is repeated in one thread, stage by stage, on the samples of an epoch. `transfer` is the time to copy a
batch into memory that the trainer sees too, as a worker process does; for threads it is zero.

The traps: loaders cannot be compared with different pictures, crops or numbers of cores. So all read the same
samples from the same storage, and a record contains its conditions. A loader that prefetches starts before
the clock does. So each pass begins with no batch ready except those that the loader made during the previous
pass. A measurement that includes the start measures mainly imports, so the time to the first batch is
reported separately. And reading a memory-mapped file takes no time until a byte is touched, which makes the
decoder look slow; so each page is touched while reading is timed. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from smallfiles import formats
from smallfiles.errors import UsageError
from smallfiles.images import RandomResizedCrop
from smallfiles.images.picture import open_picture
from smallfiles.loading.fields import FieldBatches, field_batches
from smallfiles.loading.makers import Indices, SampleRngs
from smallfiles.measure import BUSY, PREFETCH, LoadBenchConfig, Mode
from smallfiles.measure.bench import Bench, Target, one_set
from smallfiles.measure.loading.steps import Pass, emulated, taken
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.table import STAGES
from smallfiles.measure.workers import Job, WorkerPool, WorkerState, WorkFailed, peak_of
from smallfiles.samples import Buffer, Reader, Sample

if TYPE_CHECKING:
    from smallfiles.loading import Loader
    from smallfiles.ring import RingLoader

BATCHES = 4
_PAGE_BYTES = 4096
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "torch", "simplejpeg", "turbojpeg")


@dataclass(frozen=True)
class Candidate:
    """A loader to measure.

    Args:
        name: Its name in records.
        workers: Number of workers.
        job: Runs an epoch in a measuring process, and returns a `Pass`.
        samples: Samples per epoch.
        format: Format that it reads; its name if not given.
        key: Candidates of one key share a process.
        facts: Further facts for its record.
    """

    name: str
    workers: int
    job: Job
    samples: int
    format: str = ""
    key: object = "ours"
    facts: Mapping[str, Any] = field(default_factory=dict)


def bench_loading(
    paths: Sequence[Path], config: LoadBenchConfig | None = None, *, others: str = ""
) -> Result:
    """Measure whole epochs of packed files, and the stages of a batch.

    Args:
        paths: Packed files with labels; those with the same samples are compared with each other.
        config: How to measure.
        others: The module whose function `peers` provides other loaders.

    Returns:
        For each kind of pictures and number of workers one record per file and mode, and one per installed
        peer; for each file one with the stages of a batch.

    Raises:
        UsageError: Files have captions, or no candidate has the requested name.
        FormatError: A file cannot be read.
    """
    config = config or LoadBenchConfig()
    more = importlib.import_module(others) if others else None
    bench = Bench(config, (*_PACKAGES, *(more.PACKAGES if more is not None else ())))
    runs = (config.repeats + 1) * len(config.workers) * len(config.modes) * len(paths)
    allowed = bench.allowed(paths, config.count, runs)
    found = [_target(Path(path), allowed.samples) for path in paths]
    if config.step_s is not None:
        bench.notes.append(
            f"accelerators are emulated by sleeping {config.step_ms:g} ms per step of {config.batch} "
            "samples, as in MLPerf Storage (this is not one of its results); several of them share one "
            f"loader in turn, to measure how many are busy {BUSY:.0%} of the time"
        )
    kinds = dict.fromkeys(target.kind for target in found)
    groups = [one_set([target for target in found if target.kind == kind]) for kind in kinds]
    with WorkerPool() as pool:
        for group in groups:
            others_of: Any = (
                contextlib.nullcontext([]) if more is None else more.peers(group[0], config, bench)
            )
            with others_of as peers:
                _measure(bench, pool, group[0], [*_ours(group, config), *peers], config)
        _measure_stages(bench, pool, groups, config)
    if not bench.records and not bench.failed:
        raise UsageError(
            f"no candidate is called {', '.join(config.only)}",
            expected=f"one of {', '.join(sorted(_modes_of(groups[0][0], config)))}",
            next_step="Leave --only out to measure all",
        )
    return bench.result()


def _target(path: Path, most: int) -> Target:
    format = formats.name_of(path, None)
    with contextlib.closing(formats.open(path, format)) as reader:
        samples = min(len(reader), most)
        if not samples or "label" not in reader.fields:
            raise UsageError(
                f"{path} has {len(reader)} samples with the fields {', '.join(reader.fields)}",
                expected="pictures with labels",
                next_step="Pack a data set with labels, or measure reading with: bench read",
            )
        size = sum(reader.size(index) for index in range(samples))
        return Target(path, format, format, samples, size, _kind(reader))


def _kind(reader: Reader) -> str:
    scaled = (reader.info().get("provenance") or {}).get("resize")
    stored = "JPEG" if (scaled or {}).get("store", "jpeg") == "jpeg" else "raw"
    return f"{stored} scaled to {scaled.get('short_side')} ahead" if isinstance(scaled, dict) else stored


def _ours(group: Sequence[Target], config: LoadBenchConfig) -> list[Candidate]:
    return [
        Candidate(
            name, workers, partial(run_ours, target, mode, workers, config), target.samples, target.format
        )
        for workers in config.workers
        for target in group
        for mode in config.modes
        if (name := f"{target.name}, {mode}") in config.only or not config.only
    ]


def _measure(
    bench: Bench,
    pool: WorkerPool,
    target: Target,
    candidates: Sequence[Candidate],
    config: LoadBenchConfig,
) -> None:
    """Measure all candidates. Each round includes all numbers of workers, so that they can be compared."""
    broken, memory = dict[str, str](), dict[str, int]()
    cases = [
        Case(
            f"{each.name} ({what})",
            partial(_run, pool, each, target, broken, memory),
            warm_up=each.key != "ours",  # ours warms up in each run; other loaders stay open
            format=each.format,
            workers=each.workers,
            what=what,
        )
        for each in sorted(candidates, key=lambda each: config.workers.index(each.workers))
        for what in [epoch_of(target, config, each.workers)]
    ]
    conditions = {"crop_pixels": config.size, "filter": "antialias", "step_ms": config.step_ms}
    bench.measure(
        f"epoch of {target.kind}{config.trained}",
        cases,
        place=target.path,
        whole=(target.samples, target.bytes),
        touched="every batch handed to the trainer",
        batch=config.batch,
        extra=lambda runs: {**_waits(runs), **conditions, **runs[0].extra["facts"]},
    )


def epoch_of(target: Target, config: LoadBenchConfig, workers: int) -> str:
    """Return the name of the operation for records."""
    return f"epoch of {target.kind}{config.trained}, {workers} workers"


def _run(
    pool: WorkerPool, each: Candidate, target: Target, broken: dict[str, str], memory: dict[str, int]
) -> Outcome:
    if each.name in broken:  # not tried again with other numbers of workers
        raise WorkFailed(broken[each.name])
    try:
        done = _watched(pool, each, target.path.parent, memory)
    except WorkFailed as error:
        if each.key != "ours":
            broken[each.name] = str(error)
        raise
    facts = {**each.facts, "memory_bytes": memory[f"{each.name}/{each.workers}"]}
    return Outcome(done.samples, target.bytes, done.seconds, {"pass": done, "facts": facts})


def _watched(pool: WorkerPool, each: Candidate, data: Path, memory: dict[str, int]) -> Pass:
    """Run a candidate. In its first run, also watch its memory, in a process that no other has used."""
    name = f"{each.name}/{each.workers}"
    if name in memory:
        return pool.run({each.key: each.job}, each.samples)[0]  # type: ignore[no-any-return]
    with WorkerPool() if each.key == "ours" else contextlib.nullcontext(pool) as own:
        own.start(each.key)
        with peak_of(own.workers[each.key].process.pid, data) as peak:
            done: Pass = own.run({each.key: each.job}, each.samples)[0]
    memory[name] = peak[0]
    return done


def _waits(runs: Sequence[Outcome]) -> dict[str, float | None]:
    passes: list[Pass] = [run.extra["pass"] for run in runs]
    waits = np.concatenate([done.waits_s for done in passes])
    starts = [done.first_s for done in passes if done.first_s is not None]
    found = {
        "first_batch_s": float(np.median(starts)) if starts else None,
        "wait_p50_s": float(np.percentile(waits, 50)),
        "wait_p99_s": float(np.percentile(waits, 99)),
        "cpu_s": float(np.median([done.cpu_s for done in passes])),
    }
    if passes[0].busy is not None:
        found["utilisation"] = float(np.median([done.busy for done in passes]))
        found["accelerators"] = float(np.median([done.accelerators for done in passes]))
    return found


def _measure_stages(
    bench: Bench, pool: WorkerPool, groups: Sequence[Sequence[Target]], config: LoadBenchConfig
) -> None:
    """Make a record per file, with the seconds of each stage of a batch."""

    def run(target: Target) -> Outcome:
        (stages,) = pool.run({"ours": partial(stages_of, target, config)}, target.samples)
        made_s = sum(stages[f"{stage}_s"] for stage in ("read", "decode", "augment", "collate"))
        batch = min(config.batch, target.samples)
        return Outcome(batch, target.bytes * batch // target.samples, made_s, stages)

    for group in groups:
        wanted = [each for each in group if not config.only or _modes_of(each, config) & set(config.only)]
        bench.measure(
            STAGES,
            [
                Case(f"{each.name}, {each.kind}", partial(run, each), warm_up=False, format=each.format)
                for each in wanted
            ],
            place=group[0].path,
            whole=(group[0].samples, group[0].bytes),
            touched="every page read, every picture decoded",
            batch=config.batch,
        )


def _modes_of(target: Target, config: LoadBenchConfig) -> set[str]:
    """Return the names that a file has in the records of epochs."""
    return {f"{target.name}, {mode}" for mode in config.modes}


class First:
    """The first samples of a reader, as a reader.

    Args:
        reader: The reader of a packed file.
        count: Number of samples.
    """

    def __init__(self, reader: Reader, count: int) -> None:
        self._reader, self._count = reader, count

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # there is no reader yet during unpickling
            raise AttributeError(name)
        return getattr(self._reader, name)

    def __iter__(self) -> Iterator[Sample]:
        return islice(iter(self._reader), self._count)


def first_of(target: Target) -> Reader:
    """Open a reader of the samples that are measured."""
    reader = formats.open(target.path, target.format)
    return reader if len(reader) == target.samples else First(reader, target.samples)


def run_ours(
    target: Target, mode: Mode, workers: int, config: LoadBenchConfig, place: WorkerState | None = None
) -> Pass:
    """Run one epoch with a new loader after a warm-up.

    Args:
        target: The packed file.
        mode: Where batches are made.
        workers: Number of workers.
        config: How batches are made.
        place: State of the measuring worker; not used.
    """
    began = perf_counter()
    maker = _maker(target, config)
    if mode == "ring":
        with _ring(maker, target.samples, workers, config) as ring:
            return _epoch(ring, began, workers, config)
    loader = _loader(maker, mode, workers, config)
    try:
        return _epoch(loader, began, workers, config)
    finally:
        del loader
        gc.collect()  # the workers end with it


def _epoch(loader: Loader | RingLoader, began: float, workers: int, config: LoadBenchConfig) -> Pass:
    warming = iter(loader)
    next(warming)
    first_s = perf_counter() - began
    for _ in warming:
        pass
    done = replace(taken(_counts(loader)), first_s=first_s)
    ready = workers * PREFETCH + 1
    return emulated(done, lambda: _counts(loader), config.batch, config.step_s, ready)


def _counts(loader: Loader | RingLoader) -> Iterable[int]:
    return (len(batch["index"]) for batch in loader)


def _maker(target: Target, config: LoadBenchConfig) -> FieldBatches:
    transform = RandomResizedCrop(config.size)
    return field_batches(first_of(target), transform=transform, seed=config.seed)


def _loader(maker: FieldBatches, mode: Mode, workers: int, config: LoadBenchConfig) -> Loader:
    from smallfiles.loading import LoaderConfig, make_loader

    settings = LoaderConfig(
        batch=config.batch,
        workers=workers,
        mode="threads" if mode == "threads" else "processes",
        prefetch=PREFETCH,
        seed=config.seed,
        rank=0,
        world_size=1,
    )
    loader = make_loader(maker, settings)
    loader.schedule.start_at(0, _last_batches(loader.plan.length(), workers))
    return loader


def _ring(maker: FieldBatches, samples: int, workers: int, config: LoadBenchConfig) -> RingLoader:
    from smallfiles.loading import EpochPlan
    from smallfiles.ring import RingConfig, open_ring

    plan = EpochPlan(samples, config.batch, config.seed)
    epochs = 2 if config.step_s is None else None
    settings = RingConfig(slots=workers * PREFETCH + 1, producers=workers, epochs=epochs)
    loader = open_ring(maker, plan, settings)
    loader.schedule.start_at(0, _last_batches(plan.length(), workers))
    return loader


def _last_batches(length: int, workers: int) -> int:
    """Start of the epoch that warms up: one batch for each worker is left."""
    return max(0, length - workers)


def stages_of(target: Target, config: LoadBenchConfig, place: WorkerState | None = None) -> dict[str, float]:
    """Measure the seconds per batch of each stage.

    Args:
        target: The packed file.
        config: Batch size, transform and seed.
        place: State of the measuring worker; not used.

    Returns:
        `read_s`, encoded bytes, each page touched; `decode_s`, to the pixels of the crop; `augment_s`,
        scaling and flipping it; `collate_s`, the rest of making a batch; `transfer_s`, into memory that the
        trainer sees; `device_s`, from there to the GPU, 0 without one.
    """
    maker = _maker(target, config)
    order = np.random.default_rng(config.seed).permutation(target.samples)
    batches = [order[at : at + config.batch] for at in range(0, target.samples, config.batch)][:BATCHES]
    _stages(maker, batches[0][:2], config)  # the first call initialises libraries
    found = [_stages(maker, batch, config) for batch in batches]
    return {f"{name}_s": float(np.median([each[name] for each in found])) for name in found[0]}


def _stages(maker: FieldBatches, indices: Indices, config: LoadBenchConfig) -> dict[str, float]:
    """Measure the seconds of each stage of one batch."""
    import torch

    transform, rngs = RandomResizedCrop(config.size), SampleRngs(config.seed, 0)
    numbers, out = [int(index) for index in indices], np.empty(transform.shape, transform.dtype)
    clock = [perf_counter()]
    found = maker.reader.read_many(numbers)
    for data in found:
        np.frombuffer(data, np.uint8)[::_PAGE_BYTES].sum()
    clock.append(perf_counter())
    for index, data in zip(numbers, found, strict=True):
        _decode(transform, data, rngs.at(index))
    clock.append(perf_counter())
    for index, data in zip(numbers, found, strict=True):
        transform.into(data, rngs.at(index), out)
    clock.append(perf_counter())
    image = torch.from_numpy(maker.make(indices, 0).arrays["image"])
    clock.append(perf_counter())
    image.clone().share_memory_()  # type: ignore[no-untyped-call]
    clock.append(perf_counter())
    read_s, decode_s, whole_s, made_s, transfer_s = np.diff(clock).tolist()
    return {
        "read": read_s,
        "decode": decode_s,
        "augment": max(0.0, whole_s - decode_s),
        "collate": max(0.0, made_s - read_s - whole_s),
        "transfer": transfer_s,
        "device": _to_gpu_s(image) if torch.cuda.is_available() else 0.0,
    }


def _to_gpu_s(image: Any) -> float:
    import torch

    pinned = image.pin_memory()
    torch.cuda.synchronize()
    began = perf_counter()
    pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return perf_counter() - began


def _decode(transform: RandomResizedCrop, data: Buffer, rng: np.random.Generator) -> None:
    """Run the first half of the transform, with the same random numbers."""
    picture = open_picture(data)
    box = transform.box(picture.width, picture.height, rng)
    picture.part(box, transform.size, transform.size)
