"""How others pack: re-statements, one process, files in order, and the writers of others.

Each takes paths and labels and writes one output. They are written as their authors teach them, slow spots
included: the HDF5 and the Arrow method of the Jülich course, Aalto's ImageNetTools (shards in random order, a
list of positions beside them), cortx_pytorch (pictures decoded and encoded again), and the writers of
webdataset, LitData, MosaicML Streaming, Hugging Face datasets, Lance, Parquet and FFCV with the bytes as they
are.

The trap in the HDF5 one is `np.array(list(image))`, which makes a Python integer of each byte. Notebook 04
measures that line.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import needed
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


def aalto_shards(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Aalto's ImageNetTools: all samples in random order, labels as text, a list of where each one went."""
    import webdataset

    out.mkdir()
    positions = {}
    with webdataset.ShardWriter(str(out / "%01d.tar"), maxcount=100_000, maxsize=3e9, verbose=0) as sink:
        for index in np.random.permutation(len(paths)):
            path, before = Path(paths[index]), (sink.fname, sink.size)
            key = f"{path.parent.name}/{path.stem}"
            sink.write({"__key__": key, "img": read_file(str(path)), "cls": str(labels[index])})
            position = before[1] if sink.fname == before[0] else 0
            positions[str(path)] = {"targetFile": sink.fname, "position": position}
    (out / "FileInfo.json").write_text(json.dumps(positions), encoding="utf-8")


def cortx_shards(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """cortx_pytorch: a torchvision data set gives pictures, and webdataset's writer encodes them again."""
    import webdataset
    from PIL import Image

    out.mkdir()
    with webdataset.ShardWriter(str(out / "%06d.tar"), maxcount=100_000, maxsize=1e8, verbose=0) as sink:
        for index, (path, label) in enumerate(zip(paths, labels, strict=True)):
            picture = Image.open(io.BytesIO(read_file(path))).convert("RGB")
            sink.write({"__key__": f"{index:08d}", "jpg": picture, "cls": label})


def _sample(index: int, paths: Sequence[str], labels: Sequence[int]) -> dict[str, Any]:
    return {"image": read_file(paths[index]), "label": int(labels[index])}


def litdata_chunks(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """LitData's `optimize`, with one worker and chunks of 64 MB, which it writes elsewhere first."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{out}.aside"
    each = partial(_sample, paths=paths, labels=labels)
    more = {"chunk_bytes": "64MB", "num_workers": 1, "start_method": "fork", "verbose": False}
    needed("litdata").optimize(each, list(range(len(paths))), str(out), **more)


def streaming_shards(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """The MDSWriter of MosaicML Streaming, with its own defaults."""
    columns = {"image": "bytes", "label": "int"}
    with needed("streaming").MDSWriter(out=str(out), columns=columns) as sink:
        for index in range(len(paths)):
            sink.write(_sample(index, paths, labels))


def huggingface_arrow(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Hugging Face datasets from a generator; the Arrow file of its cache is what is read later."""
    datasets = needed("datasets")
    datasets.disable_progress_bars()
    columns = {"image": datasets.Value("binary"), "label": datasets.Value("int64")}

    def samples() -> Iterator[dict[str, Any]]:
        return (_sample(index, paths, labels) for index in range(len(paths)))

    features = datasets.Features(columns)
    made = datasets.Dataset.from_generator(samples, features=features, cache_dir=str(out))
    assert len(made) == len(paths)


def _tables(paths: Sequence[str], labels: Sequence[int], rows: int) -> Iterator[Any]:
    """Tables of at most so many samples, so that a writer needs no room for all of them."""
    import pyarrow as pa

    schema = pa.schema({"image": pa.large_binary(), "label": pa.int64()})
    for at in range(0, len(paths), rows):
        some = range(at, min(at + rows, len(paths)))
        yield pa.Table.from_pylist([_sample(index, paths, labels) for index in some], schema)


def lance_dataset(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Lance's writer with its defaults: one fragment."""
    import pyarrow as pa

    tables = _tables(paths, labels, 1024)
    first = next(tables)
    batches = (batch for table in chain([first], tables) for batch in table.to_batches())
    needed("lance").write_dataset(pa.RecordBatchReader.from_batches(first.schema, batches), str(out))


PARQUET_FILES = 16
"""At least one for each worker: `datasets` gives whole files to them, as webdataset does."""
SMALL_GROUP = 8
"""Samples of a small row group: less than a megabyte is read for one sample."""


def parquet_files(paths: Sequence[str], labels: Sequence[int], out: Path, small: bool = False) -> None:
    """The writer of pyarrow with its defaults, or with small row groups that are not compressed again."""
    import pyarrow.parquet as pq

    out.mkdir()
    tuned: dict[str, Any] = {"row_group_size": SMALL_GROUP, "compression": "none", "use_dictionary": False}
    for number, table in enumerate(_tables(paths, labels, -(-len(paths) // PARQUET_FILES))):
        pq.write_table(table, out / f"{number:05d}.parquet", **tuned if small else {})


def zarr_shards(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """The zarr library: the bytes of all samples one after the other, in shards, and their borders."""
    zarr = needed("zarr")
    root, whole = zarr.create_group(out), [np.frombuffer(read_file(path), np.uint8) for path in paths]
    root.create_array("offsets", data=np.cumsum([0, *map(len, whole)]))
    root.create_array("labels", data=np.asarray(labels))
    data = np.concatenate(whole)
    root.create_array("data", data=data, chunks=(128 << 10,), shards=(64 << 20,), compressors=None)


class _Samples:
    """What FFCV's writer takes: bytes and labels by number."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int]) -> None:
        self._paths, self._labels = paths, labels

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.frombuffer(read_file(self._paths[index]), np.uint8), self._labels[index]


def ffcv_bytes(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """FFCV's writer with the bytes as they are, which its loader cannot make pictures of."""
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter

    writer = DatasetWriter(str(out), {"image": BytesField(), "label": IntField()}, num_workers=1)
    writer.from_indexed_dataset(_Samples(paths, labels))


METHODS: dict[str, Method] = {
    "Jülich HDF5": juelich_hdf5,
    "Jülich Arrow": juelich_arrow,
    "Aalto shards": aalto_shards,
    "cortx_pytorch's method": cortx_shards,
    "webdataset": webdataset_shards,
    "LitData": litdata_chunks,
    "MosaicML Streaming": streaming_shards,
    "Hugging Face datasets": huggingface_arrow,
    "Zarr": zarr_shards,
    "Lance": lance_dataset,
    "Parquet": parquet_files,
    "Parquet, small row groups": partial(parquet_files, small=True),
    "FFCV, bytes": ffcv_bytes,
}
"""By the name that the records carry."""

WAITING = ("Jülich Arrow", "Aalto shards", "webdataset")
"""Those that wait for one file after the other, and for nothing else."""

PACKAGES = ("webdataset", "litdata", "mosaicml-streaming", "datasets", "zarr", "pylance", "ffcv", "pillow")
"""Whose versions records tell."""

_MODULES = {
    "Jülich HDF5": "h5py",
    "Jülich Arrow": "pyarrow",
    "LitData": "litdata",
    "MosaicML Streaming": "streaming",
    "Hugging Face datasets": "datasets",
    "Zarr": "zarr",
    "Lance": "lance",
    "Parquet": "pyarrow.parquet",
    "Parquet, small row groups": "pyarrow.parquet",
    "FFCV, bytes": "ffcv.writer",
}


def module_of(name: str) -> str:
    """What a method imports."""
    return _MODULES.get(name, "webdataset")


def prepare(name: str) -> None:
    """Import what a method needs, before its clock starts."""
    needed(module_of(name))
