"""`profile` and `audit`: run somebody's training unchanged; does loading limit it, and is it right?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from smallfiles.cli.arguments import Verbs, add_run
from smallfiles.cli.output import report, say, summary
from smallfiles.errors import UsageError


def add(verbs: Verbs) -> None:
    """Add the verbs."""
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
    parser = add_run(verbs, "audit", audit)
    parser.add_argument(
        "--resume", metavar="CMD", help="a command that continues the run, which is audited too"
    )
    help = "run it with each number in the place of {ranks}, such as 1,2,3, and compare the orders"
    parser.add_argument("--ranks", metavar="N,N", help=help)
    help = "tell samples apart by this field of a sample, or by what MODULE:FUNCTION returns for it"
    parser.add_argument("--key", metavar="FIELD", help=help)
    parser.add_argument("--save", type=Path, metavar="A.json", help="write the record here")
    parser.add_argument(
        "--join", type=Path, nargs="+", metavar="A.json", help="one report of several records"
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
    environment = {"SMALLFILES_PROFILE_SECONDS": str(arguments.seconds or 300.0)}

    def tell(*ended: Any) -> None:
        _tell(arguments, lambda: profile.measured(*ended), profile.lines)

    return profile.watch(arguments.program, environment, tell)


def audit(arguments: argparse.Namespace) -> int:
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
