"""What most people write: a data set of others with Pillow, in a `DataLoader`.

torchvision's ImageFolder, webdataset, LitData, MosaicML Streaming, Hugging Face datasets (of Arrow, and
streams of Parquet), Lance, and ImageFolder on a tar that ratarmount mounts. All make a random resized crop,
mirrored half of the time, of uint8; Pillow's bilinear is antialiased. ImageFolder is measured with
TorchCodec's decoder too. Aalto's and cortx_pytorch's trainings read their shards by webdataset, and hand
floats to the model, as they did.

The trap: webdataset's default for several nodes is an error, and shards that are fewer than the workers
leave some idle. Notebook 05 teaches both.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import needed
from benchmarks.loaders.material import FILES, mounted
from benchmarks.loaders.peer import Peer, Setting, Start, data_loader, workers_of
from smallfiles.measure.loading.steps import Epoch
from smallfiles.measure.methods import read_file

_BUFFER = 1000
_AALTO_BUFFER = 5000


def _transform(size: int, *last: Any) -> Any:
    from torchvision import transforms

    return transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), *last])


def _as_uint8(size: int) -> Any:
    from torchvision import transforms

    return _transform(size, transforms.PILToTensor())


def _as_floats(size: int, normalised: bool) -> Any:
    from torchvision import transforms

    means = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return _transform(size, transforms.ToTensor(), *[means] * normalised)


def _codec(path: str) -> Any:
    return needed("torchcodec.decoders").decode_jpeg(read_file(path))


def _torchvision(codec: bool) -> Start:
    @contextlib.contextmanager
    def start(setting: Setting) -> Iterator[Epoch]:
        from torchvision.datasets import ImageFolder

        how = {"transform": _transform(setting.size), "loader": _codec}
        how = how if codec else {"transform": _as_uint8(setting.size)}
        loader = data_loader(ImageFolder(str(setting.folder / FILES), **how), setting, shuffle=True)
        yield lambda: (len(labels) for _, labels in loader)

    return start


def _webdataset(material: str, buffer: int, transform: Any) -> Start:
    @contextlib.contextmanager
    def start(setting: Setting) -> Iterator[Epoch]:
        import webdataset

        shards = sorted(str(path) for path in (setting.folder / material).glob("*.tar"))
        samples = webdataset.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
        samples = samples.shuffle(buffer) if buffer else samples
        changed = samples.decode("pil").to_tuple("jpg;png", "cls").map_tuple(transform(setting.size), int)
        loader = data_loader(changed.batched(setting.batch), setting, batch_size=None)
        yield lambda: (len(labels) for _, labels in loader)

    return start


class Changed:
    """From a stored sample to a picture that a model takes, and its label."""

    def __init__(self, size: int) -> None:
        self._transform = _as_uint8(size)

    def __call__(self, sample: Mapping[str, Any]) -> tuple[Any, int]:
        """One sample."""
        from PIL import Image

        with Image.open(io.BytesIO(sample["image"])) as picture:
            return self._transform(picture.convert("RGB")), int(sample["label"])

    def columns(self, found: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Several samples, as Hugging Face datasets hand them over."""
        rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        pictures, labels = zip(*map(self, rows), strict=True)
        return {"image": list(pictures), "label": list(labels)}


@contextlib.contextmanager
def _litdata(setting: Setting) -> Iterator[Epoch]:
    litdata = needed("litdata")
    dataset = litdata.StreamingDataset(
        str(setting.folder / "litdata"), shuffle=True, transform=Changed(setting.size)
    )
    loader = litdata.StreamingDataLoader(dataset, **workers_of(setting))
    yield lambda: (len(labels) for _, labels in loader)


@contextlib.contextmanager
def _streaming(setting: Setting) -> Iterator[Epoch]:
    stored: Any = needed("streaming").StreamingDataset

    class Pictures(stored):  # type: ignore[misc]
        changed = Changed(setting.size)

        def __getitem__(self, at: Any) -> Any:
            return self.changed(super().__getitem__(at))

    place = str(setting.folder / "streaming")
    loader = data_loader(Pictures(local=place, shuffle=True, batch_size=setting.batch), setting)
    yield lambda: (len(labels) for _, labels in loader)


def of_huggingface(folder: Path) -> Any:
    """The data set of Hugging Face in a folder of material."""
    (path,) = (folder / "huggingface").rglob("*.arrow")
    return needed("datasets").Dataset.from_file(str(path))


@contextlib.contextmanager
def _huggingface(setting: Setting) -> Iterator[Epoch]:
    dataset = of_huggingface(setting.folder).with_transform(Changed(setting.size).columns)
    loader = data_loader(dataset, setting, shuffle=True)
    yield lambda: (len(batch["label"]) for batch in loader)


class _Lance:
    """Makes batches of what Lance's own data set gives; sent to workers that are spawned."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed: Changed | None = None  # a worker makes its own

    def __call__(self, samples: list[Mapping[str, Any]]) -> Any:
        from torch.utils.data import default_collate

        self._changed = self._changed or Changed(self._size)
        return default_collate([self._changed(sample) for sample in samples])


@contextlib.contextmanager
def _lance(setting: Setting) -> Iterator[Epoch]:
    data = needed("lance.torch.data")
    how = {**workers_of(setting), "shuffle": True, "collate_fn": _Lance(setting.size)}
    del how["multiprocessing_context"]  # Lance cannot be used after a fork, so its loader spawns
    loader = data.get_safe_loader(data.SafeLanceDataset(str(setting.folder / "lance")), **how)
    yield lambda: (len(labels) for _, labels in loader)


def _parquet(material: str) -> Start:
    @contextlib.contextmanager
    def start(setting: Setting) -> Iterator[Epoch]:
        files = sorted(str(path) for path in (setting.folder / material).glob("*.parquet"))
        stream = needed("datasets").load_dataset("parquet", data_files=files, split="train", streaming=True)
        changed = Changed(setting.size)
        mixed = stream.shuffle(seed=0, buffer_size=_BUFFER).map(
            changed.columns, batched=True, batch_size=setting.batch
        )
        loader = data_loader(mixed, setting)
        yield lambda: (len(batch["label"]) for batch in loader)

    return start


@contextlib.contextmanager
def _ratarmount(setting: Setting) -> Iterator[Epoch]:
    from torchvision.datasets import ImageFolder

    with mounted(setting.folder) as tree:
        data = ImageFolder(str(tree), transform=_as_uint8(setting.size))
        loader = data_loader(data, setting, shuffle=True)
        yield lambda: (len(labels) for _, labels in loader)


_TV = ("torchvision",)
_UINT8 = _webdataset("shards", _BUFFER, _as_uint8)
_AALTO = _webdataset("shards", _AALTO_BUFFER, partial(_as_floats, normalised=True))
_CORTX = _webdataset("cortx", 0, partial(_as_floats, normalised=False))
_SMALL = _parquet("parquet_small")

PEERS = (
    Peer("torchvision ImageFolder, antialias", FILES, _torchvision(False), _TV),
    Peer("ImageFolder + TorchCodec, antialias", FILES, _torchvision(True), (*_TV, "torchcodec")),
    Peer("webdataset + Pillow, antialias", "shards", _UINT8, ("webdataset",)),
    Peer("Aalto's training, antialias", "shards", _AALTO, ("webdataset",)),
    Peer("cortx_pytorch's training, antialias", "cortx", _CORTX, ("webdataset",)),
    Peer("LitData + Pillow, antialias", "litdata", _litdata, ("litdata",)),
    Peer("MosaicML Streaming + Pillow, antialias", "streaming", _streaming, ("streaming",)),
    Peer("Hugging Face datasets + Pillow, antialias", "huggingface", _huggingface, ("datasets",)),
    Peer("Lance + Pillow, antialias", "lance", _lance, ("lance.torch.data",)),
    Peer("Parquet + Pillow, antialias", "parquet", _parquet("parquet"), ("datasets",)),
    Peer("Parquet, small groups + Pillow, antialias", "parquet_small", _SMALL, ("datasets",)),
    Peer("ImageFolder through ratarmount, antialias", "tree.tar", _ratarmount, (*_TV, "ratarmount")),
)
