"""Raw random reads: every sample once in a random order, every byte hashed, beside data sets of others.

Ours are opened as `smallfiles bench read` opens them; others by what their authors offer for a sample by its
number. Each has a process of its own, in which it stays open. The hashes are summed up and compared with
those of the files that were packed, so nobody is quick with other bytes.

The trap: not all can do it. webdataset, DALI, SPDL and FFCV read in an order of their own; they take part in
epochs only. LitData can, but it is not made for that.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import numpy as np

from benchmarks import missing, needed
from benchmarks.loaders.material import FILES, laid_out, listed
from smallfiles import formats
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench, Target
from smallfiles.measure.methods import read_file
from smallfiles.measure.protocol import Case, Outcome, long_enough
from smallfiles.measure.reading import TOUCHED, hashed
from smallfiles.measure.record import Failed, Result
from smallfiles.measure.workers import WorkerPool, WorkerState, WorkFailed
from smallfiles.samples import Buffer

Read: TypeAlias = Callable[[int], Buffer]
WHAT = "random reads"
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "xxhash", "lmdb")
_OF_OTHERS = ("litdata", "mosaicml-streaming", "datasets", "zarr")


@dataclass(frozen=True)
class PeerSet:
    """A data set of others that gives a sample by its number.

    Args:
        material: The layout that it reads.
        open: Takes the folder that the material is in.
        modules: What it imports.
    """

    material: str
    open: Callable[[Path], Read]
    modules: tuple[str, ...] = ()


def _files(folder: Path) -> Read:
    paths, _ = listed(folder)
    return lambda index: read_file(paths[index])


def _juelich(kind: str) -> Callable[[Path], Read]:
    def opened(folder: Path) -> Read:
        found = getattr(importlib.import_module("benchmarks.loaders.juelich"), kind)(folder)
        return lambda index: found.item(index)[0]

    return opened


def _litdata(folder: Path) -> Read:
    found = needed("litdata").StreamingDataset(str(folder / "litdata"))
    return lambda index: found[index]["image"]


def _streaming(folder: Path) -> Read:
    found = needed("streaming").LocalDataset(str(folder / "streaming"))
    return lambda index: found[index]["image"]


def _huggingface(folder: Path) -> Read:
    found = importlib.import_module("benchmarks.loaders.dataloaders").of_huggingface(folder)
    return lambda index: found[index]["image"]


def _zarr(folder: Path) -> Read:
    root = needed("zarr").open_group(folder / "zarr", mode="r")
    data, borders = root["data"], root["offsets"][:].tolist()
    return lambda index: data[borders[index] : borders[index + 1]]


STORES = {
    "plain files": PeerSet(FILES, _files),
    "Jülich Arrow": PeerSet("juelich.arrow", _juelich("OfArrow")),
    "Jülich HDF5": PeerSet("juelich.h5", _juelich("OfHDF5")),
    "LitData": PeerSet("litdata", _litdata, ("litdata",)),
    "MosaicML Streaming": PeerSet("streaming", _streaming, ("streaming",)),
    "Zarr": PeerSet("zarr", _zarr, ("zarr",)),
    "Hugging Face datasets": PeerSet("huggingface", _huggingface, ("datasets",)),
}
"""By the name that the records carry."""


def bench_raw_reads(
    files: Sequence[str], paths: Mapping[str, Path], target: Target, config: BenchConfig
) -> Result:
    """Measure random reads of packed files, and of the same samples as others store them.

    Args:
        files: That were packed.
        paths: Packed files, by format.
        target: One of them, with what it holds.
        config: Rounds and seed.

    Returns:
        One record a format and a store that can run here.
    """
    bench = Bench(config, (*_PACKAGES, *_OF_OTHERS))
    absent = {name: why for name, store in STORES.items() if (why := missing(store.modules))}
    bench.failed += [Failed(WHAT, name, why) for name, why in absent.items()]
    here = {name: store for name, store in STORES.items() if name not in absent}
    order = np.random.default_rng(config.seed).permutation(target.samples).tolist()
    laid = laid_out(target, [store.material for store in here.values()])
    with laid as (folder, unmade), WorkerPool() as pool:
        wanted = hashed(lambda index: read_file(files[index]), range(len(files)))
        openers = {name: partial(_ours, name, path) for name, path in paths.items()}
        openers |= {
            name: partial(_of_others, name, folder, unmade.get(here[name].material, "")) for name in here
        }
        cases = [
            Case(name, long_enough(partial(_run, pool, name, opener, order, wanted)))
            for name, opener in openers.items()
        ]
        whole = target.samples, target.bytes
        bench.measure(WHAT, cases, place=target.path, whole=whole, touched=TOUCHED)
    return bench.result()


def _ours(format: str, path: Path) -> Read:
    return formats.open(path, format).read


def _of_others(name: str, folder: Path, unmade: str) -> Read:
    if unmade:
        raise WorkFailed(unmade)
    return STORES[name].open(folder)


def _run(
    pool: WorkerPool, name: str, opener: Callable[[], Read], order: Sequence[int], wanted: tuple[int, int]
) -> Outcome:
    seconds, found = pool.run({name: partial(_pass, name, opener, order)}, len(order))[0]
    if found != wanted:
        raise WorkFailed("other bytes came than were packed")
    return Outcome(len(order), wanted[0], seconds)


def _pass(
    name: str, opener: Callable[[], Read], order: Sequence[int], place: WorkerState
) -> tuple[float, tuple[int, int]]:
    """In a process of its own: seconds of one pass, and what came."""
    read = place.keep(name, opener)
    began = perf_counter()
    found = hashed(read, order)
    return perf_counter() - began, found
