"""Raw random reads: every sample once in a random order, every byte hashed, beside data sets of others.

Ours are opened as `smallfiles bench read` opens them; others by what their authors offer for a sample by its
number. Each has a process of its own, in which it stays open. The hashes are summed up and compared with
those of the files that were packed, so nobody is quick with other bytes.

The trap: not all can do it. webdataset, DALI, SPDL and FFCV read in an order of their own; they take part in
epochs only. LitData and Parquet can, but they are not made for that: each run reads only some samples.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import numpy as np

from benchmarks import missing, needed
from benchmarks.loaders.material import FILES, laid_out, listed, mounted
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
Opener: TypeAlias = "Callable[[], Read | AbstractContextManager[Read]]"
WHAT = "random reads"
_FEW = 300
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "xxhash", "lmdb")
_OF_OTHERS = ("litdata", "mosaicml-streaming", "datasets", "zarr", "pylance", "ratarmount")


@dataclass(frozen=True)
class PeerSet:
    """A data set of others that gives a sample by its number.

    Args:
        material: The layout that it reads.
        open: Takes the folder that the material is in; returns how to read, or a context of that.
        modules: What it imports.
        most: Samples that are read in a run, if all would take too long.
    """

    material: str
    open: Callable[[Path], Read | AbstractContextManager[Read]]
    modules: tuple[str, ...] = ()
    most: int = sys.maxsize


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


def _lance(folder: Path) -> Read:
    found = needed("lance").dataset(str(folder / "lance"))
    return lambda index: memoryview(found.take([index], columns=["image"])["image"][0].as_buffer())


def _parquet(material: str) -> Callable[[Path], Read]:
    """Read the row group that a sample is in; the footers say which one it is."""

    def opened(folder: Path) -> Read:
        import pyarrow.parquet as pq

        files = [pq.ParquetFile(path) for path in sorted((folder / material).glob("*.parquet"))]
        groups = [(file, group) for file in files for group in range(file.num_row_groups)]
        stops = np.cumsum([file.metadata.row_group(group).num_rows for file, group in groups])

        def read(index: int) -> Buffer:
            number = int(np.searchsorted(stops, index, "right"))
            file, group = groups[number]
            rows = file.read_row_group(group, columns=["image"])["image"]
            return memoryview(rows[index - int(stops[number])].as_buffer())

        return read

    return opened


@contextmanager
def _ratarmount(folder: Path) -> Iterator[Read]:
    paths, tree = listed(folder)[0], folder / FILES
    with mounted(folder) as there:
        found = [str(there / Path(path).relative_to(tree)) for path in paths]
        yield lambda index: read_file(found[index])


STORES = {
    "plain files": PeerSet(FILES, _files),
    "Jülich Arrow": PeerSet("juelich.arrow", _juelich("OfArrow")),
    "Jülich HDF5": PeerSet("juelich.h5", _juelich("OfHDF5")),
    "LitData": PeerSet("litdata", _litdata, ("litdata",), _FEW),
    "MosaicML Streaming": PeerSet("streaming", _streaming, ("streaming",)),
    "Zarr": PeerSet("zarr", _zarr, ("zarr",)),
    "Hugging Face datasets": PeerSet("huggingface", _huggingface, ("datasets",)),
    "Lance": PeerSet("lance", _lance, ("lance",)),
    "Parquet": PeerSet("parquet", _parquet("parquet"), (), _FEW),
    "Parquet, small row groups": PeerSet("parquet_small", _parquet("parquet_small"), (), _FEW),
    "plain files through ratarmount": PeerSet("tree.tar", _ratarmount, ("ratarmount",)),
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
        some = {name: order[: store.most] for name, store in here.items()}
        wanted = {
            count: hashed(lambda index: read_file(files[index]), order[:count])
            for count in {len(order), *map(len, some.values())}
        }
        openers: dict[str, Opener] = {name: partial(_ours, name, path) for name, path in paths.items()}
        openers |= {
            name: partial(_of_others, name, folder, unmade.get(here[name].material, "")) for name in here
        }
        cases = [
            Case(name, long_enough(partial(_run, pool, name, opener, rows, wanted[len(rows)])))
            for name, opener in openers.items()
            for rows in [some.get(name, order)]
        ]
        whole = target.samples, target.bytes
        bench.measure(WHAT, cases, place=target.path, whole=whole, touched=TOUCHED)
    return bench.result()


def _ours(format: str, path: Path) -> Read:
    return formats.open(path, format).read


def _of_others(name: str, folder: Path, unmade: str) -> Read | AbstractContextManager[Read]:
    if unmade:
        raise WorkFailed(unmade)
    return STORES[name].open(folder)


def _run(
    pool: WorkerPool, name: str, opener: Opener, order: Sequence[int], wanted: tuple[int, int]
) -> Outcome:
    seconds, found = pool.run({name: partial(_pass, name, opener, order)}, len(order))[0]
    if found != wanted:
        raise WorkFailed("other bytes came than were packed")
    return Outcome(len(order), wanted[0], seconds)


def _pass(
    name: str, opener: Opener, order: Sequence[int], place: WorkerState
) -> tuple[float, tuple[int, int]]:
    """In a process of its own: seconds of one pass, and what came."""

    def opened() -> Read:
        found = opener()
        return place.stack.enter_context(found) if isinstance(found, AbstractContextManager) else found

    read = place.keep(name, opened)
    began = perf_counter()
    found = hashed(read, order)
    return perf_counter() - began, found
