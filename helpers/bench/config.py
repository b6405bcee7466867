"""What a measurement is asked to do; prints its own command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from helpers.bench.record import Cache
from helpers.errors import UsageError

Order = Literal["random", "sequential"]


@dataclass(frozen=True)
class BenchConfig:
    """How to measure.

    Args:
        repeats: Number of rounds.
        count: Samples a run at most.
        orders: Orders of reading (only for reads).
        caches: States of the page cache (only for reads).
        reference: Ratios are against this one; None takes plain files or concatenation.
        seed: Of the order of reads and of the rounds.
        cap: Keep to the limit on a shared file system.
    """

    repeats: int = 7
    count: int = 3000
    orders: tuple[Order, ...] = ("random", "sequential")
    caches: tuple[Cache, ...] = ("warm", "cold")
    reference: str | None = None
    seed: int = 0
    cap: bool = True

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.count < 1:
            raise UsageError(
                f"{self.repeats} rounds of {self.count} samples were asked for",
                expected="at least one of each",
                next_step="Use --repeats 5 or more",
            )
        if self.seed < 0:
            raise UsageError(
                f"the seed is {self.seed}", expected="a seed of 0 or more", next_step="Choose another seed"
            )

    def to_cli(self, what: str, targets: Sequence[str] = ()) -> str:
        """The command that does the same run."""
        words = ["python", "-m", "helpers", "bench", what, *targets]
        words += ["--repeats", str(self.repeats), "--count", str(self.count)]
        words += ["--order", _one_or_both(self.orders), "--cache", _one_or_both(self.caches)]
        words += ["--reference", self.reference] if self.reference is not None else []
        words += ["--seed", str(self.seed)] + ["--no-cap"] * (not self.cap)
        return shlex.join(words)


def _one_or_both(chosen: Sequence[str]) -> str:
    return chosen[0] if len(chosen) == 1 else "both"
