"""The pictures of a packed file, laid out as the loaders of others want them.

The bytes are the same everywhere but in FFCV's file: it encodes JPEGs again, with the quality that gives
the same mean size, and it stores pixels as they are.

The trap: webdataset gives whole shards to its workers, so a set in one shard keeps one worker busy and
the others idle. Here there are four for each. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batch_decoders import quality_of
from benchmarks.loaders.peer import Maker, module
from benchmarks.packing import juelich_arrow
from smallfiles.images import decode
from smallfiles.samples import Reader

FILES = "files"
_SHARDS = 16


def label_of(reader: Reader, index: int) -> int:
    """The class of a sample; 0 where there are captions."""
    target = reader.target(index)
    return target if isinstance(target, int) else 0


def files(reader: Reader, out: Path) -> None:
    """A folder a class, a file a picture."""
    for index in range(len(reader)):
        path = out / f"{max(0, label_of(reader, index)):04d}" / f"{index:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(reader.read(index))


def listed(folder: Path) -> tuple[list[str], list[int]]:
    """Paths and labels of a folder that `files` made."""
    paths = sorted((folder / FILES).glob("*/*.jpg"))
    return [str(path) for path in paths], [int(path.parent.name) for path in paths]


def arrow(reader: Reader, out: Path) -> None:
    """The Arrow file of the Jülich course."""
    paths, labels = listed(out.parent)
    juelich_arrow(paths, labels, out)


def hdf5(reader: Reader, out: Path) -> None:
    """The HDF5 file of the Jülich course, written the quick way: the bytes are the same."""
    import h5py

    with h5py.File(out, "w") as file:
        group = file.create_group("train")
        images = group.create_dataset("images", (len(reader),), dtype=h5py.vlen_dtype(np.uint8))
        targets = group.create_dataset("targets", (len(reader),), dtype=np.int16)
        for index in range(len(reader)):
            images[index] = np.frombuffer(reader.read(index), np.uint8)
            targets[index] = label_of(reader, index)


def shards(reader: Reader, out: Path) -> None:
    """Tar files by webdataset's own writer."""
    import webdataset

    out.mkdir()
    most = -(-len(reader) // _SHARDS)
    with webdataset.ShardWriter(str(out / "%06d.tar"), maxcount=most, verbose=0) as sink:
        for index in range(len(reader)):
            sample = {"jpg": bytes(reader.read(index)), "cls": label_of(reader, index)}
            sink.write({"__key__": f"{index:07d}", **sample})


class _Decoded:
    """What FFCV's writer takes: pixels and labels by number."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return decode(self._reader.read(index)), label_of(self._reader, index)


def _beton(raw: bool) -> Maker:
    def write(reader: Reader, out: Path) -> None:
        fields, writer = module("ffcv.fields"), module("ffcv.writer")
        some = [bytes(reader.read(index)) for index in range(min(20, len(reader)))]
        how = {"write_mode": "raw"} if raw else {"write_mode": "jpg", "jpeg_quality": quality_of(some)}
        columns = {"image": fields.RGBImageField(**how), "label": fields.IntField()}
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            writer.DatasetWriter(str(out), columns, num_workers=1).from_indexed_dataset(_Decoded(reader))

    return write


MATERIAL: dict[str, Maker] = {
    FILES: files,
    "juelich.arrow": arrow,
    "juelich.h5": hdf5,
    "shards": shards,
    "jpeg.beton": _beton(raw=False),
    "raw.beton": _beton(raw=True),
}
"""By the name of the file or folder; the first is what others are made from."""
