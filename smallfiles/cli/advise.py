"""`advise`: measure a data set for a minute, and recommend."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_run, add_source_flags
from smallfiles.cli.output import in_seconds, report
from smallfiles.folders import SourceOptions
from smallfiles.options import add_flags, from_args
from smallfiles.progress import plural
from smallfiles.scaling.config import TrainingPlan

if TYPE_CHECKING:
    from smallfiles.advise import Advice


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "advise", run)
    parser.add_argument("dir", type=Path, metavar="DIR", help="your data, as for `pack`")
    records = parser.add_argument("--records", type=Path, nargs="+", default=(), metavar="R.json")
    records.help = "what doctor --share or bench --save wrote on the storage of the training"
    add_flags(parser, TrainingPlan)
    add_source_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure your own files for a minute, and recommend format, shards, staging and workers.

    A few hundred files are read, and some decoded; the rest is a forecast as by smallfiles simulate.
    Nothing is written.

    Examples:
        smallfiles advise data
        smallfiles advise /scratch/me/imagenet --nodes 64 --epochs 90 --gpus 4 --step-ms 30
    """
    from smallfiles.advise import advise, measure_folder
    from smallfiles.measure.record import load

    began, plan = perf_counter(), from_args(TrainingPlan, arguments)
    options = from_args(SourceOptions, arguments)
    found = measure_folder(arguments.dir, options)
    records = [record for path in arguments.records for record in load(path)]
    advice = advise(found, plan, str(arguments.dir), options, records)
    totals = {"samples": found.samples, "bytes": found.samples * found.sample_bytes}
    seconds = round(perf_counter() - began, 3)
    record = {**totals, "seconds": seconds, "measured": asdict(found), "advice": asdict(advice)}
    return report(arguments, record, *_lines(advice, plan.epochs))


def _lines(advice: Advice, epochs: int) -> Iterator[str]:
    from smallfiles.measure.table import aligned

    rows = [
        [
            name,
            in_seconds(each.epoch_s),
            f"{each.waiting:.0%}",
            in_seconds(3600 * advice.hours[name]),
            each.limit,
        ]
        for name, each in advice.forecasts.items()
    ]
    yield from (*advice.reasons, "")
    yield aligned(("way", "an epoch", "GPUs wait", f"{epochs} epochs", "limit"), rows)
    yield f"\n{advice.way}, with {plural(advice.workers, 'worker')} per GPU:"
    yield from (f"  {command}" for command in advice.commands)
