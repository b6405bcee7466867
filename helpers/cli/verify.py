"""`verify`: is a packed file still what was written, and what its source says?"""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.cli.arguments import FORMATS, Verbs, add_source_flags, add_verb

_MORE = """\
Checks the blocks of the file against the digest taken while writing, then the samples; with
--against also every sample against its source. Damage is named by block and sample; exit code 1."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "verify",
        "check that a packed file is what was written, and what its source says",
        _MORE,
        [
            "python -m helpers verify train.arrow",
            "python -m helpers verify train.tars --against data.json --level full",
        ],
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--against", type=Path, metavar="DIR|M.json", help="compare with this source too")
    parser.add_argument("--level", choices=("full", "sample"), default="full", help="every sample, or some")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    add_source_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check and tell."""
    raise NotImplementedError
