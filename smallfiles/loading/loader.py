"""A `DataLoader` that keeps its promises: exactly once, resumable, and failures told in a sentence.

`make_loader` gives a torch `DataLoader`, so Lightning, Accelerate and any training loop take it as it is:

    loader = make_loader("train.arrow", LoaderConfig(batch=64), transform=transform)
    for batch in loader:          # each pass is the next epoch
        batch["image"], batch["target"]

The trap: Lightning and Accelerate like to split a loader over ranks once more. This one is split already:
pass `use_distributed_sampler=False` to a Trainer, and let Accelerate split one that was made with rank=0
and world_size=1. Notebook 08 teaches it.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from traceback import clear_frames
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.loading.batches import BatchMaker, Fault, nbytes
from smallfiles.loading.callables import Called
from smallfiles.loading.config import LoaderConfig, Mode, ReadOrder, default_workers, place
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
    name_of_data,
)
from smallfiles.loading.dealing import stream_fields, warn_if_unmixed
from smallfiles.loading.fields import none_left
from smallfiles.loading.plan import EpochPlan
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
from smallfiles.progress import plural
from smallfiles.samples import Reader

T = TypeVar("T")

KEPT_FAULTS = 1000
"""Faults that a loader remembers; it counts all."""
MOST_THREADS = 4
"""Up to so many workers are threads if nothing else is asked."""


class Loader(DataLoader[Any]):
    """Made by `make_loader`; takes what a `DataLoader` takes.

    Attributes:
        fault_count: Samples that were left out or replaced since the loader was made.
        faults: The first of them.
        memory: What is at work, for messages.
        every_step: Whether a batch of which all samples were left out comes as an empty one. Of several
            ranks it does, or one would take fewer steps than the others, which would wait for it for ever.
    """

    memory = WorkerMemory(0, 0, 0)
    every_step = False

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
        """What the epoch is that is on; `plan.batches_per_rank()` tells where ranks differ."""
        return self.schedule.plan

    def set_epoch(self, epoch: int) -> None:
        """The next pass is this epoch; without a call it is the one after the last."""
        self.schedule.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: epoch, batches handed out in it, and what these numbers depend on."""
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on where the loader was that gave this state, also on another number of ranks.

        Raises:
            UsageError: That loader had another data set, seed or order.
        """
        self.schedule.load_state_dict(state)
        self._iterator = None  # workers that live on know the plan of before

    def __len__(self) -> int:
        """Number of batches of the epoch that is on, or comes next."""
        return self.plan.length()

    def __iter__(self) -> Iterator[LoadedBatch]:  # type: ignore[override]  # torch names a class of its own
        if self._iterator is None:  # else the workers are there, and hold what they need
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
        return self._hand_out(batches, epoch, start)

    def _begin(self, epoch: int, start: int) -> Iterator[Delivered]:
        return super().__iter__()

    def _hand_out(self, batches: Iterator[Delivered], epoch: int, number: int) -> Iterator[LoadedBatch]:
        any_left, lost = number > 0, self.fault_count
        while True:
            try:
                batch = explained(batches.__next__, self.memory)
            except StopIteration:
                break
            except WorkerDiedError as error:
                self._dismiss(error)
                raise
            if isinstance(batch, FailedBatch):
                try:
                    raise batch.error
                finally:
                    del batch  # a cycle of error and frame would keep the workers alive, and stop them badly
            assert isinstance(batch, LoadedBatch)
            self.fault_count += len(batch.faults)
            self.faults += batch.faults[: max(0, KEPT_FAULTS - len(self.faults))]
            number += 1
            self.schedule.at = epoch, number
            if len(batch["index"]) or self.every_step:
                any_left = True
                yield batch
        self.schedule.at = None
        if self.fault_count > lost and not any_left:
            dataset: Any = self.dataset
            what = plural(self.fault_count - lost, "sample")
            raise none_left(dataset.maker.reader.path, self.faults, epoch, what)

    def _dismiss(self, error: BaseException) -> None:
        """End the workers that are left, or torch raises for the dead one again wherever the trainer is."""
        left, self._iterator = self._iterator, None
        with suppress(RuntimeError):
            getattr(left, "_shutdown_workers", int)()
        earlier = error.__cause__
        while earlier is not None:  # their frames hold the iterator, if it died while it was made
            with suppress(RuntimeError):
                clear_frames(earlier.__traceback__)
            earlier = earlier.__cause__ or earlier.__context__


class InThreads(Iterator[T]):
    """Items of several iterators in turn, each drawn from in a thread of its own, which begins at once.

    The decoders let go of Python's global lock while they work, so threads decode side by side, and a batch
    that a thread made need not be sent. What Python itself does between two images runs in one thread at a
    time, the trainer's too: a dozen threads are about the limit, and notebook 08 measures it.

    Args:
        parts: Drawn from in turn, until one ends.
        ahead: How many items each thread may be ahead of what was taken.
    """

    def __init__(self, parts: list[Iterator[T]], ahead: int) -> None:
        pools = [ThreadPoolExecutor(1, f"loader-{number}") for number in range(len(parts))]
        self._lanes = deque(
            (part, pool, deque(pool.submit(next, part) for _ in range(ahead)))
            for part, pool in zip(parts, pools, strict=True)
        )

    def __next__(self) -> T:
        if not self._lanes:
            raise StopIteration
        part, pool, waiting = self._lanes[0]
        try:
            item = waiting.popleft().result()
        except BaseException:
            self.close()
            raise
        waiting.append(pool.submit(next, part))
        self._lanes.rotate(-1)
        return item

    def close(self) -> None:
        """End the threads; each finishes the item that it is at."""
        for wait in (False, True):
            for _, pool, _ in self._lanes:
                pool.shutdown(wait, cancel_futures=True)
        self._lanes.clear()

    def __del__(self) -> None:
        # In whichever thread collects garbage, which may be one that the lanes wait for: it must not wait.
        for _, pool, _ in self._lanes:
            pool.shutdown(False, cancel_futures=True)


class ThreadLoader(Loader):
    """A `Loader` whose batches are made by threads of the trainer; the same batches.

    Attributes:
        threads: How many.
        ahead: Batches that each makes ahead.
    """

    threads = 1
    ahead = 2

    def _begin(self, epoch: int, start: int) -> Iterator[Delivered]:
        allocate = Block.pinned if self.pin_memory and torch.cuda.is_available() else None
        dataset = self.dataset
        if isinstance(dataset, StreamDataset):
            lanes = [
                dataset.part(epoch, start + number, self.threads, allocate) for number in range(self.threads)
            ]
            return InThreads(lanes, self.ahead)
        assert isinstance(dataset, SampleDataset)
        self.schedule.take()
        orders = self.schedule.plan_of(epoch).batches(epoch)
        make = partial(deliver, dataset.maker, epoch=epoch, allocate=allocate)
        parts = [islice(orders, start + number, None, self.threads) for number in range(self.threads)]
        return InThreads([map(make, part) for part in parts], self.ahead)


def make_loader(
    source: Source, config: LoaderConfig | None = None, *, transform: AnyTransform | None = None
) -> Loader:
    """A loader of a packed file, for this rank.

    Without it a dozen settings must be right together, and most of them fail silently: samples twice, one
    order in all epochs, equal crops in all workers.

    Args:
        source: A packed file, pushed shards by their URL (`s3://…`), a reader, or a `BatchMaker` (which has
            a seed and an `on_error` of its own).
        config: How to work; what it leaves open is filled in from this machine.
        transform: Makes an image of encoded bytes; None gives the bytes. One of `smallfiles.images`, or of
            torchvision, or any function of a picture (see `callables`).

    Returns:
        A `DataLoader`; its batches are dicts of tensors.

    Raises:
        UsageError: The configuration does not fit this data or this rank.
        ResourceError: Shared memory cannot hold the batches that processes make ahead.
    """
    config = config or LoaderConfig()
    maker = maker_of(source, transform, seed=config.seed, on_error=config.on_error)
    where = place(config)
    workers = default_workers(where) if config.workers is None else config.workers
    if config.mode == "main":
        workers = 0
    batch_bytes = _batch_bytes(maker, config.batch)
    mode = _checked_mode(choose_mode(config, workers, batch_bytes), config, maker)
    processes, files = (workers, files_of(maker.reader.path)) if mode == "processes" else (0, ())
    memory = WorkerMemory(processes, config.prefetch, batch_bytes, files)
    check_shared_memory(memory)
    plan = EpochPlan(
        samples=len(maker.reader),
        batch=config.batch,
        seed=config.seed,
        shuffle=config.shuffle,
        rank=where.rank,
        world_size=where.world_size,
        drop_last=config.drop_last,
        data=name_of_data(maker.reader),
        **(
            {"streams": max(1, workers), **stream_fields(maker.reader, config.buffer)}
            if choose_order(config, maker.reader) == "stream"
            else {}
        ),
    )
    warn_if_unmixed(plan, maker.reader)
    return _assemble(maker, plan, config, mode, workers, memory)


def choose_order(config: LoaderConfig, reader: Reader) -> ReadOrder:
    """How samples follow each other, if that is left open: a store far away is read in streams.

    Args:
        config: Tells the order, or leaves it open.
        reader: Where the samples are.
    """
    return config.order or ("stream" if hasattr(reader, "following") else "random")


def choose_mode(config: LoaderConfig, workers: int, batch_bytes: int) -> Mode:
    """Where batches are made, if `auto` leaves it open.

    A batch that a process sends costs 60 microseconds an image of 224 pixels, measured, since its pages
    are new in both processes; one that a thread made costs nothing more. Threads wait for each other's
    Python, though, so many workers are processes.

    Args:
        config: Tells the mode, or leaves it open.
        workers: How many there will be.
        batch_bytes: Size of a batch.
    """
    if not workers:
        return "main"
    if config.mode != "auto":
        return config.mode
    fits = (
        WorkerMemory(workers, config.prefetch, batch_bytes).ahead_bytes <= machine.filesystem(SHM).free_bytes
    )
    return "processes" if fits and workers > MOST_THREADS else "threads"


def _checked_mode(mode: Mode, config: LoaderConfig, maker: BatchMaker) -> Mode:
    """Processes instead of threads for transforms that draw from generators which a process has once."""
    if mode != "threads" or not isinstance(getattr(maker, "transform", None), Called):
        return mode
    if config.mode == "threads":
        raise UsageError(
            "threads are to call a transform that is none of smallfiles.images",
            expected="processes, of which each has random generators of its own",
            next_step="Leave the mode out, or choose processes or main",
        )
    return "processes"


def _assemble(
    maker: BatchMaker, plan: EpochPlan, config: LoaderConfig, mode: Mode, workers: int, memory: WorkerMemory
) -> Loader:
    pin = torch.cuda.is_available() if config.pin_memory is None else config.pin_memory
    settings: dict[str, Any] = {"pin_memory": pin}
    if mode == "processes":
        forks = "fork" in multiprocessing.get_all_start_methods()
        settings |= {
            "num_workers": workers,
            "prefetch_factor": config.prefetch,
            "persistent_workers": True,
            "multiprocessing_context": config.start_method or ("fork" if forks else None),
        }
    if plan.streams:
        settings |= {"dataset": StreamDataset(maker, plan), "batch_size": None, "collate_fn": _as_it_is}
    else:
        batches = EpochBatches(plan)
        settings |= {"dataset": SampleDataset(maker), "batch_sampler": batches, "collate_fn": collate}
    if mode != "threads":
        loader = Loader(**settings)
    else:
        loader = in_threads = ThreadLoader(**settings)
        in_threads.threads, in_threads.ahead = workers, config.prefetch
    loader.memory, loader.every_step = memory, plan.world_size > 1
    return loader


def _as_it_is(batch: Delivered) -> Delivered:
    return batch


def _batch_bytes(maker: BatchMaker, batch: int) -> int:
    if maker.fixed:
        return nbytes(maker.layout(batch))
    samples = max(len(maker.reader), 1)
    return int(maker.reader.info().get("bytes", 0)) * batch // samples  # a mean batch
