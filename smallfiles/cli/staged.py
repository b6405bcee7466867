"""`staged`: what lies on this node, how large, how old, who uses it."""

from __future__ import annotations

import argparse
from pathlib import Path

from smallfiles.cli.arguments import Verbs, add_verb
from smallfiles.cli.output import in_seconds, print_json, say

_MORE = """\
Lists your own copies in the directories that SLURM_TMPDIR, LOCAL_SCRATCH, VSC_SCRATCH_NODE, L_SCRATCH,
TMPDIR and SMALLFILES_NODE_LOCAL name, in /dev/shm, and in those given with --where. A leftover belongs
to a process or job that has ended; --sweep removes it, as the next `stage` would."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "staged",
        "list what is staged on this node",
        _MORE,
        ["smallfiles staged", "smallfiles staged --sweep"],
    )
    parser.add_argument(
        "--where", type=Path, action="append", default=[], metavar="DIR", help="also look there"
    )
    parser.add_argument("--sweep", action="store_true", help="first remove what dead processes and jobs left")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List copies, one a line."""
    from smallfiles import staging
    from smallfiles.progress import bytes_text

    removed = staging.sweep_all(arguments.where) if arguments.sweep else 0
    if removed:
        say(f"removed {removed:,} that dead processes or jobs had left")
    copies = staging.listing(arguments.where)
    if arguments.json:
        total = sum(copy.bytes for copy in copies)
        print_json({"bytes": total, "removed": removed, "copies": [copy.as_json() for copy in copies]})
        return 0
    for copy in copies:
        uses = ["in use"] * copy.in_use + [f"kept for {holder}" for holder in copy.kept_for]
        print(
            f"{copy.path}  {bytes_text(copy.bytes)}, {copy.state}, {in_seconds(copy.age_s)} old, "
            f"{', '.join(uses) or 'used by nobody'}; made by {copy.owner}"
        )
    if not copies:
        say("nothing of yours is staged on this node")
    return 0
