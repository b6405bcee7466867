"""`slurm/submit`: check a job script, show the command, send it to Slurm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers import jobs
from helpers.jobs import site as sites
from smallfiles.cli.arguments import HelpFormatter
from smallfiles.cli.output import escape_unencodable, guarded, print_json, say

_MORE = """\
Check a job script, show the exact command, send it to Slurm.

SITE is a file of slurm/sites, JOB one of slurm/jobs; without JOB the jobs are listed, without SITE both.
Before anything is submitted, all that would make the job fail later is looked at: account, paths, room,
the environment. What stands behind -- goes to the job: its positional arguments, then what its command
takes. Personal values belong into slurm/sites/SITE.my.env, which git ignores."""

_EXAMPLES = """\
examples:
  slurm/submit local                  # which jobs are there
  slurm/submit local 03_pack_arrow --dry-run
  slurm/submit local 03_pack_arrow -- data.json train.arrow --in-flight 64
  slurm/submit local 03_pack_arrow --sbatch=--time=02:00:00"""


def build_parser() -> argparse.ArgumentParser:
    """The words that `slurm/submit` understands."""
    parser = argparse.ArgumentParser(
        prog="slurm/submit", description=_MORE, epilog=_EXAMPLES, formatter_class=HelpFormatter
    )
    parser.add_argument("site", nargs="?", metavar="SITE", help="a file of slurm/sites")
    parser.add_argument("job", nargs="?", metavar="JOB", help="a file of slurm/jobs")
    parser.add_argument("--dry-run", action="store_true", help="check and show, submit nothing")
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="for sbatch; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; everything after `--` is for the job, flags included."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    try:
        escape_unencodable(sys.stdout, sys.stderr)
        arguments = build_parser().parse_args(words[:at])
    except SystemExit as stop:
        return int(stop.code or 0)
    arguments.behind = words[at + 1 :]
    return guarded(run, arguments)


def run(arguments: argparse.Namespace) -> int:
    """List, show or submit."""
    root = Path(__file__).resolve().parents[2]
    if not arguments.site or not arguments.job:
        return _list(root, arguments.site)
    chain = jobs.plan(root, arguments.site, arguments.job, arguments.behind, arguments.sbatch)
    numbers = [] if arguments.dry_run else jobs.send(chain)
    if arguments.json:
        print_json(_as_json(chain, numbers))
    else:
        _tell(chain, numbers)
    return 0


def _list(root: Path, site: str | None) -> int:
    if site:
        jobs.load(root, site)
    else:
        print("sites: " + ", ".join(sites.names(root)) + "\n")
    for name in jobs.names(root):
        print(f"{name:24} {jobs.find(root, name).what}")
    return 0


def _tell(chain: list[jobs.Submission], numbers: list[str]) -> None:
    for place, submission in enumerate(chain):
        say(f"{submission.job.name}: {submission.job.what}" + (" (after the one above)" if place else ""))
        say(f"  {submission.text()}")
        if numbers:
            print(numbers[place])
            say(f"  its log: {submission.log(numbers[place])}")
    if not numbers:
        say("nothing was submitted (--dry-run)")
        return
    say(f"see it wait and run: {chain[0].queue()}")


def _as_json(chain: list[jobs.Submission], numbers: list[str]) -> dict[str, object]:
    """One object, with the jobs in the order of their submission."""
    chosen = [
        {
            "job": each.job.name,
            "command": each.text(),
            "number": numbers[n] if numbers else None,
            "log": str(each.log(numbers[n])) if numbers else None,
        }
        for n, each in enumerate(chain)
    ]
    return {"submitted": bool(numbers), "jobs": chosen, "logs": str(chain[0].work / "logs")}


if __name__ == "__main__":
    sys.exit(main())
