"""What a measurement of loaders is asked to do; prints its own command line.

The trap: the number of workers that is best is that of the cores which the job has, not the node. Notebook
08 uses it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from helpers.errors import UsageError

Mode: TypeAlias = Literal["processes", "threads", "ring"]
Filter: TypeAlias = Literal["antialias", "linear"]

MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class LoadBenchConfig:
    """How to measure loaders.

    Args:
        repeats: Number of rounds.
        count: Samples of an epoch at most, the first ones of each file.
        workers: Numbers of processes or threads to measure with.
        modes: Where batches are made.
        batch: Samples in a batch.
        prefetch: Batches that each worker makes ahead.
        size: Of the training crops, in pixels.
        filter: How pixels are scaled; the loaders of others say theirs in their name.
        peers: Measure the loaders of others too, as far as they are installed.
        only: Names of what to measure (`arrow, threads`, `DALI, antialias`); none given means all.
        reference: Ratios are against this one; None takes the first.
        seed: Of orders and crops, and of the order within rounds.
        cap: Keep to the limit on a shared file system.
    """

    repeats: int = 5
    count: int = 3000
    workers: tuple[int, ...] = (2,)
    modes: tuple[Mode, ...] = MODES
    batch: int = 64
    prefetch: int = 2
    size: int = 224
    filter: Filter = "antialias"
    peers: bool = False
    only: tuple[str, ...] = ()
    reference: str | None = None
    seed: int = 0
    cap: bool = True

    def __post_init__(self) -> None:
        numbers = {
            "rounds": self.repeats,
            "samples": self.count,
            "samples in a batch": self.batch,
            "batches ahead": self.prefetch,
            "pixels": self.size,
            "workers": min(self.workers, default=0),
        }
        for what, number in numbers.items():
            if number < 1:
                raise UsageError(
                    f"{number} {what} were asked for", expected="1 or more", next_step="Choose another number"
                )
        if self.seed < 0:
            raise UsageError(
                f"the seed is {self.seed}", expected="a seed of 0 or more", next_step="Choose another seed"
            )
        _some_of("modes", self.modes, MODES)
        _some_of("filter", (self.filter,), get_args(Filter))

    def to_cli(self, targets: Sequence[str] = ()) -> str:
        """The command that does the same run."""
        words = ["python", "-m", "helpers", "bench", "load", *targets]
        words += ["--repeats", str(self.repeats), "--count", str(self.count)]
        words += ["--workers", ",".join(map(str, self.workers))]
        words += ["--mode", ",".join(self.modes)] if self.modes != MODES else []
        for flag, value, default in (
            ("--batch", self.batch, 64),
            ("--prefetch", self.prefetch, 2),
            ("--size", self.size, 224),
            ("--filter", self.filter, "antialias"),
            ("--reference", self.reference, None),
            ("--seed", self.seed, 0),
        ):
            words += [flag, str(value)] if value != default else []
        words += ["--peers"] * self.peers + ["--no-cap"] * (not self.cap)
        for name in self.only:
            words += ["--only", name]
        return shlex.join(words)


def _some_of(what: str, chosen: Sequence[str], allowed: Sequence[str]) -> None:
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(allowed):
        raise UsageError(
            f"{what} {', '.join(chosen) or 'none'} asked for",
            expected=f"some of {', '.join(allowed)}, each once",
            next_step="Choose from these",
        )
