"""`demo`: all steps on one page; `synth`: a small faithful copy of a real data set, made from a seed."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smallfiles import options
from smallfiles.cli.arguments import Verbs, add_run, add_source_flags
from smallfiles.cli.output import in_seconds, look_at, report, say
from smallfiles.demo import DemoConfig
from smallfiles.folders import SourceOptions
from smallfiles.options import option
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from smallfiles.demo.steps import DemoResult


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
    """Add the verbs."""
    parser = add_run(verbs, "demo", run)
    options.add_flags(parser, DemoConfig)
    add_source_flags(parser)
    parser = add_run(verbs, "synth", run_synth)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    options.add_flags(parser, SynthConfig)


def run(arguments: argparse.Namespace) -> int:
    """Run all steps once: data, manifest, packing, measuring, report.

    Creates a data set (or takes yours, which is only read), writes its manifest, packs it into four formats
    with verification, measures reading, prints a table and writes a figure and a small report. Under three
    minutes on two cores.

    Examples:
        smallfiles demo
        smallfiles demo --data /path/to/my/images --count 5000
    """
    from smallfiles.demo.steps import run as run_demo

    config = options.from_args(DemoConfig, arguments, reading=options.from_args(SourceOptions, arguments))
    result = run_demo(config, say)
    record = {
        "samples": result.samples,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "report": result.report,
        "figure": result.figure,
        "records": [each.as_json() for each in result.reads.records],
    }
    return report(arguments, record, *_lines(result, config))


def _lines(result: DemoResult, config: DemoConfig) -> Iterator[str]:
    from smallfiles.demo.steps import LEGEND

    yield f"\n{result.table}\n"
    about = f"{result.samples:,} samples, {bytes_text(result.bytes)}, {config.repeats} rounds. {LEGEND}"
    yield textwrap.fill(about, 104)
    yield f"\nin {in_seconds(result.seconds)}; the page: {result.report}; the figure: {result.figure}"
    yield look_at(config.out / "packed" / "set.arrow")
    if config.data is None:
        yield "\nThe same with your own images, which are only read:\n  smallfiles demo --data DIR"


def run_synth(arguments: argparse.Namespace) -> int:
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
    record = {name: getattr(made, name) for name in ("path", "layout", "bytes", "classes")}
    record |= {"samples": made.images, "seconds": round(made.seconds, 3), "seed": config.seed}
    return report(arguments, record, text)
