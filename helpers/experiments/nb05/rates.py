"""Images per second against images in a shard, read front to back as webdataset does.

Each shard is one open. On a local disk an open costs microseconds; on a parallel file system it waits
for a server. So everything is read twice: as this disk gives it, and with a pause before each open.

The trap: the pause is the only thing that is slow here. A real metadata server is also shared, so the
pause grows with the number of programs that ask. Notebook 05 draws it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from helpers.experiments.nb05.place import fresh_folder
from smallfiles import machine
from smallfiles.formats import tar
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Spread
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import Source

SLOW_OPEN_S = 0.002
SIZES = (1, 4, 16, 64, 256)
SAMPLES = 256
FAST_PASSES = 2
"""Without the pause a pass is short, and two make a run long enough to time."""


@dataclass(frozen=True)
class ShardRate:
    """How fast shards of one size are read.

    Args:
        images: Images in a shard.
        shards: Number of shards.
        open_s: Pause before each open, in seconds.
        rates_per_s: Images per second of each run.
    """

    images: int
    shards: int
    open_s: float
    rates_per_s: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """Median, quartiles and extremes of the rate."""
        return Spread.of(self.rates_per_s)


@dataclass(frozen=True)
class ShardRates:
    """All sizes, with and without the pause, and what had to be said."""

    rates: tuple[ShardRate, ...]
    filesystem: str
    note: str = ""

    def line(self, slow: bool) -> list[ShardRate]:
        """The rates of one condition, by growing shards."""
        return [rate for rate in self.rates if bool(rate.open_s) == slow]

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        slow, here = self._gain(True), self._gain(False)
        return f"Reading with {SLOW_OPEN_S * 1000:g} ms an open: {slow}. As measured here: {here}"

    def _gain(self, slow: bool) -> str:
        single, *_, largest = self.line(slow)
        if largest.spread.overlaps(single.spread) or largest.spread.median < single.spread.median:
            return "no clear gain from larger shards"
        factor = largest.spread.median / single.spread.median
        return f"{largest.images} images a shard are {factor:.1f} times as fast as one"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = []
        for slow, name in ((False, "as measured here"), (True, f"with {SLOW_OPEN_S * 1000:g} ms an open")):
            values = ", ".join(f"{r.images} a shard {r.spread.median:,.0f}" for r in self.line(slow))
            told.append(f"{name}: {values}")
        return f"Line chart of images per second. {self.finding}. {'; '.join(told)}."


def measure_rates(
    source: Source, folder: Path, *, sizes: Sequence[int] = SIZES, repeats: int = 5
) -> ShardRates:
    """Pack some images in shards of several sizes and read each set front to back.

    Args:
        source: Where the images come from.
        folder: Where to write the shards.
        sizes: Images in a shard; 1 should be among them.
        repeats: Runs of each size and condition.
    """
    allowed = allowance([folder], min(SAMPLES, len(source.manifest)), 2 * len(sizes) * (repeats + 1))
    few = dataclasses.replace(source, manifest=source.manifest.select(range(allowed.samples)))
    place = fresh_folder(folder)
    cases, places = [], []
    for images in sizes:
        paths = _packed(few, place / f"of-{images}.tars", images)
        for open_s in (0.0, SLOW_OPEN_S):
            run = functools.partial(_read, paths, open_s, 1 if open_s or allowed.note else FAST_PASSES)
            cases.append(Case(f"{images} {open_s}", run, warm_up=not open_s))
            places.append((images, len(paths), open_s))
    outcomes = interleaved(cases, repeats, seed=0, what="shard sizes")
    rates = tuple(
        ShardRate(*place, tuple(outcome.rate_per_s for outcome in outcomes[case.name]))
        for place, case in zip(places, cases, strict=True)
    )
    return ShardRates(rates, machine.filesystem(folder).kind, allowed.note)


def _packed(source: Source, out: Path, images: int) -> list[Path]:
    pack(
        source,
        out,
        PackConfig(options=tar.Options(max_count=images), verify="none", check="none", digest=False),
    )
    return sorted(out.glob("*.tar"))


def _read(paths: Sequence[Path], open_s: float, passes: int) -> Outcome:
    began = perf_counter()
    samples = size = 0
    for sample in streamed(list(paths) * passes, open_s):
        samples += 1
        size += sum(len(value) for value in sample.values() if isinstance(value, bytes))
    return Outcome(samples, size, perf_counter() - began)


def streamed(paths: Iterable[Path], open_s: float = 0.0) -> Iterator[dict[str, Any]]:
    """Samples of shards as webdataset groups them, with a pause before each open.

    Args:
        paths: Shards, in order.
        open_s: The pause, in seconds.
    """
    from webdataset.tariterators import group_by_keys, tar_file_expander

    def opened() -> Iterator[dict[str, Any]]:
        for path in paths:
            if open_s:
                sleep(open_s)
            with path.open("rb") as stream:
                yield {"url": str(path), "stream": stream}

    yield from group_by_keys(tar_file_expander(opened()))
