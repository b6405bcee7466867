"""The pictures of a packed file, laid out as the loaders of others want them.

The bytes are the same everywhere but in FFCV's file: it encodes JPEGs again, with the quality that gives
the same mean size, and it stores pixels as they are.

The trap: webdataset gives whole shards to its workers, so a set in one shard keeps one worker busy and
the others idle. Here there are four for each. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, TypeAlias

import numpy as np

from benchmarks import missing, needed
from benchmarks.batch_decoders import quality_of
from benchmarks.packing import (
    cortx_shards,
    huggingface_arrow,
    juelich_arrow,
    lance_dataset,
    litdata_chunks,
    parquet_files,
    streaming_shards,
    zarr_shards,
)
from smallfiles.images import decode
from smallfiles.measure.bench import Target
from smallfiles.measure.loading import first_of
from smallfiles.measure.methods import Method
from smallfiles.measure.protocol import attempt
from smallfiles.measure.scratch import memory_folder
from smallfiles.measure.workers import Job, WorkerPool, WorkerState, WorkFailed
from smallfiles.progress import progress
from smallfiles.samples import Reader

Maker: TypeAlias = Callable[[Reader, Path], None]
"""Lays pictures out as a loader of others wants them."""

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


def packed(method: Method) -> Maker:
    """What a way of packing makes of the files."""

    def write(reader: Reader, out: Path) -> None:
        method(*listed(out.parent), out)

    return write


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


def tree(reader: Reader, out: Path) -> None:
    """A tar of the folders of classes, for ratarmount."""
    shutil.make_archive(str(out.with_suffix("")), "tar", out.parent / FILES)


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount the tar of a folder of material with ratarmount while the block runs."""
    program = shutil.which("ratarmount", path=sysconfig.get_path("scripts")) or shutil.which("ratarmount")
    if program is None or not os.access("/dev/fuse", os.W_OK):
        why = missing(["ratarmount"]) or "/dev/fuse cannot be written: ask for FUSE, or run as root"
        raise WorkFailed(why)
    with TemporaryDirectory() as place:
        command = [program, "-f", "--index-file", ":memory:", str(folder / "tree.tar"), place]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = monotonic() + 60
            while not os.path.ismount(place):
                if process.poll() is not None or monotonic() > until:
                    raise WorkFailed("ratarmount did not mount the tar")
                sleep(0.05)
            yield Path(place)
        finally:
            process.terminate()  # it unmounts
            process.wait()


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
        fields, writer = needed("ffcv.fields"), needed("ffcv.writer")
        some = [bytes(reader.read(index)) for index in range(min(20, len(reader)))]
        how = {"write_mode": "raw"} if raw else {"write_mode": "jpg", "jpeg_quality": quality_of(some)}
        columns = {"image": fields.RGBImageField(**how), "label": fields.IntField()}
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            writer.DatasetWriter(str(out), columns, num_workers=1).from_indexed_dataset(_Decoded(reader))

    return write


MATERIAL: dict[str, Maker] = {
    FILES: files,
    "juelich.arrow": packed(juelich_arrow),
    "juelich.h5": hdf5,
    "shards": shards,
    "cortx": packed(cortx_shards),
    "litdata": packed(litdata_chunks),
    "streaming": packed(streaming_shards),
    "huggingface": packed(huggingface_arrow),
    "zarr": packed(zarr_shards),
    "lance": packed(lance_dataset),
    "parquet": packed(parquet_files),
    "parquet_small": packed(partial(parquet_files, small=True)),
    "tree.tar": tree,
    "jpeg.beton": _beton(raw=False),
    "raw.beton": _beton(raw=True),
}
"""By the name of the file or folder; the first is what others are made from."""


@contextlib.contextmanager
def laid_out(target: Target, names: Iterable[str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder beside a packed file with its pictures in these layouts, and why some of them are missing.

    Args:
        target: Whose pictures.
        names: Keys of `MATERIAL`. Files are made too, unless pictures are raw; others are made from them.
    """
    wanted = {*names, *([FILES] if names and not target.kind.startswith("raw") else [])}
    order = [name for name in MATERIAL if name in wanted]
    unmade: dict[str, str] = {}
    with memory_folder(target.bytes * len(order), target.path.parent) as folder:
        with (
            progress(len(order), "laying out files for others", unit="layouts") as shown,
            WorkerPool() as pool,
        ):
            for name in order:
                job: dict[object, Job] = {"maker": partial(_made, name, target, folder)}
                attempt(name, partial(pool.run, job, target.samples), unmade)
                shown.advance()
        yield folder, unmade


def _made(name: str, target: Target, folder: Path, place: WorkerState) -> None:
    """In a process of its own, since a writer of others may take its process with it."""
    MATERIAL[name](first_of(target), folder / name)
