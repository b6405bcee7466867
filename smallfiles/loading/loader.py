"""The `DataLoader` of a packed file: each sample exactly once, resumable, failures as sentences.

`make_loader` returns a torch `DataLoader`, so Lightning, Accelerate and any training loop accept it:

    loader = make_loader("train.arrow", LoaderConfig(batch=64), transform=transform)
    for batch in loader:          # each pass is the next epoch
        batch["image"], batch["target"]

The trap: by default Lightning and Accelerate split a loader over ranks once more. This one is already split:
pass `use_distributed_sampler=False` to a Trainer; for Accelerate, make the loader with rank=0 and
world_size=1. Notebook 08 teaches it.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from traceback import clear_frames
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from smallfiles import machine, storage
from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig, Mode, default_workers, place
from smallfiles.loading.callables import TransformAdapter
from smallfiles.loading.dataset import (
    AnyTransform,
    Block,
    Delivered,
    FailedBatch,
    LoadedBatch,
    SampleDataset,
    Source,
    collate,
    deliver,
    maker_of,
    mixture_of,
    name_of_data,
)
from smallfiles.loading.fields import none_left
from smallfiles.loading.makers import BatchMaker, Fault, nbytes
from smallfiles.loading.plan import EpochPlan, stream_fields, warn_if_unmixed
from smallfiles.loading.schedule import EpochBatches, Schedule
from smallfiles.loading.stream import StreamDataset
from smallfiles.loading.worker_errors import (
    SHM,
    WorkerDiedError,
    WorkerMemory,
    check_shared_memory,
    explained,
    files_of,
)
from smallfiles.machine.ranks import check_process_group
from smallfiles.progress import plural
from smallfiles.samples import Reader
from smallfiles.selection.draws import Drawn

T = TypeVar("T")

KEPT_FAULTS = 1000
"""Faults that a loader keeps; it counts all."""
MOST_THREADS = 4
"""Up to this many workers are threads in mode `auto`."""


class Loader(DataLoader[Any]):
    """The result of `make_loader`; takes the arguments of a `DataLoader`.

    Attributes:
        fault_count: Samples that were left out or replaced since the loader was made.
        faults: The first of them.
        memory: Workers and their memory, for messages.
        every_step: Whether a batch of which all samples were left out is returned empty. With several ranks
            it is; otherwise one rank would take fewer steps, and the others would wait for it forever.
        threads: Number of threads of the trainer that make the batches; the batches are the same.
        ahead: Batches that each of them makes ahead.
        asked_rank: Whether the rank was not given but asked for, when the loader was made.
        storage_timeout_s: How long to wait for storage that does not answer.
        drawn: What an epoch has, where samples are balanced, weighted, or mixed; else empty.
    """

    memory = WorkerMemory(0, 0, 0)
    every_step = False
    threads = 0
    ahead = 0
    asked_rank = False
    storage_timeout_s = storage.TIMEOUT_S
    drawn = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fault_count = 0
        self.faults: list[Fault] = []

    @property
    def schedule(self) -> Schedule:
        """Which epoch comes next."""
        holder = self.dataset if isinstance(self.dataset, StreamDataset) else self.batch_sampler
        assert isinstance(holder, StreamDataset | EpochBatches)
        return holder.schedule

    @property
    def plan(self) -> EpochPlan:
        """The plan of the current epoch; `plan.batches_per_rank()` shows whether ranks differ."""
        return self.schedule.plan

    @property
    def reader(self) -> Reader:
        """The samples, whose numbers are `batch["index"]`."""
        reader: Reader = self.dataset.maker.reader  # type: ignore[attr-defined]
        return reader

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next pass; without a call it is the one after the last."""
        self.schedule.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader for a checkpoint.

        It has the epoch, the number of delivered batches, and the settings on which these numbers depend.
        """
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass continue where the loader that returned this state was; ranks may differ.

        Raises:
            UsageError: That loader had another data set, seed or order.
        """
        self.schedule.load_state_dict(state)
        self._iterator = None  # persistent workers have the old plan

    def __len__(self) -> int:
        """Return the number of batches of the current epoch, or else of the next epoch."""
        return self.plan.length()

    def __iter__(self) -> Iterator[LoadedBatch]:  # type: ignore[override]  # torch annotates a class of its own
        if self.asked_rank:
            check_process_group(self.plan.rank, self.plan.world_size)
        storage.set_timeout(self.storage_timeout_s)
        if self._iterator is None:  # otherwise the workers exist, and have their memory
            check_shared_memory(self.memory)
        if isinstance(self.dataset, StreamDataset):
            epoch, start = self.dataset.begin()
        else:
            epoch, start = self.schedule.epoch, self.schedule.start
        self.schedule.at = epoch, start
        try:
            batches = explained(lambda: self._begin(epoch, start), self.memory)
        except WorkerDiedError as error:
            self._dismiss(error)
            raise
        return self._deliver(batches, epoch, start)

    def _begin(self, epoch: int, start: int) -> Iterator[Delivered]:
        if not self.threads:
            return super().__iter__()
        allocate = Block.pinned if self.pin_memory and torch.cuda.is_available() else None
        numbers, dataset = range(start, start + self.threads), self.dataset
        if isinstance(dataset, StreamDataset):
            parts = [dataset.part(epoch, number, self.threads, allocate) for number in numbers]
            return InThreads(parts, self.ahead)
        assert isinstance(dataset, SampleDataset)
        self.schedule.take()
        orders = self.schedule.plan_of(epoch).batches(epoch)
        make = partial(deliver, dataset.maker, epoch=epoch, allocate=allocate)
        return InThreads([map(make, islice(orders, n, None, self.threads)) for n in numbers], self.ahead)

    def _deliver(self, batches: Iterator[Delivered], epoch: int, number: int) -> Iterator[LoadedBatch]:
        any_left, lost = number > 0, self.fault_count
        while True:
            try:
                workers = getattr(batches, "_workers", ())
                batch = explained(partial(self._next, batches, epoch, number + 1), self.memory, workers)
            except StopIteration:
                break
            except WorkerDiedError as error:
                self._dismiss(error)
                raise
            number += 1
            if batch is not None:
                any_left = True
                yield batch
        self.schedule.at = None
        if self.fault_count > lost and not any_left:
            dataset: Any = self.dataset
            what = plural(self.fault_count - lost, "sample")
            raise none_left(dataset.maker.reader.path, self.faults, epoch, what)

    def _next(self, batches: Iterator[Delivered], epoch: int, number: int) -> LoadedBatch | None:
        """Return the next batch, and count it. Return None if all of its samples were skipped.

        Torch may report a dead worker at any of these lines, so all of them run inside of `explained`.
        """
        batch = next(batches)
        if isinstance(batch, FailedBatch):
            try:
                raise batch.error
            finally:
                del batch  # a cycle of error and frame would keep the workers alive
        assert isinstance(batch, LoadedBatch)
        self.fault_count += len(batch.faults)
        self.faults += batch.faults[: max(0, KEPT_FAULTS - len(self.faults))]
        self.schedule.at = epoch, number
        return batch if len(batch["index"]) or self.every_step else None

    def _dismiss(self, error: BaseException) -> None:
        """End the remaining workers, or torch raises for the dead one again, anywhere in the trainer."""
        left, self._iterator = self._iterator, None
        with suppress(RuntimeError):
            getattr(left, "_shutdown_workers", int)()
        earlier = error.__cause__
        while earlier is not None:  # their frames may hold the iterator
            with suppress(RuntimeError):
                clear_frames(earlier.__traceback__)
            earlier = earlier.__cause__ or earlier.__context__


class InThreads(Iterator[T]):
    """Items of several iterators in turn, each advanced by a thread of its own, which starts at once.

    The decoders release Python's global lock while they work, so threads decode in parallel, and their
    batches need not be sent. Python code between two images runs in one thread at a time, including the
    trainer's: about a dozen threads are the limit, and notebook 08 measures it.

    Args:
        parts: Taken from in turn, until one ends.
        ahead: How many items each thread may prepare in advance.
    """

    def __init__(self, parts: list[Iterator[T]], ahead: int) -> None:
        pools = [storage.ReadingPool(1, f"loader-{number}") for number in range(len(parts))]
        self._lanes = deque(
            (part, pool, deque(pool.submit(next, part) for _ in range(ahead)))
            for part, pool in zip(parts, pools, strict=True)
        )

    def __next__(self) -> T:
        if not self._lanes:
            raise StopIteration
        part, pool, pending = self._lanes[0]
        try:
            item = pending.popleft().result()
        except BaseException:
            self.close()
            raise
        pending.append(pool.submit(next, part))
        self._lanes.rotate(-1)
        return item

    def close(self) -> None:
        """End the threads; each finishes its current item, unless that waits for storage."""
        for _, pool, _ in self._lanes:
            pool.abandon()
        for _, pool, _ in self._lanes:
            pool.shutdown()
        self._lanes.clear()

    def __del__(self) -> None:
        # Any thread may collect garbage, also one that the lanes wait for: do not wait here.
        for _, pool, _ in self._lanes:
            pool.abandon()


def make_loader(
    source: Source | None = None,
    config: LoaderConfig | None = None,
    *,
    mix: Mapping[Any, float] | None = None,
    transform: AnyTransform | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Loader:
    """Make the loader of a packed file for this rank.

    A `DataLoader` that you set up by hand has a dozen settings, and most of them fail silently: samples come
    twice, the order is the same in all epochs, or all workers make equal crops. This function sets all of
    them correctly.

    Args:
        source: A packed file, pushed shards by their URL (`s3://…`), a reader, or a `BatchMaker` (which has
            its own seed and `on_error`).
        config: The settings; defaults are derived from this machine.
        mix: In place of a source, the share of each of several sources in every epoch, such as
            `{"a.arrow": 0.7, "b.tars": 0.3}`. Shares are exact, and by default no sample comes twice (see
            `smallfiles.selection.draws`).
        transform: Makes an image from encoded bytes; None gives the bytes. One of `smallfiles.images`, of
            torchvision, or any function of a picture (see `callables`).
        fields: A maker for each field, such as `{"image": Image(view), "mask": Mask(view)}` (see `makers`);
            fields without a maker are delivered as they are stored.

    Returns:
        A `DataLoader`; its batches are dicts of tensors.

    Raises:
        UsageError: The configuration does not fit this data or this rank.
        ResourceError: Shared memory cannot hold the batches that processes make ahead.
    """
    config = config or LoaderConfig()
    storage.set_timeout(config.storage_timeout_s)  # for reading the index, and for the workers of a ring
    if (source is None) != bool(mix):
        raise UsageError(
            "a source and a mixture were given together"
            if mix
            else "neither a source nor a mixture was given",
            expected="one packed set, or mix with the share of each set",
            next_step="Give one of them",
        )
    if source is None:
        source = mixture_of(mix or {}, config, fields)
        fields = {name: maker for name, maker in (fields or {}).items() if maker or name in source.fields}
    more: dict[str, Any] = {"fields": fields, "on_error": config.on_error, "draw": config}
    maker = maker_of(source, transform, seed=config.seed, **more)
    where = place(config)
    workers = default_workers(where) if config.workers is None else config.workers
    if config.mode == "main":
        workers = 0
    batch_bytes = _batch_bytes(maker, config.batch)
    draws = isinstance(getattr(maker, "transform", None), TransformAdapter)
    mode = choose_mode(config, workers, batch_bytes, draws_from_process=draws)
    processes, files = (workers, files_of(maker.reader.path)) if mode == "processes" else (0, ())
    memory = WorkerMemory(processes, config.prefetch, batch_bytes, files)
    check_shared_memory(memory)
    is_remote = hasattr(getattr(maker.reader, "base", maker.reader), "following")
    dealt: dict[str, Any] = {}
    if config.order == "stream" or (config.order is None and is_remote):
        dealt = {"streams": max(1, workers), **stream_fields(maker.reader, config.buffer)}
    plan = EpochPlan(
        samples=len(maker.reader),
        batch=config.batch,
        seed=config.seed,
        shuffle=config.shuffle,
        rank=where.rank,
        world_size=where.world_size,
        drop_last=config.drop_last,
        data=name_of_data(maker.reader),
        parts=maker.reader.parts if isinstance(maker.reader, Drawn) else (),
        **dealt,
    )
    plan.check_batches(maker.reader)
    warn_if_unmixed(plan, maker.reader)
    return _assemble(maker, plan, config, mode, workers, memory)


def choose_mode(
    config: LoaderConfig, workers: int, batch_bytes: int, *, draws_from_process: bool = False
) -> Mode:
    """Decide where batches are made: in processes, in threads, or in the main thread.

    Sending a batch from a process costs 60 microseconds per image of 224 pixels (measured), since its pages
    are new in both processes. A batch from a thread need not be sent. But threads wait for Python's lock, so
    more than a few workers become processes.

    Args:
        config: The settings. Its mode is used unless it is `auto`.
        workers: Number of workers.
        batch_bytes: Size of a batch.
        draws_from_process: The transform draws from random generators that threads would share.

    Raises:
        UsageError: Such a transform is to be called in threads.
    """
    if not workers:
        return "main"
    if draws_from_process and config.mode == "threads":
        raise UsageError(
            "mode threads was given for a transform that is not of smallfiles.images",
            expected="processes, each of which has its own random generators",
            next_step="Leave the mode out, or choose processes or main",
        )
    if config.mode != "auto":
        return config.mode
    needed = WorkerMemory(workers, config.prefetch, batch_bytes).ahead_bytes
    fits = workers > MOST_THREADS and needed <= machine.filesystem(SHM).free_bytes
    return "processes" if fits or draws_from_process else "threads"


def _assemble(
    maker: BatchMaker, plan: EpochPlan, config: LoaderConfig, mode: Mode, workers: int, memory: WorkerMemory
) -> Loader:
    pin = torch.cuda.is_available() if config.pin_memory is None else config.pin_memory
    settings: dict[str, Any] = {"pin_memory": pin}
    if mode == "processes":
        forks = "fork" in multiprocessing.get_all_start_methods()
        settings |= {
            "num_workers": workers,
            "worker_init_fn": partial(_begin_worker, storage.settings()),
            "prefetch_factor": config.prefetch,
            "persistent_workers": True,
            "multiprocessing_context": config.start_method or ("fork" if forks else None),
        }
    if plan.streams:
        settings |= {"dataset": StreamDataset(maker, plan), "batch_size": None, "collate_fn": _as_it_is}
    else:
        batches = EpochBatches(plan)
        settings |= {"dataset": SampleDataset(maker), "batch_sampler": batches, "collate_fn": collate}
    loader = Loader(**settings)
    loader.storage_timeout_s = config.storage_timeout_s
    loader.memory, loader.every_step = memory, plan.world_size > 1
    loader.asked_rank = config.rank is None
    loader.drawn = maker.reader.sentence() if isinstance(maker.reader, Drawn) else ""
    loader.threads, loader.ahead = workers if mode == "threads" else 0, config.prefetch
    return loader


def _begin_worker(of_parent: storage.Settings, number: int) -> None:
    """Give a worker, which may have been spawned, the settings of its process."""
    storage.adopt(of_parent)


def _as_it_is(batch: Delivered) -> Delivered:
    return batch


def _batch_bytes(maker: BatchMaker, batch: int) -> int:
    if maker.fixed:
        return nbytes(maker.layout(batch))
    samples = max(len(maker.reader), 1)
    return int(maker.reader.info().get("bytes", 0)) * batch // samples  # of an average batch
