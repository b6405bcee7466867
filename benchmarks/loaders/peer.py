"""What a loader of others is: what it needs, how it is started, what it is measured with.

The trap: a package that is found need not work (its compiled half may be missing). So what is imported is
named in full. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from smallfiles.measure.bench import Bench, Target
from smallfiles.measure.config import LoadBenchConfig
from smallfiles.measure.loading.ours import Epoch, Pass, first_of
from smallfiles.measure.loading.run import Candidate
from smallfiles.measure.protocol import attempt
from smallfiles.measure.scratch import memory_folder
from smallfiles.measure.workers import Place, WorkFailed, last_words
from smallfiles.progress import progress
from smallfiles.samples import Reader

Start: TypeAlias = Callable[..., contextlib.AbstractContextManager[Epoch]]
"""Keeps a loader ready for as long as the block lasts."""
Maker: TypeAlias = Callable[[Reader, Path], None]
"""Lays pictures out as a loader of others wants them."""

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
    """

    name: str
    material: str
    start: Start
    modules: tuple[str, ...] = ()
    install: str = COMPARE
    stored: Literal["JPEG", "raw"] = "JPEG"

    def installed(self) -> bool:
        """Whether it can run here."""
        try:
            return all(find_spec(module) is not None for module in self.modules)
        except (ImportError, ValueError):  # the parent of a dotted name is missing
            return False


@contextlib.contextmanager
def measured_beside(
    target: Target,
    config: LoadBenchConfig,
    bench: Bench,
    peers: Mapping[str, Peer],
    makers: Mapping[str, Maker],
) -> Iterator[list[Candidate]]:
    """The loaders of others that fit and are installed, with their material beside the packed file.

    Args:
        target: Whose pictures they load.
        config: Of the measurement.
        bench: Gets a note on those that are missing.
        peers: By name.
        makers: Of their material; the first of it is made first, unless pictures are raw.
    """
    fit = [
        peer
        for peer in peers.values()
        if target.kind.startswith(peer.stored) and (peer.name in config.only or not config.only)
    ]
    here = [peer for peer in fit if peer.installed()]
    bench.notes += [
        f"{peer.name} is not installed, so not measured: {peer.install}" for peer in fit if peer not in here
    ]
    first = next(iter(makers))
    needed = [made for made in makers if made in {first, *(peer.material for peer in here)}]
    if target.kind.startswith("raw"):
        needed.remove(first)
    with memory_folder(target.bytes * len(needed) * bool(here), target.path.parent) as folder:
        missing = _laid_out(target, folder, {made: makers[made] for made in needed if here})
        yield [
            Candidate(
                peer.name,
                workers,
                partial(_epoch, peer.name, setting, missing.get(peer.material, "")),
                target.samples,
                key=(peer.name, workers),
                facts={"filter": "as the name says"},
            )
            for workers in config.workers
            for setting in [_setting(target, folder, workers, config)]
            for peer in here
        ]


def _setting(target: Target, folder: Path, workers: int, config: LoadBenchConfig) -> Setting:
    return Setting(folder, target.samples, workers, config.batch, config.prefetch, config.size)


def _laid_out(target: Target, folder: Path, makers: Mapping[str, Maker]) -> dict[str, str]:
    """Make the material; why some of it is missing."""
    failed: dict[str, str] = {}
    if makers:
        reader = first_of(target)
        with progress(len(makers), "laying out files for other loaders", unit="layouts") as shown:
            for made, make in makers.items():
                attempt(made, partial(make, reader, folder / made), failed)
                shown.advance()
    return failed


def _epoch(name: str, setting: Setting, missing: str, place: Place) -> Pass:
    """In a process of its own: an epoch of a loader that stays open between rounds."""
    if missing:
        raise WorkFailed(missing)
    peers: Mapping[str, Peer] = importlib.import_module("benchmarks.loaders").PEERS
    epoch = place.keep(setting, lambda: place.stack.enter_context(peers[name].start(setting)))
    done: Pass = epoch()
    if done.samples < setting.samples:
        raise WorkFailed(f"{done.samples:,} of {setting.samples:,} pictures came{last_words()}")
    return done


def module(name: str) -> Any:
    """A module whose types are not our business; it is installed or not."""
    return importlib.import_module(name)
