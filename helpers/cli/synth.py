"""`synth`: a small faithful copy of a real data set, made from a seed."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path

from helpers.cli.arguments import Verbs, add_verb

LAYOUTS = ("folder", "prepared", "kaggle", "official", "flickr30k")
_MORE = """\
Everything in the course works without downloads: images with the sizes, names, folders and odd files
of ImageNet and Flickr30K, the same bytes for the same seed."""


@dataclass(frozen=True)
class SynthConfig:
    """What to make.

    Args:
        layout: One of `LAYOUTS`.
        count: Number of images.
        seed: Equal seeds give equal bytes.
        classes: Number of classes (not for flickr30k).
        odd: Add the odd files that real data sets hold (PNG named JPEG, CMYK, truncated, empty …).
        workers: Processes; None takes all usable CPUs.
    """

    layout: str = "folder"
    count: int = 3000
    seed: int = 0
    classes: int = 10
    odd: bool = False
    workers: int | None = None

    def to_cli(self, out: str) -> str:
        """The command line of the same run."""
        words = ["python", "-m", "helpers", "synth", out, "--layout", self.layout]
        words += ["--count", str(self.count), "--seed", str(self.seed), "--classes", str(self.classes)]
        words += ["--odd"] * self.odd
        words += ["--workers", str(self.workers)] if self.workers is not None else []
        return shlex.join(words)


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "synth",
        "make a small faithful copy of a real data set, from a seed",
        _MORE,
        [
            "python -m helpers synth data --layout folder --count 3000",
            "python -m helpers synth ilsvrc --layout kaggle --count 500 --odd",
            "python -m helpers synth flickr --layout flickr30k --count 500 --seed 1",
        ],
    )
    default = SynthConfig()
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    parser.add_argument("--layout", choices=LAYOUTS, default=default.layout, help="whose layout to copy")
    parser.add_argument("--count", type=int, default=default.count, metavar="N", help="number of images")
    parser.add_argument(
        "--seed", type=int, default=default.seed, metavar="S", help="equal seeds, equal bytes"
    )
    parser.add_argument("--classes", type=int, default=default.classes, metavar="K", help="number of classes")
    parser.add_argument("--odd", action="store_true", help="add the odd files that real data sets hold")
    parser.add_argument("--workers", type=int, metavar="W", help="processes; all usable CPUs if not given")
    parser.set_defaults(run=run)


def config_of(arguments: argparse.Namespace) -> SynthConfig:
    """The configuration that a parsed command line means."""
    return SynthConfig(
        layout=arguments.layout,
        count=arguments.count,
        seed=arguments.seed,
        classes=arguments.classes,
        odd=arguments.odd,
        workers=arguments.workers,
    )


def run(arguments: argparse.Namespace) -> int:
    """Make it."""
    raise NotImplementedError
