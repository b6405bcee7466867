"""A packed file as a torch data set: any number, one by one or a batch in one call.

`SampleDataset` reads at random and makes a batch where it is asked for one, so that workers send whole
batches. It works in a plain `DataLoader` too.

The trap: a data set that reads sample by sample waits for the storage as often as there are samples;
one that gets the batch's numbers at once announces them all and waits once. Notebook 08 teaches it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np
import torch
import xxhash
from torch.utils.data import Dataset, get_worker_info

from smallfiles import formats
from smallfiles.errors import SmallfilesError, UsageError
from smallfiles.loading.batches import BatchMaker, Indices, Layout
from smallfiles.loading.config import OnError
from smallfiles.loading.makers import ImageBatches, RawBatches
from smallfiles.loading.packets import Block, FailedBatch, LoadedBatch, Packet, to_tensors
from smallfiles.loading.schedule import split_numbers
from smallfiles.samples import Reader

if TYPE_CHECKING:
    from smallfiles.images import Transform

Item: TypeAlias = dict[str, torch.Tensor]
Source: TypeAlias = Reader | Path | str | BatchMaker
Delivered: TypeAlias = LoadedBatch | Packet | FailedBatch


def maker_of(
    source: Source, transform: Transform | None = None, *, seed: int = 0, on_error: OnError = "stop"
) -> BatchMaker:
    """What makes batches of a source: images where there is a transform, else encoded bytes.

    Args:
        source: A packed file, its reader, or a maker, which is returned as it is.
        transform: Makes an image of encoded bytes.
        seed: Of all augmentation.
        on_error: What to do about a sample that cannot be read or decoded.
    """
    if isinstance(source, str | Path):
        source = formats.open(source)
    if isinstance(source, Reader):
        if transform is None:
            return RawBatches(source, seed, on_error)
        return ImageBatches(source, transform, seed, on_error)
    if transform is not None:
        raise UsageError(
            f"a transform was given beside {type(source).__name__}",
            expected="a transform beside a packed file or a reader",
            next_step="Give the transform to the batch maker",
        )
    return source


def name_of_data(reader: Reader) -> str:
    """A name that only a set of the same samples in the same order has, for checkpoints.

    Of the set digest that packing recorded, and of sizes and targets of samples spread over the set, since
    a set digest is the same for any order. More of them for files of others, which record none; nothing is
    read or listed for it, so that it costs milliseconds with a million samples.
    """
    record = reader.info().get("provenance") or {}
    recorded = str(record.get("schema", {}).get("manifest_digest", ""))
    rows = np.unique(np.linspace(0, len(reader) - 1, 64 if recorded else 4096).astype(np.int64)).tolist()
    seen = [(reader.size(row), reader.target(row)) for row in rows if len(reader)]
    return xxhash.xxh3_128_hexdigest(json.dumps([recorded, len(reader), seen]).encode())


def deliver(
    maker: BatchMaker,
    indices: Indices,
    epoch: int,
    allocate: Callable[[Layout], Block] | None = None,
) -> Delivered:
    """Make a batch where it is needed: in shared memory in a worker, else in plain or given memory.

    Args:
        maker: Makes it.
        indices: Numbers of the samples.
        epoch: Number of the epoch.
        allocate: Makes the block that is filled; None chooses.

    Returns:
        The batch; in a worker a `Packet` that arrives as such; or the error that stands for it.
    """
    in_worker = get_worker_info() is not None
    if in_worker:
        allocate = Block.shared
    try:
        block = allocate(maker.layout(len(indices))) if allocate is not None and maker.fixed else None
        with one_thread():
            batch = maker.make(indices, epoch, None if block is None else block.arrays)
    except SmallfilesError as error:
        return FailedBatch(error)
    return Packet(batch, block) if in_worker else to_tensors(batch.arrays, batch.faults)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from sharing out single images over all CPUs while the main thread makes a batch.

    On CPUs that others use too, waiting for the other threads takes ten times as long as the work. Workers
    have one thread anyway, and OpenMP does not spin in threads beside the first.
    """
    before = torch.get_num_threads()
    if before == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class SampleDataset(Dataset[Item]):
    """Random access to the samples of a packed file, as tensors.

    Args:
        maker: Makes batches of them.
    """

    def __init__(self, maker: BatchMaker) -> None:
        self.maker = maker

    @property
    def reader(self) -> Reader:
        """Where the samples are."""
        return self.maker.reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, number: int) -> Item:
        """One sample; its number may carry an epoch (see `schedule`)."""
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> Rows:
        """Several samples, fetched in the order in which they lie, in the order asked for."""
        return Rows(self, numbers)


class Rows(Sequence[Item]):
    """A batch asked for: made once, at first use, as a whole or (by other collate functions) row by row."""

    def __init__(self, dataset: SampleDataset, numbers: Sequence[int]) -> None:
        self._maker = dataset.maker
        self._indices, self._epoch = split_numbers(numbers, len(dataset))
        self._batch: LoadedBatch | None = None

    def deliver(self, allocate: Callable[[Layout], Block] | None = None) -> Delivered:
        """The whole batch, as it travels."""
        return deliver(self._maker, self._indices, self._epoch, allocate)

    def __len__(self) -> int:
        return len(self._whole()["index"])

    @overload
    def __getitem__(self, row: int) -> Item: ...
    @overload
    def __getitem__(self, row: slice) -> list[Item]: ...
    def __getitem__(self, row: int | slice) -> Item | list[Item]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        batch = self._whole()
        if "offsets" not in batch:
            return {name: tensor[row] for name, tensor in batch.items()}
        row = range(len(self))[row]
        start, stop = batch["offsets"][row : row + 2].tolist()
        rest = {name: batch[name][row] for name in batch if name not in ("data", "offsets")}
        return {"data": batch["data"][start:stop], **rest}

    def __iter__(self) -> Iterator[Item]:
        return (self[row] for row in range(len(self)))

    def _whole(self) -> LoadedBatch:
        if self._batch is None:
            with one_thread():
                batch = self._maker.make(self._indices, self._epoch)
            self._batch = to_tensors(batch.arrays, batch.faults)
        return self._batch


def collate(rows: Rows) -> Delivered:
    """The batch that the rows are of, without stacking them; for `DataLoader(collate_fn=...)`."""
    return rows.deliver()
