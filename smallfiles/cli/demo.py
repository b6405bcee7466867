"""`demo`: the whole road on one page."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import Verbs, add_verb
from smallfiles.cli.output import in_seconds, print_json, say
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from smallfiles.demo import DemoConfig, DemoResult

_MORE = """\
Makes a data set (or takes yours, which is only read), writes its manifest, packs it into every
format with verification, measures reading, prints a table and writes a figure and a small report.
Under three minutes on two cores."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "demo",
        "go the whole road once: data, manifest, packing, measuring, report",
        _MORE,
        ["smallfiles demo", "smallfiles demo --data /path/to/my/images --count 5000"],
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="your own data set; it is only read")
    parser.add_argument(
        "--count", type=int, default=3000, metavar="N", help="samples to make, or to take from --data at most"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo_output"), metavar="DIR", help="where everything goes"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds of measurement")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the images and the order of reads"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Go, show the table, say what to do next."""
    from smallfiles.demo import run as run_demo

    result = run_demo(config_of(arguments), say)
    if arguments.json:
        print_json(_as_json(result))
    else:
        _tell(result, arguments)
    return 0


def config_of(arguments: argparse.Namespace) -> DemoConfig:
    """The configuration that a parsed command line means."""
    from smallfiles.demo import DemoConfig

    return DemoConfig(
        data=arguments.data,
        count=arguments.count,
        out=arguments.out,
        repeats=arguments.repeats,
        seed=arguments.seed,
    )


def _as_json(result: DemoResult) -> dict[str, Any]:
    return {
        "samples": result.samples,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "report": str(result.report),
        "figure": str(result.figure),
        "records": [record.as_json() for record in result.reads.records],
    }


def _tell(result: DemoResult, arguments: argparse.Namespace) -> None:
    from smallfiles.demo.rows import LEGEND, as_text

    print(f"\n{as_text(result.rows)}\n")
    about = f"{result.samples:,} samples, {bytes_text(result.bytes)}, {arguments.repeats} rounds. {LEGEND}"
    print("\n".join(textwrap.wrap(about, 104)))
    print(f"\nin {in_seconds(result.seconds)}; the page: {result.report}; the figure: {result.figure}")
    if arguments.data is None:
        print("\nThe same with your own images, which are only read:")
        print("  smallfiles demo --data DIR")
