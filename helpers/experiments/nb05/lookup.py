"""What the index beside a shard is worth: opening with it, opening without, reading at random.

The trap: without an index a reader must walk over all headers when it opens, and each worker of each
rank opens. Notebook 05 measures it.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from helpers.experiments.nb05.place import fresh_folder
from smallfiles.formats import tar
from smallfiles.measure.protocol import Case, Outcome, interleaved


@dataclass(frozen=True)
class Lookup:
    """Seconds of each run.

    Args:
        samples: Samples in the shards.
        indexed_s: To open them with their indexes.
        walked_s: To open them without.
        read_s: To read every sample once, in random order.
    """

    samples: int
    indexed_s: tuple[float, ...]
    walked_s: tuple[float, ...]
    read_s: tuple[float, ...]

    @property
    def sentence(self) -> str:
        """What was measured, in words."""
        indexed, walked, read = (median(runs) for runs in (self.indexed_s, self.walked_s, self.read_s))
        more = "more" if walked > read else "less"
        return (
            f"{self.samples} samples open in {1000 * indexed:.1f} ms with the indexes and in "
            f"{1000 * walked:.1f} ms without: **{walked / indexed:.1f} times** as long, and {more} than "
            f"reading all of them at random ({1000 * read:.1f} ms, or {self.samples / read:,.0f} a second)."
        )


def measure_lookup(shards: Path, folder: Path, *, repeats: int = 7) -> Lookup:
    """Open and read a folder of shards, and open a copy that has no indexes.

    Args:
        shards: A folder of shards with their indexes.
        folder: Where to put the copy.
        repeats: Runs of each.
    """
    without = fresh_folder(folder)
    for path in shards.glob("*.tar"):
        shutil.copyfile(path, without / path.name)
    cases = [
        Case("indexed", lambda: _opened(shards)),
        Case("walked", lambda: _opened(without)),
        Case("read", lambda: _read(shards)),
    ]
    outcomes = interleaved(cases, repeats, seed=0, what="looking up")
    seconds = [tuple(run.seconds for run in outcomes[case.name]) for case in cases]
    return Lookup(outcomes["read"][0].samples, *seconds)


def _opened(folder: Path) -> Outcome:
    began = perf_counter()
    with closing(tar.open(folder)) as reader:
        return Outcome(len(reader), 0, perf_counter() - began)


def _read(folder: Path) -> Outcome:
    with closing(tar.open(folder)) as reader:
        order = np.random.default_rng(0).permutation(len(reader)).tolist()
        began = perf_counter()
        size = sum(len(bytes(reader.read(index))) for index in order)
        return Outcome(len(order), size, perf_counter() - began)
