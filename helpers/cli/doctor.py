"""`doctor`: what this machine is, what is missing, what to do."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.cli.arguments import Verbs, add_verb

_MORE = """\
Run it first, on the login node and once inside a job: CPUs that you may really use, the memory
limit of your job, the file systems and their inodes differ between the two."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "doctor",
        "say what this machine is, what is missing and what to do about it",
        _MORE,
        ["python -m helpers doctor", "python -m helpers doctor /scratch/me --json"],
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="DIR", help="folders whose file systems to look at as well"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look and tell."""
    raise NotImplementedError
