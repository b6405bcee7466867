"""`simulate`: forecast a training on one to ten thousand nodes; `advise`: measure data, and recommend."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smallfiles.cli.arguments import Verbs, add_run, add_source_flags
from smallfiles.cli.output import in_seconds, report
from smallfiles.folders import SourceOptions
from smallfiles.options import add_flags, from_args
from smallfiles.progress import bytes_text, plural
from smallfiles.scaling import BROADCAST, WAYS, Storage, TrainingPlan, Work, ways_of

if TYPE_CHECKING:
    from smallfiles.advise import Advice, Measured
    from smallfiles.measure import Record
    from smallfiles.scaling import Forecast

Given = TypeVar("Given", Work, Storage)
_EACH = (*WAYS, *BROADCAST)
_NODES = (1, 10, 100, 1000, 10_000)


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_run(verbs, "simulate", run)
    help = f"numbers of nodes; {' '.join(map(str, _NODES))} if not given"
    parser.add_argument("--nodes", type=int, nargs="+", default=_NODES, metavar="N", help=help)
    ways = parser.add_argument("--way", choices=_EACH, action="append", help="how samples are stored")
    ways.help = f"{ways.help}; all of them if not given"
    saved = "what smallfiles bench read, bench load or doctor --share saved"
    records: dict[str, Any] = {"type": Path, "nargs": "+", "default": (), "metavar": "R.json"}
    parser.add_argument("--records", **records, help=f"{saved}; what flags say goes before")
    add_flags(parser.add_argument_group("the training"), Work)
    add_flags(parser.add_argument_group("the storage"), Storage)
    parser = add_run(verbs, "advise", run_advise)
    parser.add_argument("dir", type=Path, metavar="DIR", help="your data, as for `pack`")
    parser.add_argument("--records", **records, help=f"{saved} on the storage of the training")
    add_flags(parser, TrainingPlan)
    add_source_flags(parser)


def _records(arguments: argparse.Namespace) -> list[Record]:
    from smallfiles.measure.record import load

    return [record for path in arguments.records for record in load(path)]


def run(arguments: argparse.Namespace) -> int:
    """Forecast the time of an epoch on 1 to 10,000 nodes, and how long GPUs wait.

    A queueing model: batches of all workers pass through metadata server, storage targets, network and
    decoder, and all GPUs step together. Use the numbers that smallfiles bench measured on your file system.

    Examples:
        smallfiles simulate
        smallfiles simulate --nodes 1 2 4 8 --way files --metadata-ops 30000 --latency-ms 2
        smallfiles simulate --records read.json load.json --metadata-ops 30000
    """
    from smallfiles.scaling import saturation, simulate

    work, storage = from_args(Work, arguments), from_args(Storage, arguments)
    if arguments.records:
        from smallfiles.advise import costs_of

        measured = costs_of(_records(arguments))
        work, storage = _over(measured[0], work), _over(measured[1], storage)
    ways = ways_of(work.sample_bytes)
    found = {
        name: [simulate(work, storage, ways[name], nodes) for nodes in arguments.nodes]
        for name in arguments.way or _EACH
    }
    full = {}
    for name in found:
        parts = saturation(work, storage, ways[name])
        full[name] = {part: at for part, at in parts.items() if at < float("inf")}
    rows = [
        {"way": name, **asdict(each), "limit": each.limit, "change_first": each.change_first}
        for name, forecasts in found.items()
        for each in forecasts
    ]
    lines = [line for name, forecasts in found.items() for line in _lines(name, forecasts, full[name])]
    return report(arguments, {"forecasts": rows, "full_at_nodes": full}, *lines)


def _lines(name: str, forecasts: list[Forecast], full: dict[str, float]) -> Iterator[str]:
    yield _table(name, forecasts)
    parts = [f"{part} {_at(at)}" for part, at in full.items()]
    yield f"full if no GPU waited: {', '.join(parts) or 'nothing that nodes share'}"
    cures = {each.limit: each.change_first for each in forecasts if each.limit != "GPUs"}
    yield from (f"change first, where the limit is {limit}: {cure}" for limit, cure in cures.items())
    yield ""


def _over(measured: Given, given: Given) -> Given:
    """Replace defaults by measured values, except where flags set a value."""
    chosen = {each.name: (getattr(given, each.name), each.default) for each in fields(given)}
    return replace(measured, **{name: value for name, (value, default) in chosen.items() if value != default})


def _at(nodes: float) -> str:
    """Format the number of nodes at saturation. GPUs whose steps take no time saturate everything."""
    return f"at {nodes:,.0f} nodes" if nodes >= 1 else "before the first node"


def _table(name: str, forecasts: list[Forecast]) -> str:
    from smallfiles.measure.table import aligned

    rows = [
        [
            f"{each.nodes:,}",
            in_seconds(each.first_epoch_s),
            in_seconds(each.epoch_s),
            f"{each.waiting:.0%}",
            bytes_text(each.shared_bytes),
            each.limit,
        ]
        for each in forecasts
    ]
    heads = (f"{name}: nodes", "first epoch", "each other", "GPUs wait", "shared reads", "limit")
    return aligned(heads, rows)


def run_advise(arguments: argparse.Namespace) -> int:
    """Measure your own files for a minute, and recommend format, shards, staging and workers.

    A few hundred files are read, and some decoded; the rest is a forecast as by smallfiles simulate.
    Nothing is written.

    Examples:
        smallfiles advise data
        smallfiles advise /scratch/me/imagenet --nodes 64 --epochs 90 --gpus 4 --step-ms 30
    """
    from smallfiles.advise import advise, measure_folder

    plan = from_args(TrainingPlan, arguments)
    options = from_args(SourceOptions, arguments)
    found = measure_folder(arguments.dir, options)
    advice = advise(found, plan, str(arguments.dir), options, _records(arguments))
    totals = {"samples": found.samples, "bytes": found.samples * found.sample_bytes}
    record = {**totals, "measured": asdict(found), "advice": asdict(advice)}
    return report(arguments, record, *_advised(advice, plan, found))


def _advised(advice: Advice, plan: TrainingPlan, found: Measured) -> Iterator[str]:
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
    yield aligned(("way", "an epoch", "GPUs wait", f"{plan.epochs} epochs", "limit"), rows)
    if advice.way == "files":
        yield from _leave(advice, plan, found)
    else:
        before, after = (in_seconds(3600 * advice.hours[way]) for way in ("files", advice.way))
        times = f": {plural(plan.epochs, 'epoch')} take {after} in place of {before}"
        yield f"\n{_DO[advice.way]}{times if advice.saved >= _CLEAR else ''}."
        yield f"Use {plural(advice.workers, 'worker')} per GPU:"
    yield from (f"  {command}" for command in advice.commands)


_DO = {
    "packed": "Pack the files into one file",
    "shards": "Pack the files into shards, which are read in order",
    "staged": "Pack the files into one file, and copy it to each node at the start of the job",
    "broadcast": "Pack the files into one file, and send it to all nodes at the start of the job",
}
_CLEAR = 0.005  # of the time; a smaller share is shown as 0 %


def _leave(advice: Advice, plan: TrainingPlan, found: Measured) -> Iterator[str]:
    """Say why plain files may stay, with the numbers that this depends on."""
    epoch_s = advice.forecasts["files"].epoch_s
    rate, capacity = found.samples / epoch_s, plan.metadata_ops_s or Storage.metadata_ops_s
    quota = (
        f"{found.files_share:.0%} of your quota of files is used"
        if found.files_share
        else "no quota was found"
    )
    saved = f"only {advice.saved:.0%} of the" if advice.saved >= _CLEAR else "no"
    yield f"\nLeave the {found.samples:,} files as they are ({quota}): packing them saves {saved} time here."
    yield f"{plural(plan.epochs, 'epoch')} on {plural(plan.nodes, 'node')} read {rate:,.0f} files per second."
    yield f"One node can read {1 / found.together_s:,.0f}, and one file takes {1e3 * found.alone_s:.2g} ms."
    if found.shared:
        operations = f"{WAYS['files'].operations * rate:,.0f} of the {capacity:,.0f} operations per second"
        yield f"This is {operations} that the metadata servers can do."
    yield "Ask again before you train on more nodes, or on another file system. Until then:"
