"""Measure with a protocol: interleaved rounds, spread, recorded conditions, little load on shared storage.

    print(compare({"one file each": many, "one large file": one}, rounds=5, unit="images"))
    result = bench_reads([Path("train.arrow"), Path("train.tars")])
    print(table(result.records, "tar"))

The traps: a single number proves nothing. Every record keeps its single runs, and ratios are computed
within one measurement only. Notebook 01 teaches the protocol; later ones measure with it.

Here are the options of a measurement. Users believe that a flag has an effect, so each topic has only the
flags that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from smallfiles import lazy
from smallfiles.errors import UsageError
from smallfiles.options import Settings, option

if TYPE_CHECKING:
    from smallfiles.measure.counting import Requests as Requests
    from smallfiles.measure.counting import requests as requests
    from smallfiles.measure.counting import system_calls as system_calls
    from smallfiles.measure.packing import bench_packing as bench_packing
    from smallfiles.measure.protocol import Comparison as Comparison
    from smallfiles.measure.protocol import compare as compare
    from smallfiles.measure.reading import bench_reads as bench_reads
    from smallfiles.measure.record import Failed as Failed
    from smallfiles.measure.record import Record as Record
    from smallfiles.measure.record import Result as Result
    from smallfiles.measure.record import Spread as Spread
    from smallfiles.measure.record import load as load
    from smallfiles.measure.record import ratio as ratio
    from smallfiles.measure.record import save as save

__getattr__ = lazy.names(__name__)


Cache: TypeAlias = Literal["warm", "cold"]
ReadOrder: TypeAlias = Literal["random", "sequential"]
Mode: TypeAlias = Literal["processes", "threads", "ring"]
Step: TypeAlias = Literal["resnet50-a100", "resnet50-h100", "retinanet-b200"]
MODES: tuple[Mode, ...] = get_args(Mode)
BATCH = 64
BUSY = 0.9
"""The share of the time for which an accelerator must compute to count as fed.

MLPerf Storage requires this of most accelerators (RetinaNet 0.85, CosmoFlow 0.7).
"""
PREFETCH = 2
"""Batches that each worker makes ahead."""

# `computation_time` and `batch_size` of configs/dlio/workload/<name, with _ for ->.yaml of mlcommons/storage.
STEPS: dict[Step, tuple[float, int]] = {
    "resnet50-a100": (435, 400),
    "resnet50-h100": (224, 400),
    "retinanet-b200": (47.55, 24),
}
"""The training steps that MLPerf Storage emulates: milliseconds, and samples of one accelerator."""


@dataclass(frozen=True)
class BenchConfig(Settings):
    """How to measure; its fields are the flags of `bench`."""

    repeats: int = option(7, "rounds", least=1)
    count: int = option(3000, "samples to use at most, or to make", least=1)
    orders: tuple[ReadOrder, ...] = option(("random", "sequential"), "orders of reads", flag="order")
    caches: tuple[Cache, ...] = option(("warm", "cold"), "states of the page cache", flag="cache")
    seed: int = option(0, "seed for the order of reads and of the rounds", least=0, metavar="S")
    cap: bool = option(True, "no limit on a shared file system; ask your site first")

    def to_cli(self, what: str, targets: Sequence[str] = ()) -> str:
        """Return the equivalent command."""
        return self.command("bench", what, *targets)


@dataclass(frozen=True)
class LoadBenchConfig(Settings):
    """How to measure loaders; its fields are the flags of `bench load`."""

    repeats: int = option(5, "rounds", least=1)
    count: int = option(3000, "samples per epoch at most, the first of each file, or to make", least=1)
    workers: tuple[int, ...] = option((2,), "processes or threads to measure with", least=1, metavar="N,N")
    modes: tuple[Mode, ...] = option(MODES, "where batches are made", flag="mode", metavar="M,M")
    only: tuple[str, ...] = option((), "only this candidate; repeatable", metavar="NAME", many=True)
    batch: int = option(BATCH, "samples per batch", least=1)
    size: int = option(224, "size of the training crops", least=1, metavar="PIXELS")
    seed: int = option(0, "seed for orders, crops and rounds", least=0, metavar="S")
    cap: bool = option(True, "no limit on a shared file system; ask your site first")
    step: Step | None = option(None, "training step of MLPerf Storage to emulate, with its batch size")
    step_ms: float | None = option(None, "or a step of this many milliseconds", least=0.1, metavar="T")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step is not None:
            step_ms, batch = STEPS[self.step]
            if self.step_ms not in (None, step_ms) or self.batch not in (BATCH, batch):
                raise UsageError(
                    f"--step {self.step} was given together with another step or batch size",
                    expected=f"its own: {step_ms:g} ms for {batch} samples",
                    next_step="Leave these out, or name no step of MLPerf Storage",
                )
            object.__setattr__(self, "step_ms", step_ms)
            object.__setattr__(self, "batch", batch)

    @property
    def step_s(self) -> float | None:
        """Seconds per step of the emulated accelerators; None without them."""
        return None if self.step_ms is None else self.step_ms / 1e3

    @property
    def trained(self) -> str:
        """The emulated training, in words; empty without a step."""
        return f" for {self.step or f'steps of {self.step_ms:g} ms'}" if self.step_ms is not None else ""

    def to_cli(self, targets: Sequence[str] = ()) -> str:
        """Return the equivalent command."""
        return self.command("bench", "load", *targets)
