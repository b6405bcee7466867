"""`inspect`: what is inside a packed file."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.cli.arguments import FORMATS, Verbs, add_verb

_MORE = """\
Format, layout, number of samples, classes, how and from what it was packed, the first keys and the
distribution of sizes. Reads the index only, not the samples."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "inspect",
        "show what is inside a packed file",
        _MORE,
        ["python -m helpers inspect train.arrow", "python -m helpers inspect train.tars --json"],
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look inside."""
    raise NotImplementedError
