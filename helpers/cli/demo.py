"""`demo`: the whole road on one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.cli.arguments import Verbs, add_verb

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
        ["python -m helpers demo", "python -m helpers demo --data /path/to/my/images --count 5000"],
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="your own data set; it is only read")
    parser.add_argument(
        "--count", type=int, default=3000, metavar="N", help="samples to make, or to take from --data at most"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo_output"), metavar="DIR", help="where everything goes"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds of measurement")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Go."""
    raise NotImplementedError
