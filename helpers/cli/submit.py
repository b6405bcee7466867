"""`submit`: check a job script, show the command, send it to Slurm."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.cli.arguments import Verbs, add_verb
from helpers.cli.output import print_json, say

if TYPE_CHECKING:
    from helpers.jobs import Submission

_MORE = """\
SITE is a file of slurm/sites, JOB one of slurm/jobs; without JOB the jobs are listed, without SITE both.
Before anything is submitted, all that would make the job fail later is looked at: account, paths, room,
the environment. What stands behind -- goes to the job: its positional arguments, then what its command
takes. Personal values belong into slurm/sites/SITE.my.env, which git ignores."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "submit",
        "check a job script, show the exact command, send it to Slurm",
        _MORE,
        [
            "python -m helpers submit local                  # which jobs are there",
            "python -m helpers submit local 03_pack_arrow --dry-run",
            "python -m helpers submit local 03_pack_arrow -- data.json train.arrow --in-flight 64",
            "python -m helpers submit local 03_pack_arrow --sbatch=--time=02:00:00",
        ],
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List, show or submit."""
    from helpers import jobs

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
    from helpers import jobs
    from helpers.jobs import site as sites

    if site:
        jobs.load(root, site)
    else:
        print("sites: " + ", ".join(sites.names(root)) + "\n")
    for name in jobs.names(root):
        print(f"{name:24} {jobs.find(root, name).what}")
    return 0


def _tell(chain: list[Submission], numbers: list[str]) -> None:
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


def _as_json(chain: list[Submission], numbers: list[str]) -> dict[str, object]:
    """One object, with the jobs in the order of their submission."""
    jobs = [
        {
            "job": each.job.name,
            "command": each.text(),
            "number": numbers[n] if numbers else None,
            "log": str(each.log(numbers[n])) if numbers else None,
        }
        for n, each in enumerate(chain)
    ]
    return {"submitted": bool(numbers), "jobs": jobs, "logs": str(chain[0].work / "logs")}
