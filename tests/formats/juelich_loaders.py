"""What the loaders and scripts of the Jülich course do with a file, said again in our own words.

Their datasets take the number of samples from a JSON manifest and open the packed file at the first
item. Images are handed to Pillow as a byte stream; here the bytes are enough.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

Item = tuple[bytes, int]


class ArrowLoader:
    """One row a record batch: batch i is sample i."""

    def __init__(self, path: Path) -> None:
        self._path, self._reader = path, None

    def __getitem__(self, index: int) -> Item:
        if self._reader is None:
            self._reader = pa.ipc.open_file(pa.OSFile(str(self._path), "rb"))
        row = self._reader.get_batch(index)
        assert row.num_rows == 1
        return row["image_data"][0].as_py(), row["label"][0].as_py()


class HDF5Loader:
    """Group of the split; variable-length rows of bytes and their labels."""

    def __init__(self, path: Path, split: str) -> None:
        self._path, self._split, self._group = path, split, None

    def __getitem__(self, index: int) -> Item:
        if self._group is None:
            self._group = h5py.File(self._path, "r")[self._split]
        with io.BytesIO(self._group["images"][index]) as stream:
            return stream.read(), int(self._group["targets"][index])


def write_arrow(path: Path, items: Iterable[Item]) -> None:
    """The course's conversion to Arrow: a record batch for each image."""
    schema = pa.schema([("image_data", pa.binary()), ("label", pa.uint16())])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for data, label in items:
            columns = [pa.array([data], pa.binary()), pa.array([label], pa.uint16())]
            writer.write(pa.record_batch(columns, schema=schema))


def write_hdf5(path: Path, splits: Mapping[str, list[Item]], stop_after: int | None = None) -> None:
    """The course's conversion to HDF5; `stop_after` leaves it as an interrupted job would."""
    with h5py.File(path, "w") as file:
        for split, items in splits.items():
            group = file.create_group(split)
            images = group.create_dataset("images", (len(items),), dtype=h5py.vlen_dtype(np.uint8))
            targets = group.create_dataset("targets", (len(items),), dtype="int16")
            for index, (data, label) in enumerate(items[:stop_after]):
                images[index] = np.array(list(data), dtype=np.uint8)
                targets[index] = label
