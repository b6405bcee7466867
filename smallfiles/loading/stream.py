"""Sequential reading: ranges of shards, shuffled in a buffer of samples.

On parallel file systems and disks one long read is cheaper than a thousand short ones; so a stream reads
ranges of a few MB, each once (`plan`). The order is known before anything is read (`EpochPlan.stream`),
so that a stopped run resumes at the same batch without reading what came before it.

The trap: an `IterableDataset` is copied into each worker, and each copy yields everything unless it asks
for its worker number. Notebook 05 shows how random such an order is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from smallfiles.errors import SmallfilesError
from smallfiles.loading.dataset import Block, Delivered, FailedBatch, deliver
from smallfiles.loading.fields import NOT_OF_DATA
from smallfiles.loading.makers import BatchMaker, Layout
from smallfiles.loading.plan import EpochPlan
from smallfiles.loading.schedule import Schedule
from smallfiles.samples import Buffer, Reader

READ_AHEAD = 64
"""Samples that are fetched in one call."""


class Window:
    """A reader of one stream: fetches ahead in reading order, and releases what was returned.

    Args:
        reader: The shards.
        reads: Numbers of the samples in reading order.
        emits: The same numbers in the order in which they are returned.
        lead: How many samples are read before the first is returned.
        start: How many of `emits` were returned before a resume.
    """

    def __init__(
        self, reader: Reader, reads: Sequence[int], emits: Sequence[int], lead: int, start: int
    ) -> None:
        self._reads = reads
        self._lead, self._out = lead, start
        self._done = set(emits[:start])
        follow = getattr(reader, "following", None)  # of a remote store, which fetches ahead
        left = [each for each in reads if each not in self._done]
        self._reader: Reader = follow(left) if follow else reader
        self._held: dict[int, dict[str, Buffer]] = {}
        self._read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __len__(self) -> int:
        return len(self._reader)

    def read(self, index: int, field: str = "") -> Buffer:
        """Return a blob that is held since another one is damaged; a damaged one raises its error again."""
        data = self._held.get(index, {}).pop(field, None)
        return self._reader.read(index, field) if data is None else data

    def read_fields(self, indices: Sequence[int], fields: Sequence[str]) -> list[list[Buffer]]:
        """Return the blobs of the next samples of `emits`."""
        self._out += len(indices)
        until = min(len(self._reads), self._out + self._lead)
        while self._read < until:
            piece = self._reads[self._read : max(until, self._read + READ_AHEAD)]
            self._fetch([index for index in piece if index not in self._done], fields)
            self._read += len(piece)
        # A sample that is not held is damaged, and raises its error here.
        late = {index: self._one(index, fields) for index in indices if index not in self._held}
        found = {index: self._held.pop(index) for index in set(indices) - set(late)} | late
        return [[found[index][field] for index in indices] for field in fields]

    def _one(self, index: int, fields: Sequence[str]) -> dict[str, Buffer]:
        return {field: self._reader.read(index, field) for field in fields}

    def _fetch(self, wanted: list[int], fields: Sequence[str]) -> None:
        try:
            for index, *blobs in zip(wanted, *self._reader.read_fields(wanted, fields), strict=True):
                self._held[index] = dict(zip(fields, blobs, strict=True))
        except NOT_OF_DATA:
            raise
        except SmallfilesError:  # raised again when the sample is requested
            for index in wanted:
                try:
                    self._held[index] = self._one(index, fields)
                except NOT_OF_DATA:
                    raise
                except SmallfilesError:
                    pass


class StreamDataset(IterableDataset[Delivered]):
    """Batches of one rank, read in ranges; each worker reads its own streams.

    Args:
        maker: Makes batches; a dataclass with the field `reader`.
        plan: With at least one stream; one per worker is best.
    """

    def __init__(self, maker: BatchMaker, plan: EpochPlan) -> None:
        self.maker, self.schedule = maker, Schedule(plan)
        # Shared with workers, which persist from epoch to epoch.
        clock: Any = torch.zeros(2, dtype=torch.int64)
        self._clock: torch.Tensor = clock.share_memory_()

    def __len__(self) -> int:
        """Return the number of batches of this rank."""
        return self.schedule.plan.length()

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next pass."""
        self.schedule.set_epoch(epoch)
        self._announce(self.schedule.epoch, self.schedule.start)

    def begin(self) -> tuple[int, int]:
        """Begin a pass: announce its epoch and first batch to the workers, and return them."""
        taken = self.schedule.take()
        self._announce(*taken)
        return taken

    def _announce(self, epoch: int, start: int) -> None:
        self._clock[0], self._clock[1] = epoch, start

    def __iter__(self) -> Iterator[Delivered]:
        epoch, start = self._clock.tolist()
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return self.part(epoch, start + number, count)

    def part(
        self, epoch: int, first: int, step: int, allocate: Callable[[Layout], Block] | None = None
    ) -> Iterator[Delivered]:
        """Yield every `step`-th batch of an epoch from batch `first` on.

        Args:
            epoch: Number of the epoch.
            first: Number of the first batch.
            step: Number of workers.
            allocate: Makes the memory of a batch; None chooses.
        """
        plan = self.schedule.plan_of(epoch)
        opened: dict[int, tuple[BatchMaker, list[int]]] = {}
        for number in range(first, plan.length(), step):
            stream, own = number % plan.streams, number // plan.streams * plan.batch
            try:
                if stream not in opened:
                    opened[stream] = self._open(epoch, stream, own, plan.streams % step == 0)
            except SmallfilesError as error:  # torch would wrap it in a traceback
                yield FailedBatch(error)
                return
            maker, emits = opened[stream]
            yield deliver(maker, emits[own : own + plan.batch], epoch, allocate)

    def _open(self, epoch: int, stream: int, start: int, alone: bool) -> tuple[BatchMaker, list[int]]:
        """Open a batch maker that reads this stream, and return it with the order of its samples."""
        plan = self.schedule.plan_of(epoch)
        reads, emits = (order.tolist() for order in plan.stream(epoch, stream))
        if not alone:  # several workers share the stream: each reads what it needs
            return self.maker, emits
        lead = plan.buffer if plan.shuffle else 0
        window = Window(self.maker.reader, reads, emits, lead, start)
        own: Any = self.maker
        return replace(own, reader=window), emits
