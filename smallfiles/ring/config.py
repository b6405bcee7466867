"""How a ring is to be: its size, its producers, its name.

The trap: a ring lies in memory, and `/dev/shm` counts against the memory of the job. So the size that is
not asked for is a part of what the job has left, never of what the node has. Notebook 08 teaches it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from smallfiles.errors import UsageError
from smallfiles.machine import usable_cpus
from smallfiles.machine.nodelocal import SHARED_MEMORY


@dataclass(frozen=True)
class RingConfig:
    """How to fill a ring.

    Args:
        name: By which the trainer and `ring status` find it; None makes one up.
        slots: Batches that it holds; None derives it from free memory.
        producers: How many make batches; None takes as many as there are usable CPUs.
        epochs: How many epochs to fill; None for no end.
        where: A folder in memory.
    """

    name: str | None = None
    slots: int | None = None
    producers: int | None = None
    epochs: int | None = None
    where: Path = SHARED_MEMORY

    def __post_init__(self) -> None:
        for what, number, least in (
            ("slots", self.slots, 2),
            ("producers", self.producers, 1),
            ("epochs", self.epochs, 1),
        ):
            if number is not None and number < least:
                raise UsageError(
                    f"{number} {what} were asked for",
                    expected=f"{least} or more",
                    next_step="Choose another number",
                )

    @property
    def producer_count(self) -> int:
        """How many producers there are."""
        return self.producers if self.producers is not None else usable_cpus()

    def to_cli(self, data: str, *more: str) -> str:
        """The filler as a program of its own, to be pasted into a second terminal or a job script.

        Args:
            data: The packed file.
            more: Further words, such as the flags of the batches.
        """
        words = ["smallfiles", "ring", "fill", data, "--name", self.name or "train", *more]
        for flag, value, default in (
            ("--slots", self.slots, None),
            ("--producers", self.producers, None),
            ("--epochs", self.epochs, None),
            ("--where", str(self.where), str(SHARED_MEMORY)),
        ):
            words += [flag, str(value)] if value != default else []
        return shlex.join(words)
