"""`synth`: a small faithful copy of a real data set, made from a seed."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from smallfiles import options
from smallfiles.cli.arguments import Verbs, add_run
from smallfiles.cli.output import in_seconds, report
from smallfiles.options import option
from smallfiles.progress import bytes_text


@dataclass(frozen=True)
class SynthConfig:
    """What to make."""

    layout: Literal["folder", "prepared", "kaggle", "official", "flickr30k", "segmentation", "table"] = (
        option("folder", "whose layout to copy")
    )
    count: int = option(3000, "number of images")
    seed: int = option(0, "equal seeds, equal bytes", metavar="S")
    classes: int = option(10, "number of classes (not for flickr30k)", metavar="K")


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "synth", run)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    options.add_flags(parser, SynthConfig)


def run(arguments: argparse.Namespace) -> int:
    """Make a small faithful copy of a real data set, from a seed.

    Everything in the course works without downloads: images with the sizes, names and folders of
    ImageNet and Flickr30K, images with masks, a table of labels; the same bytes for the same seed.

    Examples:
        smallfiles synth data --layout folder --count 3000
        smallfiles synth ilsvrc --layout kaggle --count 500
        smallfiles synth flickr --layout flickr30k --count 500 --seed 1
        smallfiles synth shapes --layout segmentation --count 200
    """
    from smallfiles.sources import synthetic

    config = options.from_args(SynthConfig, arguments)
    made = synthetic.make(arguments.out, **asdict(config))
    rate = made.images / max(made.seconds, 1e-9)
    text = (
        f"made {made.path}: {made.images:,} images ({bytes_text(made.bytes)}), layout {made.layout}, "
        f"in {in_seconds(made.seconds)}, {rate:,.0f} images/s"
    )
    record = {
        "path": str(made.path),
        "layout": made.layout,
        "samples": made.images,
        "bytes": made.bytes,
        "seconds": round(made.seconds, 3),
        "seed": config.seed,
        "classes": list(made.classes),
    }
    return report(arguments, record, text)
