"""What a loader of others is: what it needs, how it is started, and where the loaders of others are found.

The trap: a package that is found need not work (its compiled half may be missing). So what is imported is
named in full. Notebook 08 measures with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from smallfiles.measure.loading.passes import Start
from smallfiles.samples import Reader

Stored: TypeAlias = Literal["JPEG", "raw"]

COMPARE = "python -m pip install -c requirements.lock -e '.[compare]'"
FFCV = (
    "apt-get install libopencv-dev libturbojpeg0-dev pkg-config; "
    "python -m pip install --no-build-isolation ffcv"
)


@dataclass(frozen=True)
class Setting:
    """What a loader is started with.

    Args:
        folder: Where its material is.
        samples: How many there are.
        workers: Processes or threads.
        batch: Samples in a batch.
        prefetch: Batches ahead for each worker.
        size: Of the crops, in pixels.
    """

    folder: Path
    samples: int
    workers: int
    batch: int
    prefetch: int
    size: int


@dataclass(frozen=True)
class Peer:
    """A loader of others.

    Args:
        name: In records; says the filter.
        material: The layout that it reads, see `material`.
        start: Keeps it ready; takes a `Setting`.
        modules: What it imports.
        install: The line that installs it.
        stored: The kind of pictures that it is measured on.
        packages: Their distributions, for the versions in records.
    """

    name: str
    material: str
    start: Start
    modules: tuple[str, ...] = ()
    install: str = COMPARE
    stored: Stored = "JPEG"
    packages: tuple[str, ...] = ()

    def installed(self) -> bool:
        """Whether it can run here."""
        try:
            return all(find_spec(module) is not None for module in self.modules)
        except (ImportError, ValueError):  # the parent of a dotted name is missing
            return False


Maker: TypeAlias = Callable[[Reader, Path], None]
"""Lays pictures out as a loader of others wants them."""


def peers_of(others: str) -> tuple[dict[str, Peer], dict[str, Maker]]:
    """Loaders of others and what they read, by name; the first of those layouts is made first.

    Args:
        others: Name of the module with the tables `PEERS` and `MATERIAL`; "" has none.
    """
    found = importlib.import_module(others) if others else None
    return ({}, {}) if found is None else (found.PEERS, found.MATERIAL)


def module(name: str) -> Any:
    """A module whose types are not our business; it is installed or not."""
    return importlib.import_module(name)
