"""`bench`: measure with a protocol, write records; `figure`: draw what a measurement kept."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from smallfiles import options
from smallfiles.cli.arguments import Parser, Verbs, add_run, add_verb
from smallfiles.cli.output import report, say
from smallfiles.errors import ResourceError, UsageError
from smallfiles.measure import BenchConfig, LoadBenchConfig

if TYPE_CHECKING:
    from smallfiles.measure import Result


@dataclass(frozen=True)
class Topic:
    """Something to measure.

    Args:
        measure: Takes what is measured and a configuration; its docstring is the help.
        fields: Fields of the configuration that it makes use of; none given means all.
        config: Its configuration.
        several: Whether it takes several packed files, or one data set.
        others: The module with what others do; for functions that take one.
        publish: Writes further files next to the saved records.
    """

    measure: Callable[..., Result]
    fields: tuple[str, ...] = ()
    config: type[BenchConfig] | type[LoadBenchConfig] = BenchConfig
    several: bool = False
    others: str = ""
    publish: Callable[[Path, Result], None] | None = None


def _read(paths: Sequence[Path], config: BenchConfig) -> Result:
    """Random and sequential reads of packed files.

    Warm and cold, all files interleaved round by round; every byte is touched.

    Examples:
        smallfiles bench read train.arrow train.h5 train.tars
        smallfiles bench read train.arrow --cache cold --save results/read.json
    """
    from smallfiles.measure import bench_reads

    return bench_reads(paths, config)


def _pack(source: Path, config: BenchConfig, others: str = "") -> Result:
    """Packing warm data to memory.

    Against plain concatenation, with peak memory.

    Examples:
        smallfiles bench pack data
    """
    from smallfiles.measure import bench_packing

    return bench_packing(source, config, others=others)


def _load(paths: Sequence[Path], config: LoadBenchConfig, others: str = "") -> Result:
    """Whole epochs of training crops.

    By processes, threads and through a ring; where the time of a batch goes; with --step, how many
    accelerators could be fed.

    Examples:
        smallfiles bench load train.arrow train.h5 train.tars --workers 2,4
        smallfiles bench load train.arrow --step resnet50-h100
    """
    from smallfiles.measure.loading import bench_loading

    return bench_loading(paths, config, others=others)


TOPICS = {
    "read": Topic(_read, several=True),
    "pack": Topic(_pack, ("repeats", "count", "seed", "cap")),
    "load": Topic(_load, config=LoadBenchConfig, several=True),
}


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, "bench", _bench)
    topics = parser.add_subparsers(title="topics", dest="what", metavar="TOPIC")
    for name, topic in TOPICS.items():
        _add_topic(add_verb(topics, name, topic.measure), topic)
    parser = add_run(verbs, "figure", _figure)
    parser.add_argument("records", type=Path, metavar="R.json", help="what bench or profile --save wrote")
    parser.add_argument("out", type=Path, metavar="OUT.png", help="the picture; OUT.svg is written too")


def _add_topic(parser: Parser, topic: Topic) -> None:
    metavar, what = ("OUT", "packed files") if topic.several else ("DIR", "a data set")
    parser.add_argument("paths", nargs="*", type=Path, metavar=metavar, help=what)
    options.add_flags(parser, topic.config, topic.fields)
    parser.add_argument("--save", type=Path, metavar="R.json", help="write the records here")
    parser.set_defaults(run=_bench, topic=topic)


def _bench(arguments: argparse.Namespace) -> int:
    """Measure reading, packing and loading, with spread.

    Without a target a synthetic data set is made and measured. Single runs, spread and the machine are kept
    in the record; compare only within one run. A failure is a line of the table and affects no other
    candidate. On a shared file system the number of operations is capped, with a note. The flags of a topic:
    smallfiles bench TOPIC --help. In a clone of the course `python -m benchmarks TOPIC` measures other
    software too, with more topics: peers, stage, decode, slow, scaling, squashfs.

    Examples:
        smallfiles bench read train.arrow train.h5 train.tars
        smallfiles bench load train.arrow --workers 2,4 --save results/load.json
    """
    from smallfiles.atomic import created
    from smallfiles.measure.record import save

    config = options.from_args(arguments.topic.config, arguments)
    if arguments.save is not None:
        _check_place(arguments.save)
    began = perf_counter()
    result = _measured(arguments, config)
    for note in result.notes:
        say(f"note: {note}")
    _show(arguments, result, perf_counter() - began)  # before a full disk can keep it from us
    if not result.records:
        raise ResourceError(
            f"nothing could be measured: {result.failed[0].name}: {result.failed[0].why}",
            expected="at least one candidate that runs",
            next_step="Try it by itself, or measure others",
        )
    if arguments.save is not None:
        with created(arguments.save):
            save(result.records, arguments.save, result.failed)
        if arguments.topic.publish is not None:
            arguments.topic.publish(arguments.save, result)
    return 0


def _check_place(save: Path) -> None:
    """Refuse a file that cannot be written before the measurement, not after it."""
    from smallfiles.atomic import refuse_existing

    refuse_existing(save)
    save.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(save.parent, os.W_OK | os.X_OK):
        raise ResourceError(
            f"{save.parent} is not writable",
            expected=f"a folder that takes {save.name}",
            next_step="Give --save a name in another folder",
        )


def _measured(arguments: argparse.Namespace, config: Any) -> Result:
    """Measure what was given, or a synthetic data set, which is gone afterwards."""
    from smallfiles.machine import warn_on_login_node
    from smallfiles.measure.scratch import PACKED, SAMPLE_BYTES, example, packed_example

    topic: Topic = arguments.topic
    if not topic.several and len(arguments.paths) > 1:
        raise UsageError(
            f"{len(arguments.paths)} data sets were given",
            expected="one, or none to make one",
            next_step="Measure them one after the other",
        )
    candidates = len(arguments.paths) or len(PACKED)  # as far as one can tell beforehand
    warn_on_login_node("measuring", size_bytes=config.repeats * candidates * config.count * SAMPLE_BYTES)
    measure = partial(topic.measure, others=topic.others) if topic.others else topic.measure
    if arguments.paths:
        return measure(arguments.paths if topic.several else arguments.paths[0], config)
    with (packed_example if topic.several else example)(config.count, config.seed) as found:
        return measure(found, config)


def _show(arguments: argparse.Namespace, result: Result, seconds: float) -> None:
    from smallfiles.measure.table import rendered

    records = result.records
    totals = {
        "samples": sum(record.samples * record.repeats for record in records),
        "bytes": sum(record.bytes * record.repeats for record in records),
        "seconds": round(seconds, 3),
    }
    report(arguments, totals | result.as_json(), rendered(records, result.failed))


def _figure(arguments: argparse.Namespace) -> int:
    """Draw the records that a measurement kept.

    One panel a condition (order, cache state), a bar for the median and a dot for each run; titles state what
    was found. Records of different conditions are not put into one panel. Loaders that were measured with
    several numbers of workers become lines over these.

    Examples:
        smallfiles bench read a.arrow a.h5 --save R.json
        smallfiles figure R.json R.png
    """
    from smallfiles import profile
    from smallfiles.measure import drawing, load
    from smallfiles.profile import audit

    watched = profile.found_in(arguments.records)
    audited = profile.found_in(arguments.records, "audit")
    records = [] if watched or audited else load(arguments.records)
    figure, text = (
        profile.draw(watched) if watched else audit.draw(audited) if audited else drawing.draw(records)
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    svg, png = drawing.save(figure, arguments.out.with_suffix(""))
    record = {"samples": sum(each.samples for each in records), "png": str(png), "alt": text}
    return report(arguments, record, f"wrote {png} and {svg}\n{text}")
