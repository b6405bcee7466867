"""Follow a batch from the storage to the trainer, made in four ways.

Every way makes the same batches, one of each in every round. `transfer` is what it costs that a worker
process sends a batch of this size to the trainer, measured with batches that need no making.

The trap: the stages are the seconds of one worker. Two workers halve all but the transfer, of which the
trainer does its half. Notebook 08 draws it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from helpers.experiments.nb08.clock import STAGES, Clock, one_thread
from helpers.experiments.nb08.ways import VIEW, WAYS, Material, as_floats
from smallfiles import formats
from smallfiles.images import Normalised
from smallfiles.loading import ImageBatches, LoaderConfig, make_loader
from smallfiles.measure.loading.breakdown import Constant
from smallfiles.samples import Reader
from smallfiles.sources import Source

BATCH, ROUNDS = 16, 5
_SENT = 13
_PAGE_BYTES = 4096
_CLEAR = 1.15
_Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Followed:
    """One way.

    Args:
        way: Its name.
        runs: Seconds by stage, of each batch.
        batch_bytes: Of the batch that it sends.
        difference: Mean distance to the first way's pixels, of 255.
    """

    way: str
    runs: tuple[dict[str, float], ...]
    batch_bytes: int
    difference: float

    def median_s(self, stage: str) -> float:
        """Seconds of a stage."""
        return median(run[stage] for run in self.runs)

    @property
    def total_s(self) -> float:
        """Seconds of all stages."""
        return sum(self.median_s(stage) for stage in STAGES)

    @property
    def totals_s(self) -> list[float]:
        """Seconds of each batch."""
        return [sum(run.values()) for run in self.runs]

    @property
    def largest(self) -> str:
        """The stage that takes most."""
        return max(STAGES, key=self.median_s)

    def summary(self) -> str:
        """One line in words."""
        parts = ", ".join(f"{stage} {1e3 * self.median_s(stage):.1f}" for stage in STAGES)
        return f"{self.way}: {1e3 * self.total_s:.0f} ms ({parts})"


@dataclass(frozen=True)
class Following:
    """All ways, in the order of `WAYS`."""

    ways: tuple[Followed, ...]
    batch: int

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        first, last = self.ways[0], self.ways[-1]
        factor = first.total_s / last.total_s
        if factor < _CLEAR:
            return f"All ways take about as long here; {last.largest} takes most"
        return (
            f"The same {self.batch} views in {1e3 * first.total_s:.0f} or {1e3 * last.total_s:.0f} ms "
            f"({factor:.1f} times); now most is {last.largest}"
        )

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = "; ".join(way.summary() for way in self.ways)
        return f"Stacked bars of a batch's time by stage. {self.finding}. {told}."

    @property
    def gained(self) -> str:
        """From way to way, the stage that lost most."""
        lines = []
        for before, after in zip(self.ways[:-1], self.ways[1:], strict=True):
            saved = {stage: before.median_s(stage) - after.median_s(stage) for stage in STAGES}
            stage = max(STAGES, key=saved.__getitem__)
            lines.append(
                f"- *{after.way}*: {1e3 * (before.total_s - after.total_s):+.0f} ms saved, "
                f"most of it in **{stage}** ({1e3 * saved[stage]:+.0f} ms)"
            )
        return "\n".join(lines)


def follow(source: Source, path: Path, batch: int = BATCH, rounds: int = ROUNDS) -> Following:
    """Follow some batches in every way.

    Args:
        source: The small files.
        path: The same, packed in the same order.
        batch: Samples in a batch.
        rounds: How many batches.
    """
    reader = formats.open(path)
    material = Material(source, reader)
    order = np.random.default_rng(0).permutation(len(reader))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    first: dict[str, _Floats] = {}
    with one_thread():
        for number in range(-1, rounds):  # the round before the first is to warm up
            indices = np.resize(order[max(0, number) * batch :], batch).tolist()
            for name in random.Random(number).sample(list(WAYS), len(WAYS)):
                clock = Clock()
                made = WAYS[name](material, indices, clock)
                if number < 0:
                    first[name] = as_floats(made).numpy()
                else:
                    runs[name].append(clock.seconds)
    sent = {floats: _sent(reader, batch, floats) for floats in (False, True)}
    return Following(tuple(_followed(name, runs[name], first, sent, batch) for name in WAYS), batch)


def _followed(
    name: str,
    runs: list[dict[str, float]],
    first: dict[str, _Floats],
    sent: dict[bool, list[float]],
    batch: int,
) -> Followed:
    floats = list(WAYS).index(name) < 2
    transfer = sent[floats]
    together = tuple({**run, "transfer": transfer[at % len(transfer)]} for at, run in enumerate(runs))
    reference = first[next(iter(WAYS))]
    spread = 255 * 0.226  # of normalised values: one of 255 is this part of their unit
    difference = float(np.abs(first[name] - reference).mean()) * spread
    return Followed(name, together, batch * VIEW.crop**2 * 3 * (4 if floats else 1), difference)


def _sent(reader: Reader, batch: int, floats: bool) -> list[float]:
    """Seconds that batches take from a process to the trainer, the median of neighbours each."""
    maker = ImageBatches(reader, Normalised(VIEW) if floats else VIEW)
    settings = LoaderConfig(
        batch=batch, workers=1, mode="processes", drop_last=True, rank=0, world_size=1, pin_memory=False
    )
    loader = make_loader(Constant(maker), settings)
    times: list[float] = []
    while len(times) < _SENT:
        began = perf_counter()
        for sent in loader:
            image = sent["image"] if floats else sent["image"].permute(0, 2, 3, 1)
            image.reshape(-1)[:: _PAGE_BYTES // image.element_size()].sum()
            times.append(perf_counter() - began)
            began = perf_counter()
    return [median(times[at : at + 3]) for at in range(1, len(times) - 2, 3)]
