"""`bench`, `profile`, and `audit` measure and write records; `figure` draws what they kept.

`bench` measures with a protocol. `profile` and `audit` run somebody's training unchanged: does loading limit
it, and does each sample arrive exactly once?
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from smallfiles import options
from smallfiles.cli.arguments import Parser, Verbs, add_run, add_verb
from smallfiles.cli.output import report, say, summary
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
    profile, audit = add_run(verbs, "profile", _profile), add_run(verbs, "audit", _audit)
    help = (
        "watch for so many seconds from the first batch on, then report; the program goes on (default: 300)"
    )
    profile.add_argument("--seconds", type=float, metavar="S", help=help)
    profile.add_argument("--pid", type=int, metavar="PID", help="look at a running program from outside")
    audit.add_argument(
        "--resume", metavar="CMD", help="a command that continues the run, which is audited too"
    )
    help = "run it with each number in the place of {ranks}, such as 1,2,3, and compare the orders"
    audit.add_argument("--ranks", metavar="N,N", help=help)
    help = "tell samples apart by this field of a sample, or by what MODULE:FUNCTION returns for it"
    audit.add_argument("--key", metavar="FIELD", help=help)
    for parser, record in ((profile, "P.json"), (audit, "A.json")):
        parser.add_argument("--save", type=Path, metavar=record, help="write the record here")
        parser.add_argument(
            "--join", type=Path, nargs="+", metavar=record, help="one report of several records"
        )
        parser.set_defaults(program=[])


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


def _profile(arguments: argparse.Namespace) -> int:
    """Watch somebody's training, and say whether loading limits it and what to do.

    Runs the program behind -- unchanged: its output, its results and its end stay its own (exit code,
    signals, handlers that save a checkpoint); the report goes to standard error. Measures waiting for
    batches, files and reads, CPUs and memory of all its ranks and workers. Once, it is paused for some
    seconds while its next batches (at most 1 GB) are collected and then handed out without a wait: how fast
    would it be if data cost nothing? It ends with a verdict, a next step and a forecast. In a job: one task
    per node, slurm/submit SITE 12_profile.

    Examples:
        smallfiles profile -- python train.py --epochs 90
        smallfiles profile --seconds 60 --save p.json -- torchrun --nproc-per-node 2 train.py
        smallfiles profile --pid 4711
        smallfiles profile --join node0.json node1.json
        smallfiles figure p.json p.png
    """
    from smallfiles import profile

    chosen = [bool(arguments.program), arguments.pid is not None, bool(arguments.join)]
    if sum(chosen) != 1 or (arguments.seconds is not None and not arguments.seconds > 0):
        raise UsageError(
            "the command says not what to watch" if sum(chosen) != 1 else f"--seconds is {arguments.seconds}",
            expected="a program behind --, or --pid, or --join; and more than 0 seconds",
            next_step="Run: smallfiles profile -- python train.py",
        )
    if arguments.join:
        found = profile.join(arguments.join)
        _save(arguments, found)
        return report(arguments, found, *profile.lines(found))
    if arguments.pid is not None:
        found = profile.look_at(arguments.pid, arguments.seconds or 10.0)
        return report(arguments, found, *profile.seen(found))
    environment = {"SMALLFILES_PROFILE_SECONDS": str(arguments.seconds or 300.0)}

    def tell(*ended: Any) -> None:
        _tell(arguments, lambda: profile.measured(*ended), profile.lines)

    return profile.watch(arguments.program, environment, tell)


def _audit(arguments: argparse.Namespace) -> int:
    """Run somebody's training, and say which rank received which samples, in which order.

    Runs the program behind -- unchanged. Records which samples its training loop received, by rank, worker
    and epoch, and reports what arrived not at all, twice, or in the same order again. The exit code is 0 only
    if each sample arrived exactly once; a program that fails keeps its own.

    Examples:
        smallfiles audit -- torchrun --nproc-per-node 2 train.py --epochs 3
        smallfiles audit --resume "python train.py --resume last.pt" -- python train.py
        smallfiles audit --ranks 1,2,3 -- torchrun --nproc-per-node {ranks} train.py
        smallfiles audit --join node0.json node1.json
        smallfiles figure a.json a.png
    """
    from smallfiles.profile import audit, findings

    numbers = (arguments.ranks or "").split(",") if arguments.ranks else []
    if bool(arguments.program) == bool(arguments.join) or not all(
        each.isdigit() and int(each) for each in numbers
    ):
        raise UsageError(
            f"--ranks is {arguments.ranks}" if numbers else "the command does not say what to audit",
            expected="a program behind --, or --join; and numbers such as --ranks 1,2,3",
            next_step="Run: smallfiles audit -- python train.py",
        )
    if arguments.join:
        found = audit.join(arguments.join)
        _save(arguments, found)
        report(arguments, found, *audit.lines(found))
        return int(found["exit_code"] or 0) or int(found["verdict"] != findings.EXACTLY_ONCE)
    options = {"key": arguments.key, "resume": arguments.resume, "ranks": [*map(int, numbers)]}
    return audit.audit(arguments.program, options, lambda found: _tell(arguments, lambda: found, audit.lines))


def _tell(
    arguments: argparse.Namespace,
    found_in: Callable[[], dict[str, Any] | str],
    lines: Callable[[dict[str, Any]], Iterable[str]],
) -> None:
    """Print the report on standard error, since standard output belongs to the watched program."""
    verb = f"smallfiles {arguments.verb}"
    try:
        found = found_in()
        if isinstance(found, str):
            say(f"{verb}: {found}.")
            return
        _save(arguments, found)
        say(json.dumps(found) if arguments.json else "\n".join(["", verb, *lines(found)]))
    except Exception as error:  # the exit code stays the program's
        say(f"{verb}: {summary(error)}")


def _save(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    from smallfiles.measure.record import write

    if arguments.save:
        write(found, arguments.save)
