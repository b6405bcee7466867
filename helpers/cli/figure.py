"""`figure`: draw what a measurement kept."""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

from helpers.cli.arguments import Verbs, add_verb
from helpers.cli.output import print_json

_MORE = """\
One panel a condition (order, cache state), a bar for the median and a dot for each run; titles state what
was found. Records of different conditions are not put into one panel."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "figure",
        "draw the records that a measurement kept",
        _MORE,
        [
            "python -m helpers bench read a.arrow a.h5 --save R.json",
            "python -m helpers figure R.json R.png",
        ],
    )
    parser.add_argument("records", type=Path, metavar="R.json", help="what bench --save wrote")
    parser.add_argument("out", type=Path, metavar="OUT.png", help="the picture; OUT.svg is written beside it")
    parser.add_argument("--reference", metavar="NAME", help="compare with this one; the first if not given")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw, and say in words what the picture shows."""
    from helpers import plots
    from helpers.bench.record import load

    records = load(arguments.records)
    groups = [list(group) for _, group in groupby(records, key=lambda record: (record.what, record.cache))]
    figure = plots.throughput(*groups, reference=arguments.reference)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    svg, png = plots.save(figure, arguments.out.with_suffix(""))
    text = plots.alt_text(*groups, reference=arguments.reference)
    if arguments.json:
        print_json({"samples": sum(record.samples for record in records), "png": str(png), "alt": text})
    else:
        print(f"wrote {png} and {svg}\n{text}")
    return 0
