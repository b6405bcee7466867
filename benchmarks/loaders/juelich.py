"""The loaders of the Jülich course, said again in our own words: plain files, Arrow, HDF5.

Their datasets hand the bytes of one sample to Pillow, make a float tensor of the whole picture, and scale
that: `ToTensor`, then `Resize`. Batches are float32.

The trap is that order: scaling floats of a whole picture costs more than decoding it. Notebook 08 measures
it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from benchmarks.loaders.material import FILES, listed
from benchmarks.loaders.peer import Peer, Setting, data_loader
from smallfiles.measure.loading.steps import Epoch

SIDE = 256
Open = Callable[[Path], "JuelichSet"]


class JuelichSet(Dataset[tuple[Any, int]]):
    """What their three datasets share: Pillow, then a float tensor, then its size."""

    def __init__(self) -> None:
        from torchvision import transforms

        steps = [transforms.ToTensor(), transforms.Resize((SIDE, SIDE), antialias=True)]
        self._transform = transforms.Compose(steps)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        data, label = self.item(index)
        with Image.open(io.BytesIO(data)) as picture:
            return self._transform(picture.convert("RGB")), label

    def item(self, index: int) -> tuple[bytes, int]:
        """Bytes and label of one sample."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class OfFiles(JuelichSet):
    """A list of paths and labels, as their JSON gives it; a file is opened at each item."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._paths, self._labels = listed(folder)

    def item(self, index: int) -> tuple[bytes, int]:
        """Bytes and label of one sample."""
        with open(self._paths[index], "rb") as file:  # noqa: PTH123 - as they do
            return file.read(), self._labels[index]

    def __len__(self) -> int:
        return len(self._paths)


class OfArrow(JuelichSet):
    """A record batch a row, opened at the first item."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path, self._reader = folder / "juelich.arrow", None
        self._count = len(listed(folder)[0])

    def item(self, index: int) -> tuple[bytes, int]:
        """Bytes and label of one sample."""
        import pyarrow as pa

        if self._reader is None:
            self._reader = pa.ipc.open_file(pa.OSFile(str(self._path), "rb"))
        row = self._reader.get_batch(index)  # type: ignore[attr-defined]
        return row["image_data"][0].as_py(), row["label"][0].as_py()

    def __len__(self) -> int:
        return self._count


class OfHDF5(JuelichSet):
    """Rows of variable length, opened at the first item."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path, self._group = folder / "juelich.h5", None
        self._count = len(listed(folder)[0])

    def item(self, index: int) -> tuple[bytes, int]:
        """Bytes and label of one sample."""
        import h5py

        if self._group is None:
            self._group = h5py.File(self._path, "r")["train"]
        group: Any = self._group
        return group["images"][index].tobytes(), int(group["targets"][index])

    def __len__(self) -> int:
        return self._count


def _start(dataset: Open) -> Callable[[Setting], contextlib.AbstractContextManager[Epoch]]:
    @contextlib.contextmanager
    def start(setting: Setting) -> Iterator[Epoch]:
        loader = data_loader(dataset(setting.folder), setting, shuffle=True)
        yield lambda: (len(labels) for _, labels in loader)

    return start


PEERS = (
    Peer("Jülich, files", FILES, _start(OfFiles), ("torchvision",)),
    Peer("Jülich, Arrow", "juelich.arrow", _start(OfArrow), ("torchvision",)),
    Peer("Jülich, HDF5", "juelich.h5", _start(OfHDF5), ("torchvision",)),
)
