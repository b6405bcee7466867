"""`unstage`: give back what was staged; the last one out removes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from smallfiles.cli.arguments import Verbs, add_verb
from smallfiles.cli.output import print_json, say

_MORE = """\
Removes a copy when no process uses it and no other living job keeps it; says who does otherwise.
Without a path it gives back all that this job staged, and removes what dead jobs left. A copy that
is gone already is no failure, so that a trap may run twice. In a job script:

  trap 'smallfiles unstage "$staged"' EXIT"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "unstage",
        "give back what was staged; the last one out removes it",
        _MORE,
        [
            "smallfiles unstage",
            "smallfiles unstage train.arrow",
            "smallfiles unstage /dev/shm/smallfiles-1000/4f…/data/train.arrow",
        ],
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="what `stage` printed, or what was staged"
    )
    parser.add_argument(
        "--where", type=Path, action="append", default=[], metavar="DIR", help="also look there"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Give back, and say what stays and why."""
    from smallfiles import staging

    if arguments.paths:
        meant = [copy for path in arguments.paths for copy in staging.copies_of(path, arguments.where)]
        done = [staging.unstage(copy) for copy in meant]
    else:
        done = staging.unstage_all(arguments.where)
    if arguments.json:
        copies = [{"path": str(one.path), "removed": one.removed, "note": one.note} for one in done]
        print_json({"copies": copies})
        return 0
    for one in done:
        say(f"{one.path}: {one.note}")
    return 0
