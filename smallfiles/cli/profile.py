"""`profile`: run somebody's training unchanged, and say whether loading limits it."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from smallfiles.cli.arguments import Verbs, add_run
from smallfiles.cli.failures import summary
from smallfiles.cli.output import report, say
from smallfiles.errors import UsageError


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "profile", run)
    help = (
        "watch for so many seconds from the first batch on, then report; the program goes on (default: 300)"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help=help)
    parser.add_argument("--save", type=Path, metavar="P.json", help="write the record here")
    parser.add_argument("--pid", type=int, metavar="PID", help="look at a running program from outside")
    parser.add_argument(
        "--join", type=Path, nargs="+", metavar="P.json", help="one report of several records"
    )
    parser.set_defaults(program=[])


def run(arguments: argparse.Namespace) -> int:
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
    return profile.watch(arguments.program, arguments.seconds or 300.0, partial(_tell, arguments))


def _tell(arguments: argparse.Namespace, *ended: Any) -> None:
    """The report of a program on standard error, since standard output is the program's."""
    from smallfiles import profile

    try:
        found = profile.measured(*ended)
        if isinstance(found, str):
            say(f"smallfiles profile: {found}.")
            return
        _save(arguments, found)
        lines = ["", "smallfiles profile", *profile.lines(found)]
        say(json.dumps(found) if arguments.json else "\n".join(lines))
    except Exception as error:  # the exit code stays the program's
        say(f"smallfiles profile: {summary(error)}")


def _save(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    from smallfiles.measure.record import write

    if arguments.save:
        write(found, arguments.save)
