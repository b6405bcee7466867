"""Measure a data set for a minute, and recommend how to store it: format, shards, staging, workers.

The measurements (size of a sample, time of an open, time to decode, memory of the node) are inputs of the
model of `smallfiles.scaling`; what one node cannot measure (the capacity of the servers) is an option or has
the default of the model, and the advice states which.

The trap: files that were read a moment ago are in the page cache, and then any format is fast. So pages are
dropped first, where that is possible; names of files stay cached in the client.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import numpy as np
import numpy.typing as npt

from smallfiles import machine, sources
from smallfiles.errors import SmallfilesError, UsageError, no_samples
from smallfiles.folders import SourceOptions
from smallfiles.machine.nodelocal import named_directories, node_local, problem_of
from smallfiles.manifest import Manifest
from smallfiles.measure.cache import can_be_cold, drop
from smallfiles.measure.counting import CALLS, requests
from smallfiles.measure.probe import METADATA, READS
from smallfiles.measure.record import Record
from smallfiles.options import to_argv
from smallfiles.progress import bytes_text, say_notes
from smallfiles.scaling import WAYS, Forecast, Storage, TrainingPlan, Work, simulate, ways_of
from smallfiles.storage import ReadingPool

_LOOKED_AT, _SECONDS, _IN_FLIGHT = 400, 15.0, 16
_DECODED = 60
_SMALLEST_SHARD, _LARGEST_SHARD = 64 << 20, 1 << 30
_SHARDS_PER_WORKER = 4
_USUAL = SourceOptions()
_FULL = 0.9  # share of a quota of files from which on it is nearly full
_SPARE = 0.25  # of the node's memory, for the training itself


@dataclass(frozen=True)
class Measured:
    """What one node sees of the data.

    Args:
        samples: In the data set.
        sample_bytes: Mean size.
        kind: Of the file system.
        shared: Whether other nodes see it.
        cold: Whether pages were dropped before.
        alone_s: Median time to open and read one file, one after the other.
        together_s: Files per second with several in flight, inverted.
        decode_s: Median processor time to decode and crop one; 0 if they are no images.
        cpus: That this job may use.
        local_bytes: Most that fits into one node-local place.
        stripes: Storage targets of a new file there, on Lustre; 0 if that is not known.
        cache_bytes: Memory that the training leaves to the page cache.
        files_share: Used share of the quota of files; 0 without one.
        requests: Counted for 1,000 samples, in words; empty if the storage has no counter.
    """

    samples: int
    sample_bytes: int
    kind: str
    shared: bool
    cold: bool
    alone_s: float
    together_s: float
    decode_s: float
    cpus: int
    local_bytes: int
    stripes: int = 0
    cache_bytes: int = 0
    files_share: float = 0.0
    requests: str = ""


@dataclass(frozen=True)
class Advice:
    """What to do, and why.

    Args:
        way: One of `scaling.WAYS`, or `broadcast`.
        hours: Of all epochs, for each way that is possible.
        forecasts: For each way.
        workers: Per GPU.
        commands: To be pasted.
        reasons: Sentences.
    """

    way: str
    hours: dict[str, float]
    forecasts: dict[str, Forecast]
    workers: int
    commands: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def saved(self) -> float:
        """Share of the time of plain files that the fastest way saves."""
        return 1 - min(self.hours.values()) / self.hours["files"]


def measure_folder(folder: Path, options: SourceOptions = _USUAL) -> Measured:
    """Measure a few hundred files of a data set, for some seconds, with little load on the servers.

    Args:
        folder: The data set, as for `pack`.
        options: How to read it.

    Raises:
        SourceError: It is not a data set.
    """
    source = sources.read(folder, options)
    say_notes(source.notes)
    paths, sizes, there = source.manifest.paths, source.manifest.sizes, _with_files(source.manifest)
    if not len(paths):
        raise no_samples(folder)
    rows = np.random.default_rng(0).permutation(there)[:_LOOKED_AT]
    names = [paths[int(row)].as_py() for row in rows]
    sample_bytes = [source.store.size(name) for name in names] if sizes is None else sizes[rows].tolist()
    buffer = memoryview(bytearray(max(sample_bytes) + 1))
    root = getattr(source.store, "root", None)
    cold = root is not None and can_be_cold(folder)
    if root is not None and cold:
        with contextlib.suppress(SmallfilesError, OSError):  # then it is warm, which the times tell
            drop(Path(root) / name for name in names)
    half = len(names) // 2 or 1
    alone, until = list[float](), perf_counter() + _SECONDS
    with requests(folder) as asked:
        while len(alone) < half and perf_counter() < until:
            began = perf_counter()
            source.store.read_into(names[len(alone)], buffer)
            alone.append(perf_counter() - began)
    began, rest = perf_counter(), names[half : half + len(alone)] or names[:1]
    with ReadingPool(_IN_FLIGHT) as pool:
        list(pool.map(lambda name: source.store.read_into(name, memoryview(bytearray(len(buffer)))), rest))
    together_s = (perf_counter() - began) / len(rest)
    found = machine.filesystem(folder)
    places = [node_local(path) for _, path in named_directories() if problem_of(path) is None]
    memory, limits = int(machine.memory_limit_bytes() * (1 - _SPARE)), machine.quota(folder)
    return Measured(
        samples=len(there),
        sample_bytes=int(np.mean(sample_bytes)),
        kind=found.kind,
        shared=found.shared,
        cold=cold,
        alone_s=median(alone),
        together_s=together_s,
        decode_s=_decode_s(source, names[:_DECODED], buffer),
        cpus=machine.usable_cpus(),
        local_bytes=max(
            (min(p.free_bytes, memory if p.in_memory else p.free_bytes) for p in places), default=0
        ),
        stripes=max(0, striping.count) if (striping := machine.striping(folder)) is not None else 0,
        cache_bytes=memory,
        files_share=limits.used_files / limits.limit_files if limits and limits.limit_files else 0.0,
        requests="" if asked.unit == CALLS else asked.text_per_1000(len(alone)),
    )


def _with_files(manifest: Manifest) -> npt.NDArray[np.intp]:
    """Return the rows to measure: those whose files exist. `pack` asks what to do about missing files."""
    if "bytes" in manifest.table.column_names:
        known = np.flatnonzero(manifest.table.column("bytes").is_valid().to_numpy())
        if len(known):
            return known
    return np.arange(len(manifest))


def _decode_s(source: sources.Source, names: Sequence[str], buffer: memoryview) -> float:
    from smallfiles.images import RandomResizedCrop

    transform, rng, times = RandomResizedCrop(224), np.random.default_rng(0), list[float]()
    for name in names:
        size = source.store.read_into(name, buffer)
        began = thread_time()  # a clock would count what else runs on this machine
        with contextlib.suppress(SmallfilesError):
            transform(bytes(buffer[:size]), rng)
            times.append(thread_time() - began)
    if not times:
        return 0.0  # no images: whatever decodes them is not ours
    if damaged := len(names) - len(times):
        say_notes([f"{damaged} of {len(names)} images cannot be decoded; pack --check decode finds all"])
    return median(times)


def advise(
    found: Measured,
    plan: TrainingPlan,
    data: str,
    options: SourceOptions = _USUAL,
    records: Sequence[Record] = (),
) -> Advice:
    """Recommend what to do with data that was measured.

    Args:
        found: The measurements from one node.
        plan: The planned training.
        data: The path of the data in commands.
        options: The options for reading the data.
        records: Measurements of the storage, as for `costs_of`.
    """
    wanted = plan.gpus * plan.batch / plan.step_s
    most = max(1, found.cpus // plan.gpus)
    workers = plan.workers or max(1, min(most, int(np.ceil(1.2 * wanted * found.decode_s / plan.gpus))))
    storage = _storage_of(found, plan, costs_of(records)[1] if records else Storage())
    wanted_stripes = machine.stripes_for(found.samples * found.sample_bytes)
    if found.stripes:
        storage = replace(storage, stripes=max(found.stripes, wanted_stripes))
    work = Work(
        samples=found.samples,
        sample_bytes=found.sample_bytes,
        batch=plan.batch,
        gpus=plan.gpus,
        workers=workers,
        step_s=plan.step_s,
        decode_s=found.decode_s,
    )
    everything = found.samples * found.sample_bytes
    possible = {
        name: way
        for name, way in ways_of(found.sample_bytes).items()
        if (everything <= found.local_bytes or not way.staged) and (plan.nodes > 1 or not way.broadcast)
    }
    forecasts = {
        name: simulate(work, storage, way, plan.nodes, plan.epochs) for name, way in possible.items()
    }
    hours = {
        name: (each.first_epoch_s + (plan.epochs - 1) * each.epoch_s) / 3600
        for name, each in forecasts.items()
    }
    unknown = tuple(_unknown(found, plan))
    order = _SIMPLEST if unknown else ("files", *_SIMPLEST)
    best = min(hours, key=lambda name: (round(hours[name] / min(hours.values()), 1), order.index(name)))
    shard_bytes = _shard_bytes(everything, plan.nodes * plan.gpus * workers) if best == "shards" else 0
    commands = _commands(best, data, options, shard_bytes, plan, workers)
    if 0 < found.stripes < wanted_stripes and best not in ("files", "shards"):
        commands = (f"lfs setstripe -c {wanted_stripes} .   # before the file is written", *commands)
    reasons = (*_reasons(found, plan), *unknown)
    return Advice(best, hours, forecasts, workers, commands, reasons)


def _storage_of(found: Measured, plan: TrainingPlan, storage: Storage) -> Storage:
    """Return a storage model whose operations need the measured time without load.

    The time of a file consists of two operations, a read request, and the transfer of its bytes. The server
    works on an operation for `metadata_threads / metadata_ops_s`, which limits its threads.
    """
    ops = plan.metadata_ops_s or storage.metadata_ops_s
    bytes_s = found.sample_bytes * (1 / storage.target_bytes_s + 1 / storage.node_bytes_s)
    each_s = min(60.0, max(1e-6, (found.alone_s - storage.request_s - bytes_s) / WAYS["files"].operations))
    threads = max(1, min(storage.metadata_threads, int(each_s * ops)))
    return replace(
        storage,
        metadata_ops_s=ops,
        metadata_threads=threads,
        latency_s=max(0.0, each_s - threads / ops),
        cache_bytes=float(found.cache_bytes),
    )


def costs_of(records: Sequence[Record]) -> tuple[Work, Storage]:
    """Derive parameters of the model from records of `bench read` and `bench load`.

    All other parameters keep their defaults.

    For random reads, the additional time of a plain file is that of an open and a close; the time of a packed
    file without its bytes is that of a request. Cold reads are used if there are any. These are the costs of
    a single node: no record has the capacity of the servers.

    Args:
        records: Of one data set.

    Raises:
        UsageError: They tell none of this.
    """
    work, storage = Work(), Storage()
    reads = [each for each in records if each.what == "random reads"]
    reads = [each for each in reads if each.cache == "cold"] or reads
    stages = [each for each in records if "decode_s" in each.extra]
    probed = {each.name: each for each in records if each.what in (METADATA, READS)}
    if probed:
        storage = _probed(probed)
    if not reads and not stages and not probed:
        raise UsageError(
            "the records hold no random reads and no stages of a batch",
            expected="records of smallfiles bench read, bench load or doctor --share",
            next_step="Measure them: smallfiles bench read x.files x.arrow --save read.json",
        )
    for each in [*reads, *stages][:1]:
        size = each.set_bytes // each.set_samples
        work = replace(work, samples=each.set_samples, sample_bytes=size)
    plain = [1 / each.spread.median for each in reads if each.format == "files"]
    packed = [1 / each.spread.median for each in reads if each.format != "files"]
    if plain and packed:
        storage = replace(storage, latency_s=max(0.0, min(plain) - min(packed)) / 2)
    if packed and reads[0].cache == "cold":
        moving_s = work.sample_bytes / storage.target_bytes_s
        storage = replace(storage, request_s=max(0.0, min(packed) - moving_s))
    elif packed:
        storage = replace(storage, local_bytes_s=work.sample_bytes / min(packed))
    for each in stages[:1]:
        made_s = sum(each.extra[f"{stage}_s"] for stage in ("decode", "augment", "collate"))
        work = replace(work, batch=each.batch, decode_s=made_s / each.batch)
    return work, storage


def _probed(found: dict[str, Record]) -> Storage:
    """Derive the storage model from probes.

    Single operations give latency and request time. The fastest reads give the bandwidth of a node.
    """
    small = min((each for each in found.values() if each.what == READS), key=lambda each: each.bytes)
    fastest = max(each.bytes / each.seconds for each in found.values())
    return Storage(node_bytes_s=fastest, latency_s=found["open"].seconds, request_s=small.seconds)


_SIMPLEST = ("packed", "staged", "broadcast", "shards", "files")
"""If several ways take equally long, the first is advised. Files are left as they are only if they were
measured cold, and if the limit of the servers is known."""


def _shard_bytes(everything: int, readers: int) -> int:
    """So many shards that each worker has some to choose from, and each large enough for a file system."""
    fair = everything // (readers * _SHARDS_PER_WORKER)
    return int(min(_LARGEST_SHARD, max(_SMALLEST_SHARD, fair)))


def _commands(
    best: str, data: str, options: SourceOptions, shard_bytes: int, plan: TrainingPlan, workers: int
) -> tuple[str, ...]:
    name = Path(data).absolute().stem or "data"  # of a packed file too
    out = shlex.quote(f"{name}.tars" if best == "shards" else f"{name}.arrow")
    more, order = (f" -O max_bytes={shard_bytes}", " --order stream") if shard_bytes else ("", "")
    flags = "".join(f" {word}" for word in map(shlex.quote, to_argv(options)))
    lines = {
        "pack": f"smallfiles pack {shlex.quote(data)} {out}{more}{flags}",
        "staged": f"smallfiles stage {out}   # once per node, in the job",
        "broadcast": f"smallfiles stage --broadcast {out}   # once in the job script",
        "files": "smallfiles profile -- python train.py   # says whether loading limits your training",
        "train": f"smallfiles train {out} --batch {plan.batch} --workers {workers}{order}",
    }
    wanted = ("files",) if best == "files" else ("pack", best, "train")
    return tuple(lines[each] for each in wanted if each in lines)


def _reasons(found: Measured, plan: TrainingPlan) -> tuple[str, ...]:
    state = "cold" if found.cold else "as they are cached now"
    sentences = [
        f"{found.samples:,} samples of {bytes_text(found.sample_bytes)} on {found.kind}; to open and read "
        f"one takes {1e3 * found.alone_s:.2g} ms, {state}, {1e3 * found.together_s:.2g} ms with {_IN_FLIGHT} "
        "in flight",
    ]
    if found.requests:
        sentences.append(f"to read 1,000 samples as files takes {found.requests}")
    if found.decode_s:
        needs = plan.batch / plan.step_s * found.decode_s
        sentences.append(
            f"decoding takes {1e3 * found.decode_s:.2g} ms: each GPU wants {needs:.1f} CPUs for it, "
            f"and {found.cpus / plan.gpus:.1f} are there"
        )
        if needs > found.cpus / plan.gpus:
            sentences.append(
                "so GPUs wait for decoding whatever the format: pack with --resize, or ask for more CPUs"
            )
    if found.samples * found.sample_bytes > found.local_bytes:
        sentences.append(
            f"a copy per node ({bytes_text(found.samples * found.sample_bytes)}) does not fit into what is "
            f"free there ({bytes_text(found.local_bytes)})"
        )
    if not found.shared and plan.nodes > 1:
        sentences.append(
            f"{found.kind} is of this machine alone: copy the data to where all nodes see it, and ask again"
        )
    return tuple(sentences)


def _unknown(found: Measured, plan: TrainingPlan) -> Iterator[str]:
    """Yield why plain files cannot be advised, however fast they are here."""
    if found.shared and not found.cold:
        yield "the files came from the page cache, which says nothing about the storage behind it"
    if plan.metadata_ops_s is None and plan.nodes > 1:
        yield (
            f"the servers were taken to do {Storage().metadata_ops_s:,.0f} operations per second for all; "
            "ask your site, and advise again with its number of metadata operations"
        )
    if found.files_share >= _FULL:
        yield f"{found.files_share:.0%} of your quota of files is used"
