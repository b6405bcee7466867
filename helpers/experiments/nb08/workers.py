"""Epochs of one loader by processes and by threads, against how many there are.

Nothing is trained, so the loader is all that is measured. The loaders stay open between rounds, as in a
training, and a first epoch of each is thrown away.

The trap: `os.cpu_count()` counts the node. More workers than CPUs of the job gain nothing and take memory.
Notebook 08 draws it.
"""

from __future__ import annotations

import gc
import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from smallfiles import formats, machine
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.measure.loading.ours import First
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Spread

if TYPE_CHECKING:
    from smallfiles.loading import Loader

Mode = Literal["processes", "threads"]
MODES: tuple[Mode, ...] = ("processes", "threads")
COUNTS = (1, 2, 4)
BATCH, SAMPLES, ROUNDS = 16, 160, 3


@dataclass(frozen=True)
class Throughput:
    """Images per second of each run, by mode and number of workers.

    Args:
        main: Of no workers.
        runs: Of the others.
        cpus: CPUs that this process may use.
        batch: Samples in a batch.
        others: Processes of others that ran on this machine just before, on average over a minute.
    """

    main: tuple[float, ...]
    runs: dict[tuple[Mode, int], tuple[float, ...]]
    cpus: int
    batch: int
    others: float = 0.0

    def line(self, mode: Mode) -> list[tuple[int, tuple[float, ...]]]:
        """Numbers of workers, 0 first, and the runs of each."""
        return [(0, self.main), *((n, runs) for (m, n), runs in self.runs.items() if m == mode)]

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        best = max(self.runs, key=lambda case: median(self.runs[case]))
        factor = median(self.runs[best]) / median(self.main)
        told = f"{best[1]} {_word(best)} on {self.cpus} CPUs: {factor:.1f} times the loader without workers"
        if Spread.of(self.runs[best]).overlaps(Spread.of(self.main)):
            told = f"No number of workers is clearly faster than none on these {self.cpus} CPUs"
        return told

    @property
    def gain_beyond(self) -> str:
        """What more workers than CPUs did."""
        few = [count for _, count in self.runs if count <= self.cpus]
        many = max(count for _, count in self.runs)
        if not few or many <= self.cpus:
            return f"This machine has {self.cpus} CPUs, so {many} workers are not too many here."
        lines = []
        for mode in MODES:
            before, after = median(self.runs[mode, max(few)]), median(self.runs[mode, many])
            lines.append(f"{many} {mode} give {after / before:.0%} of what {max(few)} give")
        return f"With {self.cpus} CPUs, {' and '.join(lines)}.{self._disturbance}"

    @property
    def _disturbance(self) -> str:
        if self.others < self.cpus / 2:
            return ""
        return f" About {self.others:.0f} other processes kept this machine busy, so there was less to gain."

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = "; ".join(
            f"{count} {_word((mode, count))} {median(runs):,.0f}" for (mode, count), runs in self.runs.items()
        )
        return (
            f"Lines of images per second against workers. {self.finding}. "
            f"Medians: no workers {median(self.main):,.0f}; {told}."
        )


def _word(case: tuple[Mode, int]) -> str:
    mode, count = case
    return mode if count != 1 else {"processes": "process", "threads": "thread"}[mode]


def measure_workers(path: Path, counts: tuple[int, ...] = COUNTS, rounds: int = ROUNDS) -> Throughput:
    """Measure epochs of random crops of 224 pixels.

    Args:
        path: A packed file with labels.
        counts: Numbers of workers.
        rounds: Epochs of each.
    """
    others = os.getloadavg()[0]
    settings = [("main", 0), *((mode, count) for mode in MODES for count in counts)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # that is the experiment
        loaders = {f"{mode} {count}": _loader(path, mode, count) for mode, count in settings}
        cases = [Case(name, partial(_epoch, loader)) for name, loader in loaders.items()]
        outcomes = interleaved(cases, rounds, 0, "workers")
    loaders.clear()
    cases.clear()
    gc.collect()  # the workers end with their loaders
    rates = {name: tuple(outcome.rate_per_s for outcome in each) for name, each in outcomes.items()}
    runs = {(mode, count): rates[f"{mode} {count}"] for mode in MODES for count in counts}
    return Throughput(rates["main 0"], runs, machine.usable_cpus(), BATCH, others)


def _loader(path: Path, mode: str, count: int) -> Loader:
    reader = formats.open(path)
    settings = LoaderConfig(batch=BATCH, workers=count, mode=mode, rank=0, world_size=1)  # type: ignore[arg-type]
    return make_loader(First(reader, min(SAMPLES, len(reader))), settings, transform=RandomResizedCrop())


def _epoch(loader: Loader) -> Outcome:
    began, samples, size = perf_counter(), 0, 0
    for batch in loader:
        samples += len(batch["index"])
        size += batch["image"].numel()
    return Outcome(samples, size, perf_counter() - began)
