"""What packing is measured against: re-statements of how others do it, one process, files in order.

Each takes paths and labels and writes one output: plain concatenation (the least that any packer
must do), the HDF5 and the Arrow method of the Jülich course, and webdataset's ShardWriter. They are
written as their authors teach them, slow spots included; the trap in the HDF5 one is
`np.array(list(image))`, which makes a Python integer of each byte. Notebook 04 measures that line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

Method: TypeAlias = Callable[[Sequence[str], Sequence[int], Path], None]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - making a Path costs as much as a cached open
        return file.read()


def concatenate(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Read each file, append to one file."""
    with out.open("wb") as target:
        for path in paths:
            target.write(_read(path))


def juelich_hdf5(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Variable-length rows, each through a list of Python integers."""
    import h5py

    with h5py.File(out, "w") as file:
        group = file.create_group("train")
        images = group.create_dataset("images", (len(paths),), dtype=h5py.vlen_dtype(np.uint8))
        targets = group.create_dataset("targets", (len(paths),), dtype=np.int16)
        for index, (path, label) in enumerate(zip(paths, labels, strict=True)):
            images[index] = np.array(list(_read(path)), dtype=np.uint8)
            targets[index] = label


def juelich_arrow(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """One record batch a row."""
    import pyarrow as pa

    schema = pa.schema([("image_data", pa.binary()), ("label", pa.uint16())])
    with pa.OSFile(str(out), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for path, label in zip(paths, labels, strict=True):
            columns = [pa.array([_read(path)], pa.binary()), pa.array([label], pa.uint16())]
            writer.write(pa.record_batch(columns, schema=schema))


def webdataset_shards(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """The writer of the webdataset package, with its own defaults for shard size."""
    import webdataset

    out.mkdir()
    with webdataset.ShardWriter(str(out / "%06d.tar"), verbose=0) as sink:
        for index, (path, label) in enumerate(zip(paths, labels, strict=True)):
            sink.write({"__key__": f"{index:08d}", "jpg": _read(path), "cls": label})


METHODS: dict[str, Method] = {
    "concatenation": concatenate,
    "Jülich HDF5": juelich_hdf5,
    "Jülich Arrow": juelich_arrow,
    "webdataset": webdataset_shards,
}
"""By the name that the records carry."""

MODULES = {"Jülich HDF5": "h5py", "Jülich Arrow": "pyarrow", "webdataset": "webdataset"}
"""What a method imports; done before its clock starts."""
