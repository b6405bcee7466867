"""Training that needs a batch at every step, and storage that stands still at times.

Steps and storage are pauses of fixed length, so a busy computer measures the same. One thread makes the
batches in all cases, and only what lies between it and the training differs: two batches made ahead, as
many as the ring holds, or the ring. Before each epoch the training pauses, as for an evaluation.

The trap: a buffer is judged where supply suffices on average. Where it does not, every buffer runs empty
and then waits as long as none; so both are measured. Notebook 08 draws it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from smallfiles import formats
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import ImageBatches, LoaderConfig, make_loader
from smallfiles.loading.batches import Array, Batch, BatchMaker, Indices, Layout
from smallfiles.measure.loading.breakdown import Constant
from smallfiles.measure.loading.ours import First
from smallfiles.ring import FillSample, RingConfig, open_ring
from smallfiles.samples import Reader

BATCH, SAMPLES, EPOCHS = 4, 72, 2
SLOTS = 16
STEP_S, MAKE_S = 0.03, 0.013
PERIOD_S, STILL_S = 0.9, 0.4
EVALUATION_S = 0.4
ENOUGH, TOO_SLOW = "enough on average", "too slow on average"


@dataclass(frozen=True)
class Stalling:
    """A maker on storage that takes its time, and stands still for a while in each period.

    Args:
        maker: Makes the batches.
        make_s: Seconds that the storage takes for a batch.
        still_s: Seconds of standing still at the end of each period; 0 for none.
        origin_s: When the first period began.
    """

    maker: BatchMaker
    make_s: float
    still_s: float
    origin_s: float

    @property
    def fixed(self) -> bool:
        """Of the maker."""
        return self.maker.fixed

    @property
    def reader(self) -> Reader:
        """Of the maker."""
        return self.maker.reader

    def layout(self, count: int) -> Layout:
        """Of the maker."""
        return self.maker.layout(count)

    def make(self, indices: Indices, epoch: int, out: Mapping[str, Array] | None = None) -> Batch:
        """The same batch, later if the storage stands still."""
        left_s = PERIOD_S - (time.monotonic() - self.origin_s) % PERIOD_S
        time.sleep((left_s if left_s < self.still_s else 0.0) + self.make_s)
        return self.maker.make(indices, epoch, out)


@dataclass(frozen=True)
class Run:
    """A training with one kind of buffer.

    Args:
        buffer: Its name.
        supply: `ENOUGH` or `TOO_SLOW`.
        waiting_share: Share of the time between the first and the last batch, pauses left out.
        levels: Of a ring: seconds and batches ready, whenever training asked for one.
        still: From when to when the storage stood still, in the same seconds.
    """

    buffer: str
    supply: str
    waiting_share: float
    levels: tuple[tuple[float, int], ...] = ()
    still: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Stalls:
    """All runs.

    Args:
        runs: Of all buffers, with both supplies.
        slots: Batches that the ring holds.
    """

    runs: tuple[Run, ...]
    slots: int = SLOTS

    def share(self, buffer: str, supply: str) -> float:
        """How much of its time a training waited."""
        return next(r.waiting_share for r in self.runs if (r.buffer, r.supply) == (buffer, supply))

    @property
    def buffers(self) -> list[str]:
        """Their names, the smallest first."""
        return list(dict.fromkeys(run.buffer for run in self.runs))

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        small, ring = self.buffers[0], self.buffers[-1]
        few, many = self.share(small, ENOUGH), self.share(ring, ENOUGH)
        slow = self.share(ring, TOO_SLOW)
        if few - many < 0.05:
            return f"No buffer helped here: training waited {few:.0%} with {small} and {many:.0%} with {ring}"
        told = f"Through stalls training waits {few:.0%} of its time with {small}, {many:.0%} with {ring}"
        return told + f"; too slow a supply stays too slow ({slow:.0%})"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = "; ".join(f"{r.buffer}, {r.supply}: {r.waiting_share:.0%}" for r in self.runs)
        return (
            f"Left bars of the share of time spent waiting, right the ring's fill level over time, of "
            f"{self.slots} slots. {self.finding}. {told}."
        )


def measure_stalls(path: Path) -> Stalls:
    """Measure three buffers with a supply that stalls but suffices, and with one that does not suffice.

    Args:
        path: A packed file with labels; only its size matters.
    """
    reader = formats.open(path)
    maker = Constant(ImageBatches(First(reader, min(SAMPLES, len(reader))), RandomResizedCrop()))
    runs: list[Run] = []
    for supply, make_s, still_s in ((ENOUGH, MAKE_S, STILL_S), (TOO_SLOW, 2 * STEP_S, 0.0)):
        for measure in (partial(_by_loader, ahead=2), partial(_by_loader, ahead=SLOTS), _by_ring):
            runs.append(measure(Stalling(maker, make_s, still_s, time.monotonic()), supply))  # noqa: PERF401
    return Stalls(tuple(runs))


def _by_loader(maker: Stalling, supply: str, ahead: int) -> Run:
    settings = LoaderConfig(batch=BATCH, workers=1, mode="threads", prefetch=ahead, rank=0, world_size=1)
    loader = make_loader(maker, settings)
    share, _ = _trained(loader)
    del loader
    gc.collect()
    return Run(f"{ahead} batches ahead", supply, share)


def _by_ring(maker: Stalling, supply: str) -> Run:
    plan = make_loader(maker, LoaderConfig(batch=BATCH, mode="main", rank=0, world_size=1)).plan
    settings = RingConfig(slots=SLOTS, producers=1)
    with open_ring(maker, plan, settings) as ring:
        share, began_s = _trained(ring)
        history = ring.fill_history
    return Run(
        f"ring of {SLOTS} slots", supply, share, _levels(history), _still(maker, began_s, time.monotonic())
    )


def _levels(history: list[FillSample]) -> tuple[tuple[float, int], ...]:
    """Seconds since the first batch, and batches ready when it was asked for."""
    began = history[0].seconds if history else 0.0
    return tuple((sample.seconds - began, sample.ready) for sample in history)


def _still(maker: Stalling, began_s: float, ended_s: float) -> tuple[tuple[float, float], ...]:
    """When the storage stood still, in seconds since the first batch."""
    count = int((ended_s - maker.origin_s) / PERIOD_S) + 1 if maker.still_s else 0
    stops = [maker.origin_s + number * PERIOD_S - began_s for number in range(1, count + 1)]
    return tuple((max(0.0, stop - maker.still_s), stop) for stop in stops if 0 < stop < ended_s - began_s)


def _trained(loader: Iterable[Any]) -> tuple[float, float]:
    """Epochs of steps.

    Returns:
        The share of the time that was spent waiting, the very first batch left out, and when training began.
    """
    waited_s, steps, began_s = 0.0, 0, 0.0
    for _ in range(EPOCHS):
        time.sleep(EVALUATION_S)
        asked = perf_counter()
        began_s = began_s or time.monotonic()
        for _batch in loader:
            waited_s += perf_counter() - asked if steps else 0.0
            steps += 1
            time.sleep(STEP_S)
            asked = perf_counter()
    return waited_s / (waited_s + steps * STEP_S), began_s
