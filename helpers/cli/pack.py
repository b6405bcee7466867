"""`pack`: many small files become one that is verified before it gets its name."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.cli.arguments import FORMATS, SUFFIXES, Verbs, add_source_flags, add_verb

_MORE = f"""\
The suffix of OUT chooses the format:
  {SUFFIXES}.
OUT appears under its name only when it is complete and verified. A killed run never looks finished:
the same command resumes it or starts over."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "pack",
        "pack many small files into one, verified before it gets its name",
        _MORE,
        [
            "python -m helpers pack data train.arrow",
            "python -m helpers pack data.json train.h5 --verify full",
            "python -m helpers pack data.json train.tars --shuffle 0 --dry-run",
            "python -m helpers pack data.json train.tars --part 3/8   # then, once: --merge",
            "python -m helpers pack data.json train.arrow -O rows_per_batch=64",
        ],
    )
    parser.add_argument("dir", type=Path, metavar="DIR|M.json", help="a folder, a tar file or a manifest")
    parser.add_argument("out", type=Path, metavar="OUT", help="the packed file or folder of shards")
    add_source_flags(parser)
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    parser.add_argument(
        "-O",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the format; repeatable",
    )
    _add_run_flags(parser)
    parser.set_defaults(run=run)


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--in-flight", type=int, metavar="N", help="files opened at once; chosen by file system if not given")
    add(
        "--verify",
        choices=("full", "sample", "none"),
        default="sample",
        help="what to read back before publishing",
    )
    add(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="at a file that cannot be packed: stop, or leave it out and report it",
    )
    add(
        "--check",
        choices=("none", "header", "decode"),
        default="header",
        help="how to examine each file's bytes",
    )
    add("--shuffle", type=int, metavar="SEED", help="full shuffle from this seed")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--part", metavar="K/N", help="pack part k of n (for job arrays)")
    group.add_argument("--merge", action="store_true", help="join the parts, the same bytes as one run")
    add("--no-digest", action="store_true", help="take no content digest while writing")
    add("--dry-run", action="store_true", help="say size and inodes saved, write nothing")


def run(arguments: argparse.Namespace) -> int:
    """Pack."""
    raise NotImplementedError
