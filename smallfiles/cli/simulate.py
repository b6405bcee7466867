"""`simulate`: forecast a training on one to ten thousand nodes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from smallfiles.cli.arguments import Verbs, add_run
from smallfiles.cli.output import in_seconds, report
from smallfiles.options import add_flags, from_args
from smallfiles.progress import bytes_text
from smallfiles.scaling.config import BROADCAST, WAYS, Storage, Work

if TYPE_CHECKING:
    from smallfiles.scaling import Forecast

Given = TypeVar("Given", Work, Storage)
_EACH = {**WAYS, **BROADCAST}
_NODES = (1, 10, 100, 1000, 10_000)


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "simulate", run)
    parser.add_argument("--nodes", type=int, nargs="+", default=_NODES, metavar="N", help="numbers of nodes")
    ways = parser.add_argument("--way", choices=_EACH, action="append", help="how samples are stored")
    ways.help = f"{ways.help}; all of them if not given"
    records = parser.add_argument("--records", type=Path, nargs="+", default=(), metavar="R.json")
    records.help = (
        "what smallfiles bench read, bench load or doctor --share saved; what flags say goes before"
    )
    add_flags(parser.add_argument_group("the training"), Work)
    add_flags(parser.add_argument_group("the storage"), Storage)


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
        from smallfiles.measure.record import load

        measured = costs_of([record for path in arguments.records for record in load(path)])
        work, storage = _over(measured[0], work), _over(measured[1], storage)
    found = {
        name: [simulate(work, storage, _EACH[name], nodes) for nodes in arguments.nodes]
        for name in arguments.way or _EACH
    }
    full = {}
    for name in found:
        parts = saturation(work, storage, _EACH[name])
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
    """The measured values, except those that flags set."""
    chosen = {each.name: (getattr(given, each.name), each.default) for each in fields(given)}
    return replace(measured, **{name: value for name, (value, default) in chosen.items() if value != default})


def _at(nodes: float) -> str:
    """The number of nodes at saturation; GPUs with steps of no time saturate everything."""
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
