"""`demo`: all steps on one page."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from smallfiles import options
from smallfiles.cli.arguments import Verbs, add_run, add_source_flags
from smallfiles.cli.output import in_seconds, look_at, report, say
from smallfiles.demo import DemoConfig
from smallfiles.folders import SourceOptions
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from smallfiles.demo.steps import DemoResult


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "demo", run)
    options.add_flags(parser, DemoConfig)
    add_source_flags(parser)


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
        "report": str(result.report),
        "figure": str(result.figure),
        "records": [each.as_json() for each in result.reads.records],
    }
    return report(arguments, record, *_lines(result, config))


def _lines(result: DemoResult, config: DemoConfig) -> Iterator[str]:
    from smallfiles.demo.report import LEGEND, as_text

    yield f"\n{as_text(result.rows)}\n"
    about = f"{result.samples:,} samples, {bytes_text(result.bytes)}, {config.repeats} rounds. {LEGEND}"
    yield textwrap.fill(about, 104)
    yield f"\nin {in_seconds(result.seconds)}; the page: {result.report}; the figure: {result.figure}"
    yield look_at(config.out / "packed" / "set.arrow")
    if config.data is None:
        yield "\nThe same with your own images, which are only read:\n  smallfiles demo --data DIR"
