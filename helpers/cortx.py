"""The interface of cortx_pytorch: programs written for it run with only the import changed.

    client = make_client(URL, ACCESS_KEY, SECRET_KEY)
    upload_cv_dataset(ImageFolder("train"), client, "course", "train", maxsize=1e8, maxcount=1e4, workers=8)

    dataset = RemoteDataset(client, "course", "train").decode("pil").to_tuple("jpg;png", "cls").batched(64)
    for images, labels in DataLoader(dataset, num_workers=4, batch_size=None): …

It is built on this package: files keep their bytes, an upload is verified, each sample comes once per epoch
over all ranks and workers, and each epoch has another order. PyTorch draws the epoch at each pass, as it does
for its own shuffling (`torch.manual_seed` repeats it). Ranks draw independently of each other, so with
several ranks `dataset.set_epoch(epoch)` must come before each pass.

The trap: keys in such a program are in its history too; without them `make_client(URL)` takes those of the
environment. Notebook 09 compares the two.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from PIL import Image
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from smallfiles.errors import FormatError, UsageError
from smallfiles.formats.tar import Options
from smallfiles.formats.tar.grouping import DATA_SUFFIXES
from smallfiles.loading.plan import EpochPlan, stream_fields
from smallfiles.loading.stream import Window
from smallfiles.machine.ranks import Ranks, ranks
from smallfiles.objectstore.access import Keys, StoreUrl, TransferConfig
from smallfiles.objectstore.client import Store
from smallfiles.objectstore.streaming import RemoteTar
from smallfiles.objectstore.streaming import open as open_shards
from smallfiles.objectstore.transfer import push
from smallfiles.pack import PackConfig, pack
from smallfiles.samples import Buffer
from smallfiles.sources import from_dataset

Item: TypeAlias = Any
Step: TypeAlias = Callable[[Item], Item]
_BUFFER = 1000
_NO_EPOCH = (
    "several ranks read a RemoteDataset without set_epoch, so each pass has the same order: "
    "call dataset.set_epoch(epoch) before each pass"
)


@dataclass(frozen=True)
class Client:
    """A server and access keys.

    Args:
        endpoint: URL of the server; empty takes that of the environment.
        keys: Access keys; None takes those of the environment.
    """

    endpoint: str = ""
    keys: Keys | None = field(default=None, repr=False)

    def store(self, bucket: str, folder: str) -> Store:
        """The objects of a folder in a bucket."""
        return Store(StoreUrl.parse(f"s3://{bucket}/{folder}"), endpoint=self.endpoint, keys=self.keys)


def make_client(url: str = "", access_key: str = "", secret_key: str = "") -> Client:
    """Choose the server and the keys.

    Args:
        url: URL of the server; empty takes that of the environment.
        access_key: Better left to the environment or a profile of the AWS tools.
        secret_key: Likewise.
    """
    if bool(access_key) != bool(secret_key):
        raise UsageError(
            "only one of access_key and secret_key was given",
            expected="both or none",
            next_step="Leave both out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    return Client(url, Keys(access_key, secret_key) if access_key else None)


def upload_cv_dataset(
    dataset: Any,
    client: Client,
    bucket: str,
    base_folder: str,
    maxsize: float = 1e8,
    maxcount: float = 100_000,
    workers: int = 8,
) -> None:
    """Pack a data set of torchvision's kind into shards, in random order, and push them.

    The shards are written to the folder of temporary files and removed after the push: set `TMPDIR` to a
    folder that has room for the data set.

    Args:
        dataset: Gives (picture, label); see `sources.from_dataset`.
        client: From `make_client`.
        bucket: Where to.
        base_folder: Beginning of the names of all objects.
        maxsize: Bytes of a shard, at most.
        maxcount: Samples of a shard, at most.
        workers: Requests in flight.

    Raises:
        SmallfilesError: It cannot be packed or sent; run it again, and what is there already is kept.
    """
    options = Options(max_bytes=int(maxsize), max_count=int(maxcount))
    with TemporaryDirectory(prefix="smallfiles-") as folder:
        out = Path(folder) / "data.tars"
        pack(from_dataset(dataset), out, PackConfig(options=options, shuffle=0))
        push(out, client.store(bucket, base_folder), config=TransferConfig(workers=workers))


class RemoteDataset(IterableDataset[Item]):
    """The samples of pushed shards, for a plain `DataLoader` with `batch_size=None`.

    A sample is a dict with the suffix of its file (`jpg`, `png`, …), `cls` and `__key__`, until `to_tuple`.

    Args:
        client: From `make_client`.
        bucket: Where the shards are.
        folder: Beginning of their names.
    """

    def __init__(self, client: Client, bucket: str, folder: str) -> None:
        self.reader: RemoteTar = open_shards(client.store(bucket, folder))
        self._batch = 0
        self._steps: tuple[Step, ...] = ()
        epoch: Any = torch.tensor(-1)
        self._epoch = epoch.share_memory_()  # so that persistent workers see it change
        self._drawn = (-1, 0)
        self._ranks: Ranks | None = None  # of the trainer, in a worker that it started with an empty memory

    def decode(self, kind: str = "pil") -> RemoteDataset:
        """Decode images: PIL, in RGB."""
        if kind != "pil":
            raise UsageError(
                f"decode got {kind!r}",
                expected="'pil'",
                next_step="Convert images in map_tuple",
            )
        return self._with(_decoded)

    def to_tuple(self, *names: str) -> RemoteDataset:
        """Select fields of each sample; `jpg;png` selects the first of the two that it has."""
        return self._with(partial(_fields, names))

    def map_tuple(self, *functions: Step) -> RemoteDataset:
        """Apply a function to each field of a tuple."""
        return self._with(partial(_mapped, functions))

    def batched(self, size: int) -> RemoteDataset:
        """Make batches, with fields stacked as `DataLoader` does it."""
        if size < 1:
            raise UsageError(f"batched got {size}", expected="1 or more", next_step="Choose another size")
        found = self._with()
        found._batch = size
        return found

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of all passes until the next call; data sets derived before keep theirs."""
        self._epoch.fill_(epoch)

    def _with(self, *steps: Step) -> RemoteDataset:
        if self._batch:
            raise UsageError(
                "another step follows batched",
                expected="batched as the last step",
                next_step="Move batched to the end",
            )
        derived = RemoteDataset.__new__(RemoteDataset)
        derived.__setstate__(
            self.__dict__ | {"_steps": (*self._steps, *steps), "_epoch": self._epoch.clone()}
        )
        return derived

    def __iter__(self) -> Iterator[Item]:
        info, here = get_worker_info(), self._ranks or ranks()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        epoch = self._pass(here.world_size, info)
        plan = EpochPlan(
            samples=len(self.reader),
            batch=self._batch or 1,
            seed=0,
            rank=here.rank,
            world_size=here.world_size,
            streams=count,
            **stream_fields(self.reader, _BUFFER),
        )
        plan.check_batches(self.reader)
        reads, emits = (order.tolist() for order in plan.stream(epoch, number))
        window = Window(self.reader, reads, emits, plan.buffer, 0)
        for start in range(0, len(emits), plan.batch):
            items = [self._made(window, index) for index in emits[start : start + plan.batch]]
            yield default_collate(items) if self._batch else items[0]

    def _pass(self, world_size: int, info: Any) -> int:
        """The epoch of the pass that begins: the same in all its workers, and another one in each pass."""
        if (epoch := int(self._epoch)) >= 0:
            return epoch
        if world_size > 1:
            if info is None or info.id == 0:
                warnings.warn(_NO_EPOCH, stacklevel=3)
            return 0
        if info is None:
            return int(torch.empty((), dtype=torch.int64).random_())
        drawn = int(info.seed - info.id)  # by the DataLoader, once for persistent workers
        self._drawn = (drawn, self._drawn[1] + 1 if self._drawn[0] == drawn else 0)
        return drawn + self._drawn[1]

    def _made(self, window: Window, index: int) -> Item:
        ((data,),) = window.read_fields([index], [""])
        item: Item = _as_dict(self.reader.key(index), data, self.reader.target(index))
        for step in self._steps:
            item = step(item)
        return item

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            for step in self._steps:
                _refuse_unpicklable(step)
            return self.__dict__ | {"_ranks": ranks()}
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._epoch.share_memory_()  # the tensor of a copy is not shared with workers yet


def _as_dict(key: str, data: Buffer, target: int | list[str]) -> dict[str, Any]:
    suffix = key.rpartition(".")[2].lower()
    field = "jpg" if suffix == "jpeg" else suffix
    return {"__key__": key, field: data, "cls" if isinstance(target, int) else "json": target}


def _decoded(sample: dict[str, Any]) -> dict[str, Any]:
    found = dict(sample)
    for name, value in sample.items():
        if f".{name}" in DATA_SUFFIXES:
            try:
                found[name] = Image.open(io.BytesIO(value)).convert("RGB")
            except (OSError, ValueError) as error:
                raise FormatError(
                    f"{sample['__key__']} cannot be decoded ({error})",
                    expected="a complete image",
                    next_step="Replace it, then pack and push again",
                ) from error
    return found


def _fields(names: tuple[str, ...], sample: dict[str, Any]) -> tuple[Any, ...]:
    found = []
    for wanted in names:
        there = [name for name in wanted.split(";") if name in sample]
        if not there:
            raise UsageError(
                f"{sample['__key__']} has no {wanted}",
                expected=f"one of {', '.join(name for name in sample if name != '__key__')}",
                next_step="Use these names in to_tuple",
            )
        found.append(sample[there[0]])
    return tuple(found)


def _mapped(functions: tuple[Step, ...], item: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(function(value) for function, value in zip(functions, item, strict=True))


def _refuse_unpicklable(step: Step) -> None:
    """Raise an error that names a function which cannot be sent to a new process."""
    for function in (*(step.args[0] if isinstance(step, partial) else ()), step):
        try:
            pickle.dumps(function)
        except Exception:
            name = getattr(function, "__qualname__", type(function).__name__)
            raise UsageError(
                f"{name}, given to map_tuple, cannot be sent to a new worker process",
                expected="a function with a name in a module, for spawn and forkserver",
                next_step="Write it with def, or give the DataLoader multiprocessing_context='fork'",
            ) from None
