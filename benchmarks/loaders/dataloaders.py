"""What most people write: torchvision's ImageFolder, or webdataset, with Pillow, in a `DataLoader`.

Both with a random resized crop, mirrored half of the time, to uint8; Pillow's bilinear is antialiased.

The trap: webdataset's default for several nodes is an error, and shards that are fewer than the workers
leave some idle. Notebook 05 teaches both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.loaders.material import FILES
from benchmarks.loaders.peer import Peer, Setting
from smallfiles.measure.loading.ours import Epoch, taken

_BUFFER = 1000


def _transform(size: int) -> Any:
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return transforms.Compose(steps)


def _size(batch: Any) -> int:
    return len(batch[1])


@contextlib.contextmanager
def _torchvision(setting: Setting) -> Iterator[Epoch]:
    from torchvision.datasets import ImageFolder

    loader: DataLoader[Any] = DataLoader(
        ImageFolder(str(setting.folder / FILES), _transform(setting.size)),
        batch_size=setting.batch,
        shuffle=True,
        num_workers=setting.workers,
        prefetch_factor=setting.prefetch,
        persistent_workers=True,
    )
    yield lambda: taken(loader, _size)


@contextlib.contextmanager
def _webdataset(setting: Setting) -> Iterator[Epoch]:
    import webdataset

    shards = sorted(str(path) for path in (setting.folder / "shards").glob("*.tar"))
    samples = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(_BUFFER).decode("pil")
    changed = samples.to_tuple("jpg", "cls").map_tuple(_transform(setting.size), int)
    loader: DataLoader[Any] = DataLoader(
        changed.batched(setting.batch),
        batch_size=None,
        num_workers=setting.workers,
        prefetch_factor=setting.prefetch,
        persistent_workers=True,
    )
    yield lambda: taken(loader, _size)


PEERS = (
    Peer(
        "torchvision ImageFolder, antialias",
        FILES,
        _torchvision,
        ("torchvision",),
    ),
    Peer("webdataset + Pillow, antialias", "shards", _webdataset, ("webdataset",)),
)
