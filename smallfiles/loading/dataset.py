"""A packed file as a torch data set: random access to single samples or whole batches.

`SampleDataset` makes each batch in the worker, so that workers send whole batches. It works in a plain
`DataLoader` too. A batch is sent to the trainer as one block of shared memory: each tensor on its own would
take a file descriptor and a mapping.

The traps: a data set that reads sample by sample waits for the storage once per sample; one that receives
all numbers of the batch requests them together and waits once. And if a worker raises an error of ours,
torch raises another one with a page of tracebacks; so the error is sent as a value, and raised in place of
the batch. Notebook 08 teaches it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import torch
import xxhash
from torch.utils.data import Dataset, get_worker_info

from smallfiles import formats
from smallfiles.errors import ResourceError, SmallfilesError, UsageError
from smallfiles.fields import META, TARGETS
from smallfiles.loading import OnError
from smallfiles.loading.callables import TransformAdapter
from smallfiles.loading.fields import field_batches, offsets_of
from smallfiles.loading.makers import (
    Batch,
    BatchMaker,
    Fault,
    Indices,
    Layout,
    Places,
    Values,
    found_at,
    nbytes,
    places,
    views,
)
from smallfiles.loading.schedule import EPOCH_BIT
from smallfiles.samples import Reader
from smallfiles.selection import Draw
from smallfiles.selection.draws import Concatenated, drawn, mixed
from smallfiles.selection.reader import Selected

if TYPE_CHECKING:
    from smallfiles.images import Transform


class LoadedBatch(dict[str, torch.Tensor]):
    """A batch of a loader: tensors by name; a uint8 `image` is [B, C, H, W] in channels-last order.

    A dict, so that frameworks can move it to a device.
    """

    faults: tuple[Fault, ...] = ()


def to_tensors(arrays: Mapping[str, Values], faults: tuple[Fault, ...] = ()) -> LoadedBatch:
    """Return tensors that share the memory of arrays, without a copy.

    Args:
        arrays: Arrays from a `BatchMaker`. They must live as long as the tensors.
        faults: Samples that were skipped or replaced.
    """
    batch = LoadedBatch({name: torch.from_numpy(array) for name, array in arrays.items()})
    for name, image in batch.items():
        if image.ndim == 4 and image.dtype == torch.uint8 and image.shape[3] == 3:
            batch[name] = image.permute(0, 3, 1, 2)
    batch.faults = faults
    return batch


@dataclass(frozen=True)
class Block:
    """One piece of memory for a whole batch.

    Args:
        tensor: uint8, one-dimensional.
        arrays: Views of it, to fill.
    """

    tensor: torch.Tensor
    arrays: dict[str, Values]

    @classmethod
    def shared(cls, layout: Layout) -> Block:
        """Shared memory, for a worker, which sends its file descriptor."""
        # As torch's own collate does; share_memory_() would copy memory that is not filled yet.
        new_shared: Callable[[int], torch.UntypedStorage] = torch.UntypedStorage._new_shared
        storage = new_shared(max(nbytes(layout), 1))
        return cls._of(torch.tensor([], dtype=torch.uint8).set_(storage), layout)

    @classmethod
    def pinned(cls, layout: Layout) -> Block:
        """Pinned memory, from which a GPU copies by itself, for threads of the trainer."""
        return cls._of(torch.empty(nbytes(layout), dtype=torch.uint8, pin_memory=True), layout)

    @classmethod
    def _of(cls, tensor: torch.Tensor, layout: Layout) -> Block:
        return cls(tensor, views(tensor.numpy(), layout))


class Packet:
    """A batch in transit in shared memory: pickled in a worker, unpickled as a `LoadedBatch`."""

    def __init__(self, batch: Batch, block: Block | None) -> None:
        if block is None:  # separate arrays, since their size was not known before
            layout = {name: (array.shape, array.dtype) for name, array in batch.arrays.items()}
            block = Block.shared(layout)
            for name, array in batch.arrays.items():
                block.arrays[name][...] = array
            batch = Batch(block.arrays, batch.faults)
        self._content = block.tensor, places(batch.arrays, block.tensor.numpy()), batch.faults

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._content


def _unpack(block: torch.Tensor, places: Places, faults: tuple[Fault, ...]) -> LoadedBatch:
    return to_tensors(found_at(block.numpy(), places), faults)


class FailedBatch:
    """An error in place of a batch; any use of it raises the error.

    Our own loaders raise it at once. Others around the same data set (Accelerate's, say) do so when they
    move the batch to a device.
    """

    def __init__(self, error: SmallfilesError) -> None:
        self.error = error

    def pin_memory(self) -> FailedBatch:
        """Itself, for the thread that pins batches."""
        return self

    def to(self, *_: object, **__: object) -> NoReturn:
        """Raise the error."""
        raise self.error

    def __getitem__(self, name: object) -> NoReturn:
        raise self.error

    def __iter__(self) -> NoReturn:
        raise self.error

    def __len__(self) -> NoReturn:
        raise self.error


_KEYS_SEEN = 1024
Item: TypeAlias = dict[str, torch.Tensor]
Source: TypeAlias = Reader | Path | str | BatchMaker
AnyTransform: TypeAlias = "Transform | Callable[[Any], Any]"
Delivered: TypeAlias = LoadedBatch | Packet | FailedBatch


def maker_of(
    source: Source,
    transform: AnyTransform | None = None,
    *,
    fields: Mapping[str, Any] | None = None,
    seed: int = 0,
    on_error: OnError = "stop",
    draw: Draw | None = None,
) -> BatchMaker:
    """Return the batch maker of a source.

    It makes images if there is a transform, or else returns the encoded bytes, and it adds all other fields.

    Args:
        source: A packed file, pushed shards by their URL, a reader, or a batch maker, which is returned.
        transform: Makes an image from encoded bytes; or a function of a picture, as in torchvision (see
            `callables`).
        fields: A maker for each field (see `makers`). A field without a maker is delivered as it is stored.
        seed: Seed of all augmentation.
        on_error: What to do about a sample that cannot be read or decoded.
        draw: Which samples an epoch contains, and how often.
    """
    draw = draw or Draw()
    if isinstance(source, str | Path):
        source = _opened(source)
    if isinstance(source, Reader):
        source = drawn(source, draw)
        ours: Any = transform
        if transform is not None and not hasattr(transform, "into"):
            ours = TransformAdapter.of(transform, source)
        return field_batches(source, fields, ours, seed=seed, on_error=on_error)
    if transform is not None or fields is not None or draw.draw != Draw():
        raise UsageError(
            f"a transform, fields or a choice of samples were given together with {type(source).__name__}",
            expected="these together with a packed file or a reader",
            next_step="Give them to the batch maker, and a selected reader",
        )
    return source


def mixture_of(
    mix: Mapping[Any, float], draw: Draw | None = None, fields: Mapping[str, Any] | None = None
) -> Reader:
    """Open the sets of a mixture as one.

    Args:
        mix: The share of each set: a packed file, pushed shards by their URL, or a reader.
        draw: Which samples of each set, and how many.
        fields: Makers; a field that is left out (None) may be missing in some sets, as `meta` always may.
    """
    makers = {META: None, **(fields or {})}
    without = [name for name, maker in makers.items() if maker is None]
    sets = [each if isinstance(each, Reader) else _opened(each) for each in mix]
    return mixed(sets, [*mix.values()], draw or Draw(), without)


def _opened(path: Path | str) -> Reader:
    if not str(path).startswith("s3:/"):
        return formats.open(path)
    # Imported by name, since `objectstore` builds on this package.
    reader: Reader = import_module("smallfiles.objectstore").open_anywhere(path)
    return reader


def name_of_data(reader: Reader) -> str:
    """Return a digest that identifies the samples and their stored order, for checkpoints.

    It covers the set digest that packing recorded, which does not depend on the order, the keys of 1,024
    random samples, and the sizes and targets of some. If no set digest is recorded, it covers more samples.
    This costs milliseconds. All keys of an Arrow file would cost 0.1 s per million samples, and a read of
    every record batch. The digest misses an order that differs for less than about a thousandth of the
    samples. A selection is identified by its parent and its rows, and a mixture by its sets.
    """
    if isinstance(reader, Selected):
        return xxhash.xxh3_128_hexdigest((name_of_data(reader.base) + reader.rows_digest).encode())
    if isinstance(reader, Concatenated):
        parts = [*map(name_of_data, reader.sets), *reader.classes]
        return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())
    record = reader.info().get("provenance") or {}
    recorded, count = str(record.get("schema", {}).get("manifest_digest", "")), len(reader)
    spread = np.linspace(0, max(count - 1, 0), 64 if recorded else 4096).astype(np.int64)
    drawn = np.random.default_rng(count).integers(0, max(count, 1), _KEYS_SEEN)
    keys = [reader.key(row) for row in _rows(drawn if count > _KEYS_SEEN else np.arange(count))]
    rows = _rows(spread) if count else []
    name = next(name for name in TARGETS if name in reader.fields)
    targets = reader.table([name], rows)[name].to_pylist()
    seen = [*zip(map(reader.size, rows), targets, strict=True)]
    return xxhash.xxh3_128_hexdigest(json.dumps([recorded, count, keys, seen]).encode())


def _rows(found: Values) -> list[int]:
    return [int(row) for row in np.unique(found)]


def deliver(
    maker: BatchMaker, indices: Indices, epoch: int, allocate: Callable[[Layout], Block] | None = None
) -> Delivered:
    """Make a batch in the memory it needs: shared memory in a worker, else plain or given memory.

    Args:
        maker: Makes the batch.
        indices: Numbers of the samples.
        epoch: Number of the epoch.
        allocate: Makes the block to fill; None chooses.

    Returns:
        The batch; in a worker a `Packet`, which is unpickled as a batch; or the error in its place.
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
    """Keep torch from splitting single images over all CPUs while the main thread makes a batch.

    On busy CPUs, waiting for the other threads takes ten times as long as the work. Workers have one thread
    anyway, and OpenMP does not spin in threads other than the first.
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
        """Return one sample. Its number may contain an epoch (see `schedule`)."""
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> LazyBatch:
        """Several samples, fetched in stored order, returned in the order requested."""
        return LazyBatch(self, numbers)


def split_numbers(numbers: Sequence[int], samples: int) -> tuple[list[int], int]:
    """Plain sample numbers, and the epoch that they carry; negative ones count from the end.

    Raises:
        UsageError: They carry several epochs.
    """
    array = np.asarray(numbers, np.int64)
    epochs = np.unique(np.where(array < 0, 0, array >> EPOCH_BIT))
    if len(epochs) > 1:
        raise UsageError(
            f"one batch was requested with samples of the epochs {epochs.tolist()}",
            expected="samples of one epoch",
            next_step="Use make_loader, or numbers from 0 to len(dataset) - 1",
        )
    plain = np.where(array < 0, array + samples, array & ((1 << EPOCH_BIT) - 1))
    return plain.tolist(), int(epochs[0]) if len(epochs) else 0


class LazyBatch:
    """A requested batch, made at first use: as a whole, or row by row for other collate functions."""

    def __init__(self, dataset: SampleDataset, numbers: Sequence[int]) -> None:
        self._maker = dataset.maker
        self._batch: LoadedBatch | None = None
        self._indices: Indices = ()
        self._epoch = 0
        self._failed: FailedBatch | None = None
        try:  # the first batch of a process opens the file
            self._indices, self._epoch = split_numbers(numbers, len(dataset))
        except ResourceError as error:
            if get_worker_info() is None:
                raise
            self._failed = FailedBatch(error)  # torch would wrap the error in a traceback

    def deliver(self) -> Delivered:
        """Return the whole batch, ready to send."""
        if self._failed is not None:
            return self._failed
        return deliver(self._maker, self._indices, self._epoch)

    def __len__(self) -> int:
        return len(self._whole()["index"])

    def __getitem__(self, row: int) -> Item:
        batch, row = self._whole(), range(len(self))[row]
        borders = {offsets_of(name) for name in batch} & batch.keys()
        found = {}
        for name, tensor in batch.items():
            if (offsets := offsets_of(name)) in borders:
                start, stop = batch[offsets][row : row + 2].tolist()
                found[name] = tensor[start:stop]
            elif name not in borders and not name.endswith("_parts"):
                found[name] = tensor[row]
        return found

    def _whole(self) -> LoadedBatch:
        if self._batch is None:
            with one_thread():
                batch = self._maker.make(self._indices, self._epoch)
            self._batch = to_tensors(batch.arrays, batch.faults)
        return self._batch


def collate(rows: LazyBatch) -> Delivered:
    """Return the batch of these rows, without stacking them, for `DataLoader(collate_fn=...)`."""
    return rows.deliver()
