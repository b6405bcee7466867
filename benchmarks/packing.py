"""How others pack: re-statements, one process, files in order.

Each takes paths and labels and writes one output: the HDF5 and the Arrow method of the Jülich course, and
webdataset's ShardWriter. They are written as their authors teach them, slow spots included.

The trap in the HDF5 one is `np.array(list(image))`, which makes a Python integer of each byte. Notebook 04
measures that line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smallfiles.measure.methods import Method, read_file


def juelich_hdf5(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Variable-length rows, each through a list of Python integers."""
    import h5py

    with h5py.File(out, "w") as file:
        group = file.create_group("train")
        images = group.create_dataset("images", (len(paths),), dtype=h5py.vlen_dtype(np.uint8))
        targets = group.create_dataset("targets", (len(paths),), dtype=np.int16)
        for index, (path, label) in enumerate(zip(paths, labels, strict=True)):
            images[index] = np.array(list(read_file(path)), dtype=np.uint8)
            targets[index] = label


def juelich_arrow(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """One record batch a row."""
    import pyarrow as pa

    schema = pa.schema([("image_data", pa.binary()), ("label", pa.uint16())])
    with pa.OSFile(str(out), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for path, label in zip(paths, labels, strict=True):
            columns = [pa.array([read_file(path)], pa.binary()), pa.array([label], pa.uint16())]
            writer.write(pa.record_batch(columns, schema=schema))


def webdataset_shards(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """The writer of the webdataset package, with its own defaults for shard size."""
    import webdataset

    out.mkdir()
    with webdataset.ShardWriter(str(out / "%06d.tar"), verbose=0) as sink:
        for index, (path, label) in enumerate(zip(paths, labels, strict=True)):
            sink.write({"__key__": f"{index:08d}", "jpg": read_file(path), "cls": label})


METHODS: dict[str, Method] = {
    "Jülich HDF5": juelich_hdf5,
    "Jülich Arrow": juelich_arrow,
    "webdataset": webdataset_shards,
}
"""By the name that the records carry."""

MODULES = {"Jülich HDF5": "h5py", "Jülich Arrow": "pyarrow", "webdataset": "webdataset"}
"""What a method imports; done before its clock starts."""
