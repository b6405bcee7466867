"""What to train, and for how long: a frozen record that prints its own command line.

The trap: the learning rate that suits one rank does not suit sixteen; here it is meant for the batch of all
ranks together, and said so. Notebooks 08 and 10 print the commands.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from smallfiles.errors import UsageError
from smallfiles.loading.config import LoaderConfig, flag
from smallfiles.loading.config import add_flags as add_loader_flags

Model = Literal["small", "resnet18", "resnet50"]
MODELS = ("small", "resnet18", "resnet50")
MOST_SIZE = 4096
OF_THE_RING = tuple(each.name for each in dataclasses.fields(LoaderConfig) if each.name != "seed")
"""What the filler of a ring decides."""
OF_MEASURING = ("batch", "workers", "mode", "on_error")
"""What measuring on a validation set takes from the loader's settings."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Args:
        loader: How batches are made; its seed is that of the first weights too.
        model: `small` learns the synthetic classes in a minute on a CPU.
        epochs: Passes over the data.
        size: Side of the crops, in pixels.
        rate: Learning rate for the batch of all ranks together.
        max_steps: Stop an epoch after so many steps; 0 does not.
        ring: Name of a ring that another program fills; empty makes batches by the loader.
        checkpoint: Folder for checkpoints; None keeps none.
        every: Steps between checkpoints; 0 writes one after each epoch.
        wait: Seconds in which the filler of the ring may still come.
    """

    loader: LoaderConfig = field(default_factory=LoaderConfig)
    model: Model = "small"
    epochs: int = 3
    size: int = 64
    rate: float = 0.003
    max_steps: int = 0
    ring: str = ""
    checkpoint: Path | None = None
    every: int = 0
    wait: float = 5.0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            _refuse(f"model is {self.model!r}", f"one of {', '.join(MODELS)}")
        for name, least in (("epochs", 1), ("size", 32), ("max_steps", 0), ("every", 0)):
            if getattr(self, name) < least:
                _refuse(f"{name.replace('_', '-')} is {getattr(self, name)}", f"{least} or more")
        if self.size > MOST_SIZE:
            _refuse(
                f"size is {self.size:,}",
                f"crops of at most {MOST_SIZE:,} pixels a side",
                "--size 224 is usual",
            )
        if self.every and self.checkpoint is None:
            _refuse("every is given without a checkpoint", "a folder for checkpoints", "Add --checkpoint DIR")
        if self.wait < 0 or (self.wait != type(self).wait and not self.ring):
            _refuse(
                f"wait is {self.wait:g}",
                "seconds to wait for a ring",
                "Name it with --ring, or leave --wait out",
            )
        if not 0 < self.rate < 10:
            _refuse(f"rate is {self.rate}", "a learning rate above 0 and below 10")

    def to_cli(self, data: Path | str, val: Path | str | None = None) -> str:
        """The command line that does the same.

        Args:
            data: The packed file.
            val: Another, to measure accuracy on.
        """
        words = ["smallfiles", "train", str(data)]
        if val is not None:
            words += ["--val", str(val)]
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name != "loader" and value != each.default:
                words += ["--" + each.name.replace("_", "-"), str(value)]
        return " ".join(filter(None, [shlex.join(words), self.loader.to_cli()]))

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> TrainConfig:
        """What a parser with `add_flags` has read."""
        own = {
            each.name: getattr(args, each.name) for each in dataclasses.fields(cls) if each.name != "loader"
        }
        return cls(loader=LoaderConfig.from_args(args), **own)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each field of `TrainConfig` and of its loader; one seed serves both."""
    add = parser.add_argument
    default = TrainConfig()
    add(
        "--model",
        choices=MODELS,
        default=default.model,
        help="small learns the synthetic classes in a minute",
    )
    add("--epochs", type=int, default=default.epochs, metavar="N", help="passes over the data")
    add("--size", type=int, default=default.size, metavar="PIXELS", help="side of the crops")
    add("--rate", type=float, default=default.rate, help="learning rate for the batch of all ranks together")
    add("--max-steps", type=int, default=0, metavar="N", help="stop an epoch after so many steps")
    add("--ring", default="", metavar="NAME", help="take batches from this ring, which another program fills")
    add(
        "--wait",
        type=float,
        default=default.wait,
        metavar="SECONDS",
        help="how long the ring's filler may take to come",
    )
    add("--checkpoint", type=Path, metavar="DIR", help="write checkpoints here, and go on from the last one")
    add(
        "--every",
        type=int,
        default=0,
        metavar="STEPS",
        help="steps between checkpoints, besides each epoch's",
    )
    add_loader_flags(parser.add_argument_group("how batches are made"))


def check_ring(config: TrainConfig, measures: bool, typed: Sequence[str] = ()) -> None:
    """Refuse settings of batches that nobody would follow, since they come out of a ring.

    Args:
        config: Of the training.
        measures: Whether a validation set is read by a loader.
        typed: Settings that were named on a command line, though perhaps as they are by default.

    Raises:
        UsageError: There are some.
    """
    default = LoaderConfig()
    ignored = [
        flag(name)
        for name in OF_THE_RING
        if (name in typed or getattr(config.loader, name) != getattr(default, name))
        and not (measures and name in OF_MEASURING)
    ]
    if config.ring and ignored:
        _refuse(
            f"{', '.join(ignored)} would change nothing, since the batches come out of ring {config.ring}",
            "such settings where the ring is filled",
            "Give them to: smallfiles ring fill",
        )


def _refuse(got: str, expected: str, next_step: str = "Choose another value") -> None:
    raise UsageError(got, expected=expected, next_step=next_step)
