"""`manifest`: write down which samples a data set has, with which targets."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.cli.arguments import Verbs, add_source_flags, add_verb

_MORE = """\
A walk over a million files is expensive on a parallel file system: do it once, keep the manifest,
and every later step reads one file. The kind of data set is recognised; say --source if it is not."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "manifest",
        "write down which samples a data set has, with which targets",
        _MORE,
        [
            "python -m helpers manifest data -o data.json",
            "python -m helpers manifest ILSVRC --source imagenet --split val -o val.json",
            "python -m helpers manifest train.tar --source tarball -o train.json",
        ],
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="a folder, a tar file or another manifest")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="M.json", help="where to write it; DIR.json if not given"
    )
    parser.add_argument("--flat", action="store_true", help="write the flat form {path: label}")
    add_source_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Walk, check, write."""
    raise NotImplementedError
