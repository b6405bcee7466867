"""A small real training loop, on one rank or many, that measures how long it waits for data.

    models      a small CNN, or a ResNet of torchvision; labels and classes of the sets
    group       the ranks of one training, and their collective operations
    step_timer  where the time of a step goes
    checkpoint  written to a temporary file and renamed, read without unpickling
    loop        epochs of steps; accuracy over all ranks

The traps: throughput alone does not show whether the data or the model is the limit. So every report has the
share of time in which nothing could be computed because no batch was ready. And a learning rate
that suits one rank does not suit sixteen; here it applies to the batch of all ranks together, and its help
says so. Notebooks 08 and 10 use it.

Here are the settings of a training; the rest is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smallfiles import lazy
from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig
from smallfiles.options import Settings, flag_of, option, to_argv
from smallfiles.selection import DRAWS

if TYPE_CHECKING:
    from smallfiles.training.loop import EpochReport as EpochReport
    from smallfiles.training.loop import TrainReport as TrainReport
    from smallfiles.training.loop import train as train

__getattr__ = lazy.names(__name__)


Model = Literal["small", "resnet18", "resnet50"]
OF_THE_RING = tuple(name for name in LoaderConfig.__dataclass_fields__ if name not in ("seed", *DRAWS))
"""Settings that the filler of a ring determines; which samples are used, both have to know."""
OF_MEASURING = ("batch", "workers", "mode", "on_error")
"""Settings that the loader of the validation set uses."""


@dataclass(frozen=True)
class TrainConfig(Settings):
    """How to train.

    Args:
        loader: How batches are made; its seed also initialises the weights.
        target: The field to learn: `label`, a mask, or a number; empty takes the label, or the only other.
        model: `small` learns the synthetic classes in a minute on a CPU.
        epochs: Passes over the data.
        size: Side of the crops, in pixels.
        rate: Learning rate for the batch of all ranks together.
        max_steps: Stop an epoch after this many steps; 0 means no limit.
        ring: Name of a ring that another program fills; empty uses the loader.
        wait: Seconds to wait for the filler of the ring.
        checkpoint: Folder for checkpoints; None writes none.
        every: Steps between checkpoints; 0 writes them only after each epoch.
    """

    loader: LoaderConfig = field(default_factory=LoaderConfig)
    target: str = option(
        "",
        "the field to learn: label, a mask, or a number (default: the label, or else the only other)",
        metavar="FIELD",
    )
    model: Model = option("small", "small learns the synthetic classes in a minute")
    epochs: int = option(3, "passes over the data", least=1)
    size: int = option(64, "side of the crops", least=32, most=4096, metavar="PIXELS")
    rate: float = option(0.003, "learning rate for the batch of all ranks together", metavar="RATE")
    max_steps: int = option(0, "stop an epoch after this many steps; 0: no limit", least=0)
    ring: str = option("", "take batches from this ring, which another program fills")
    wait: float = option(5.0, "how long to wait for the filler of the ring", least=0, metavar="SECONDS")
    checkpoint: Path | None = option(
        None, "write checkpoints here, and resume from the last one", metavar="DIR"
    )
    every: int = option(0, "steps between checkpoints, besides one per epoch", least=0, metavar="STEPS")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 10:
            _refuse(f"rate is {self.rate}", "a learning rate above 0 and below 10")
        if self.every and self.checkpoint is None:
            _refuse("every is given without a checkpoint", "a folder for checkpoints", "Add --checkpoint DIR")
        if self.wait != type(self).wait and not self.ring:
            _refuse(
                f"wait is {self.wait:g}",
                "seconds to wait for a ring",
                "Name it with --ring, or leave --wait out",
            )

    def to_cli(self, data: Path | str, val: Path | str | None = None) -> str:
        """Return the command line for this training.

        Args:
            data: The packed file.
            val: The validation set.
        """
        measured = [] if val is None else ["--val", str(val)]
        return self.command("train", str(data), *measured, more=to_argv(self.loader))


def check_ring(config: TrainConfig, measures: bool, typed: Sequence[str] = ()) -> None:
    """Refuse settings of batches that have no effect, since the batches come out of a ring.

    Args:
        config: Of the training.
        measures: Whether there is a validation set, which a loader reads.
        typed: Settings given on a command line, perhaps with their default values.

    Raises:
        UsageError: There are some.
    """
    default = LoaderConfig()
    ignored = [
        flag_of(LoaderConfig, name)
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
