"""Loaders of others, each as its authors teach it, over the same pictures.

    material    the same pictures, laid out as each of them wants them
    juelich     the loaders of the Jülich course, re-stated: plain files, Arrow, HDF5
    dataloaders torchvision's ImageFolder and webdataset, with Pillow, in a DataLoader
    engines     DALI on the CPU, FFCV, SPDL: threads of their own

Each is measured only where it is installed, and named with the line that installs it where it is not.

The trap: pictures that were scaled with another filter are other pictures. The name says which filter it
is; all of these are antialiased but the ones that say `linear`. Notebook 08 measures with them.
"""

from __future__ import annotations

from benchmarks.loaders import dataloaders, engines, juelich
from benchmarks.loaders.material import MATERIAL
from smallfiles.measure.loading.peer import Peer

PEERS: dict[str, Peer] = {peer.name: peer for peer in (*juelich.PEERS, *dataloaders.PEERS, *engines.PEERS)}
"""By the name that the records carry."""

__all__ = ["MATERIAL", "PEERS"]
