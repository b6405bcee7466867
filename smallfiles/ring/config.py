"""How a ring is to be: its size, its producers, its name.

The trap: a ring lies in memory, and `/dev/shm` counts against the memory of the job. So the size that is
not asked for is a part of what the job has left, never of what the node has. Notebook 08 teaches it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, get_args

from smallfiles.errors import UsageError
from smallfiles.machine import usable_cpus
from smallfiles.ring.folder import SHARED_MEMORY

Copy = Literal["none", "copy", "pinned"]


@dataclass(frozen=True)
class RingConfig:
    """How to fill a ring.

    Args:
        name: By which the trainer and `ring status` find it; None makes one up.
        slots: Batches that it holds; None derives it from free memory.
        size_bytes: Or its size in bytes.
        producers: How many make batches; None takes as many as there are usable CPUs.
        epochs: How many epochs to fill; None for no end.
        resume: Go on where the trainer of a killed ring of this name was.
        where: A folder in memory.
        wait_s: How long a trainer waits for a filler to come, or to come back.
        copy: What the trainer gets: views of the slot, copies, or copies in pinned memory.
    """

    name: str | None = None
    slots: int | None = None
    size_bytes: int | None = None
    producers: int | None = None
    epochs: int | None = None
    resume: bool = True
    where: Path = SHARED_MEMORY
    wait_s: float = 300.0
    copy: Copy = "none"

    def __post_init__(self) -> None:
        if self.slots is not None and self.size_bytes is not None:
            _refuse("both slots and bytes were asked for", "one of them", "Leave one out")
        for what, number, least in (
            ("slots", self.slots, 2),
            ("bytes", self.size_bytes, 1),
            ("producers", self.producers, 1),
            ("epochs", self.epochs, 1),
        ):
            if number is not None and number < least:
                _refuse(f"{number} {what} were asked for", f"{least} or more", "Choose another number")
        if self.wait_s < 0:
            _refuse(f"a wait of {self.wait_s} s was asked for", "0 or more", "Choose another number")
        if self.copy not in get_args(Copy):
            _refuse(f"the copy is {self.copy!r}", f"one of {', '.join(get_args(Copy))}", "Choose one")

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
            ("--bytes", self.size_bytes, None),
            ("--producers", self.producers, None),
            ("--epochs", self.epochs, None),
            ("--where", str(self.where), str(SHARED_MEMORY)),
        ):
            words += [flag, str(value)] if value != default else []
        words += [] if self.resume else ["--fresh"]
        return shlex.join(words)


def _refuse(got: str, expected: str, next_step: str) -> NoReturn:
    raise UsageError(got, expected=expected, next_step=next_step)
