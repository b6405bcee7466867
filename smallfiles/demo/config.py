"""What the demo is asked to do; prints its own command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from smallfiles.errors import UsageError


@dataclass(frozen=True)
class DemoConfig:
    """How to run the demo.

    Args:
        data: Your data set, which is only read; None makes one.
        count: Samples to make, or to take from `data` at most.
        out: Folder for everything that is written.
        repeats: Rounds of measurement.
        seed: Of the data made and of the order of reads.
    """

    data: Path | None = None
    count: int = 3000
    out: Path = Path("demo_output")
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or self.repeats < 1:
            raise UsageError(
                f"{self.count} samples and {self.repeats} rounds were asked for",
                expected="at least one of each",
                next_step="Leave out --count and --repeats to take what suits most machines",
            )
        if self.seed < 0:
            raise UsageError(
                f"the seed is {self.seed}", expected="a seed of 0 or more", next_step="Choose another seed"
            )

    def to_cli(self) -> str:
        """The command that does the same run."""
        words = ["smallfiles", "demo", "--count", str(self.count), "--out", str(self.out)]
        words += ["--data", str(self.data)] if self.data is not None else []
        words += ["--repeats", str(self.repeats), "--seed", str(self.seed)]
        return shlex.join(words)
