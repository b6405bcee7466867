"""`figure`: draw what a measurement kept."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_verb
from smallfiles.cli.output import print_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from smallfiles.measure.record import Record

_MORE = """\
One panel a condition (order, cache state), a bar for the median and a dot for each run; titles state what
was found. Records of different conditions are not put into one panel. Loaders that were measured with several
numbers of workers become lines over these."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "figure",
        "draw the records that a measurement kept",
        _MORE,
        [
            "smallfiles bench read a.arrow a.h5 --save R.json",
            "smallfiles figure R.json R.png",
        ],
    )
    parser.add_argument("records", type=Path, metavar="R.json", help="what bench --save wrote")
    parser.add_argument("out", type=Path, metavar="OUT.png", help="the picture; OUT.svg is written beside it")
    parser.add_argument("--reference", metavar="NAME", help="compare with this one; the first if not given")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw, and say in words what the picture shows."""
    from smallfiles.measure import drawing as plots
    from smallfiles.measure.record import load

    records = load(arguments.records)
    figure, text = _drawn(records, arguments.reference)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    svg, png = plots.save(figure, arguments.out.with_suffix(""))
    if arguments.json:
        print_json({"samples": sum(record.samples for record in records), "png": str(png), "alt": text})
    else:
        print(f"wrote {png} and {svg}\n{text}")
    return 0


def _drawn(records: Sequence[Record], reference: str | None) -> tuple[Figure, str]:
    """Bars a condition; for loaders with several numbers of workers, lines over these."""
    from smallfiles.measure import drawing as plots
    from smallfiles.measure.drawing import loaders
    from smallfiles.measure.loading.advice import STAGES, advice

    epochs = [record for record in records if record.what != STAGES]
    if advice(records) and len({record.workers for record in epochs}) > 1:
        return loaders.tuning(epochs), loaders.alt_text(epochs)
    groups = [list(group) for _, group in groupby(records, key=lambda record: (record.what, record.cache))]
    return plots.throughput(*groups, reference=reference), plots.alt_text(*groups, reference=reference)
