"""`bench`: measure with a protocol, write records."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from smallfiles import options
from smallfiles.cli.arguments import Parser, Verbs, add_verb
from smallfiles.cli.output import print_json, say
from smallfiles.errors import OutputExistsError, ResourceError, UsageError
from smallfiles.measure.config import FIELDS, BenchConfig
from smallfiles.measure.loading.config import LoadBenchConfig

if TYPE_CHECKING:
    from smallfiles.measure import Result

_MORE = """\
Without a target a synthetic data set is made and measured. Single runs, spread and the machine are
kept in the record; compare only within one run. What fails is a line of the table, and costs nothing
but itself. On a shared file system the number of operations is capped, and said. The flags of a topic:
smallfiles bench TOPIC --help. In a clone of the course `python -m benchmarks TOPIC` measures the software
of others beside ours."""

_EXAMPLES = {
    "read": [
        "smallfiles bench read train.arrow train.h5 train.tars",
        "smallfiles bench read train.arrow --cache cold --save results/read.json",
    ],
    "pack": ["smallfiles bench pack data"],
    "slow": ["smallfiles bench slow data --latency-ms 2 --repeats 5"],
    "stage": ["smallfiles bench stage data --count 20000"],
    "squashfs": ["smallfiles bench squashfs data --count 20000"],
    "decode": ["smallfiles bench decode train.arrow --repeats 5"],
    "load": ["smallfiles bench load train.arrow train.h5 train.tars --workers 2,4"],
}
_TOPICS = {
    "read": (
        "random and sequential reads of packed files",
        "Warm and cold, all files interleaved round by round; every byte is touched.",
    ),
    "pack": (
        "packing warm data to memory",
        "Against plain concatenation, with peak memory.",
    ),
    "slow": (
        "packing a folder whose look-ups and opens take milliseconds",
        "Against a script that reads one file after the other and against bare readers. It needs FUSE.",
    ),
    "stage": (
        "copying a packed file to memory with every block checked",
        "Against dd and against cp -r of the same samples as small files: from memory, from a cold disk,\n"
        "and from a slow folder.",
    ),
    "squashfs": (
        "one raw image of a folder",
        "Random reads by pysquashfs, by PySquashfsImage and through the mounts that this machine allows;\n"
        "cold reads by threads.",
    ),
    "decode": (
        "turning JPEGs in memory into pixels and crops",
        "Random crops of 224 x 224, with one and two at work, and decoding alone by each decoder.",
    ),
    "load": (
        "whole epochs of training crops",
        "By processes, threads and through a ring; where the time of a batch goes.",
    ),
}
_SEVERAL = ("read", "load")


def add(verbs: Verbs) -> None:
    """Add the verb."""
    examples = [line for lines in _EXAMPLES.values() for line in lines]
    parser = add_verb(verbs, "bench", "measure reading, packing and loading, with spread", _MORE, examples)
    topics = parser.add_subparsers(title="topics", dest="what", metavar="TOPIC")
    for name, (why, more) in _TOPICS.items():
        _add_topic(add_verb(topics, name, why, more, _EXAMPLES[name]), name)


def _add_topic(parser: Parser, name: str) -> None:
    what = "packed files" if name in _SEVERAL else "a data set" + ", or a packed file" * (name == "decode")
    metavar = "OUT" if name in _SEVERAL else "DIR"
    parser.add_argument("paths", nargs="*", type=Path, metavar=metavar, help=what)
    options.add_flags(parser, _config_type(name), FIELDS.get(name, ()))
    if name == "slow":
        parser.add_argument(
            "--latency-ms", type=float, default=2.0, metavar="T", help="milliseconds of an operation"
        )
    parser.add_argument("--save", type=Path, metavar="R.json", help="write the records here")
    parser.set_defaults(run=run)


def _config_type(topic: str) -> type[BenchConfig] | type[LoadBenchConfig]:
    return LoadBenchConfig if topic == "load" else BenchConfig


def config_of(arguments: argparse.Namespace) -> Any:
    """The configuration that a parsed command line means."""
    return options.from_args(_config_type(arguments.what), arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, keep."""
    config = config_of(arguments)
    if arguments.save is not None:
        _check_place(arguments.save)
    _warn(arguments, config)
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
        from smallfiles.measure import save

        save(result.records, arguments.save, result.failed)
    return 0


def _warn(arguments: argparse.Namespace, config: Any) -> None:
    """Say so if this is a login node and the work, as far as one can tell beforehand, is heavy."""
    from smallfiles.machine import warn_on_login_node
    from smallfiles.measure.example import PACKED, SAMPLE_BYTES
    from smallfiles.measure.methods import methods
    from smallfiles.measure.packing import FORMATS

    runs = config.repeats * (2 * len(FORMATS) + len(methods(arguments.others.get("pack", ""))))
    if arguments.what == "read":
        conditions = len(config.orders) * len(config.caches)
        runs = config.repeats * conditions * (len(arguments.paths) or len(PACKED))
    warn_on_login_node("measuring", size_bytes=runs * config.count * SAMPLE_BYTES)


def _check_place(save: Path) -> None:
    """Refuse a file that cannot be written before the measurement, not after it."""
    if save.exists():
        raise OutputExistsError(
            f"{save} exists already",
            expected="a new file for new records",
            next_step="Choose another name, or move the old records away",
        )
    save.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(save.parent, os.W_OK | os.X_OK):
        raise ResourceError(
            f"{save.parent} is not writable",
            expected=f"a folder that takes {save.name}",
            next_step="Give --save a name in another folder",
        )


def _measured(arguments: argparse.Namespace, config: Any) -> Result:
    """Measure what was given, or a synthetic data set, which is gone afterwards."""
    from smallfiles.measure.example import example, packed_example

    several = arguments.what in _SEVERAL
    if not several and len(arguments.paths) > 1:
        raise UsageError(
            f"{len(arguments.paths)} data sets were given",
            expected="one, or none to make one",
            next_step="Measure them one after the other",
        )
    measure = _measures(arguments)
    others = arguments.others.get(arguments.what)
    if others is not None:
        measure = partial(measure, others=others)
    if arguments.paths:
        return measure(arguments.paths if several else arguments.paths[0], config)
    made: Callable[[int, int], AbstractContextManager[Any]] = packed_example if several else example
    with made(config.count, config.seed) as found:
        return measure(found, config)


def _measures(arguments: argparse.Namespace) -> Callable[..., Result]:
    """The function that measures a topic; imported when it is needed."""
    if arguments.what == "read":
        from smallfiles.measure import bench_reads

        return bench_reads
    if arguments.what == "pack":
        from smallfiles.measure import bench_packing

        return bench_packing
    if arguments.what == "slow":
        from smallfiles.measure.slow import bench_slow
        from smallfiles.slowfs import SlowConfig

        return partial(bench_slow, slow=SlowConfig(latency_s=arguments.latency_ms / 1e3))
    if arguments.what == "stage":
        from smallfiles.measure.staging import bench_staging

        return bench_staging
    if arguments.what == "squashfs":
        from smallfiles.measure.squashfs import bench_squashfs

        return bench_squashfs
    if arguments.what == "decode":
        from smallfiles.measure.decoding import bench_decoding

        return bench_decoding
    from smallfiles.measure.loading import bench_loading

    return bench_loading


def _show(arguments: argparse.Namespace, result: Result, seconds: float) -> None:
    from dataclasses import asdict

    from smallfiles.measure.loading.shown import tables
    from smallfiles.measure.table import summary

    records = result.records
    if not arguments.json:
        print((tables if arguments.what == "load" else summary)(records, arguments.reference, result.failed))
        return
    totals = {
        "samples": sum(record.samples * record.repeats for record in records),
        "bytes": sum(record.bytes * record.repeats for record in records),
        "seconds": round(seconds, 3),
    }
    failed = [asdict(each) for each in result.failed]
    print_json({**totals, "records": [record.as_json() for record in records], "failed": failed})
