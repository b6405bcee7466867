"""Loaders of others, each as its authors teach it, over the same pictures.

    material    the same pictures, laid out as each of them wants them
    juelich     the loaders of the Jülich course, re-stated: plain files, Arrow, HDF5
    dataloaders ImageFolder, webdataset, LitData, Streaming, Hugging Face, Lance, Parquet, in a DataLoader
    engines     DALI on the CPU, FFCV, SPDL: threads of their own

Each is measured only where it is installed, and named with the line that installs it where it is not.

The trap: pictures that were scaled with another filter are other pictures. The name says which filter it
is; all of these are antialiased but the ones that say `linear`. Notebook 08 measures with them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from benchmarks.loaders import dataloaders, engines, juelich
from benchmarks.loaders.peer import Peer, measured_beside
from smallfiles.measure import LoadBenchConfig
from smallfiles.measure.bench import Bench, Target
from smallfiles.measure.loading import Candidate

PEERS: dict[str, Peer] = {peer.name: peer for peer in (*juelich.PEERS, *dataloaders.PEERS, *engines.PEERS)}
"""By the name that the records carry."""

PACKAGES = (
    *("torchvision", "torchcodec", "pillow", "webdataset", "litdata", "mosaicml-streaming", "datasets"),
    *("pylance", "ratarmount"),
    *("nvidia-dali-cuda120", "spdl-io", "spdl-core", "ffcv", "numba"),
)
"""Whose versions records tell."""


def peers(target: Target, config: LoadBenchConfig, bench: Bench) -> AbstractContextManager[list[Candidate]]:
    """The other loaders that can load these pictures here, open until the block ends."""
    return measured_beside(target, config, bench, PEERS)
