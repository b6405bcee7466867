"""`synth`: a small faithful copy of a real data set, made from a seed."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import Verbs, add_verb
from smallfiles.cli.output import in_seconds, print_json
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from smallfiles.sources.synthetic import Made

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
        odd: Add the odd but readable files that real data sets hold (PNG named JPEG, CMYK, rotated …).
        broken: Make this many files empty or cut off.
        workers: Processes; None takes all usable CPUs.
    """

    layout: str = "folder"
    count: int = 3000
    seed: int = 0
    classes: int = 10
    odd: bool = False
    broken: int = 0
    workers: int | None = None

    def to_cli(self, out: str) -> str:
        """The command line of the same run."""
        words = ["smallfiles", "synth", out, "--layout", self.layout]
        words += ["--count", str(self.count), "--seed", str(self.seed), "--classes", str(self.classes)]
        words += ["--odd"] * self.odd
        words += ["--broken", str(self.broken)] if self.broken else []
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
            "smallfiles synth data --layout folder --count 3000",
            "smallfiles synth ilsvrc --layout kaggle --count 500 --odd",
            "smallfiles synth flickr --layout flickr30k --count 500 --seed 1",
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
    parser.add_argument("--broken", type=int, default=0, metavar="N", help="make N files empty or cut off")
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
        broken=arguments.broken,
        workers=arguments.workers,
    )


def run(arguments: argparse.Namespace) -> int:
    """Make it."""
    from smallfiles.sources import synthetic

    config = config_of(arguments)
    made = synthetic.make(
        arguments.out,
        config.layout,
        count=config.count,
        seed=config.seed,
        classes=config.classes,
        odd=config.odd,
        broken=config.broken,
        workers=config.workers,
    )
    if arguments.json:
        print_json(_as_json(made, config))
        return 0
    rate = made.images / max(made.seconds, 1e-9)
    print(
        f"made {made.path}: {made.images:,} images ({bytes_text(made.bytes)}), layout {made.layout}, "
        f"in {in_seconds(made.seconds)}, {rate:,.0f} images/s"
    )
    for odd in made.odd:
        print(f"  {odd.kind}: {odd.path}")
    return 0


def _as_json(made: Made, config: SynthConfig) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "layout": made.layout,
        "samples": made.images,
        "bytes": made.bytes,
        "seconds": round(made.seconds, 3),
        "seed": config.seed,
        "classes": list(made.classes),
        "odd": [asdict(odd) for odd in made.odd],
    }
