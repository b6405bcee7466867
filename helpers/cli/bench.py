"""`bench`: measure with a protocol, write records."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.cli.arguments import Verbs, add_verb

_MORE = """\
read   random and sequential reads of packed files, warm and cold, all files interleaved round by
       round; every byte is touched.
pack   packing warm data to memory-backed storage against plain concatenation, the HDF5 and Arrow
       scripts of the Juelich course and webdataset's ShardWriter, with peak memory.
Without a target a synthetic data set is made and measured. Single runs, spread and the machine are
kept in the record; compare only within one run. On a shared file system the number of operations is
capped, and said."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "bench",
        "measure reading and packing, with repeats and spread",
        _MORE,
        [
            "python -m helpers bench read train.arrow train.h5 train.tars",
            "python -m helpers bench read train.arrow --cache cold --save results/read.json",
            "python -m helpers bench pack data",
        ],
    )
    parser.add_argument("what", choices=("read", "pack"), help="what to measure")
    parser.add_argument(
        "targets", nargs="*", type=Path, metavar="OUT|DIR", help="packed files (read) or a data set (pack)"
    )
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds")
    parser.add_argument(
        "--count", type=int, default=3000, metavar="N", help="samples to use at most, or to make"
    )
    parser.add_argument(
        "--order", choices=("random", "sequential", "both"), default="both", help="order of reads"
    )
    parser.add_argument(
        "--cache", choices=("warm", "cold", "both"), default="both", help="state of the page cache"
    )
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help="ratios against this one; plain files or concatenation if not given",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the order of reads")
    parser.add_argument("--save", type=Path, metavar="R.json", help="write the records here")
    parser.add_argument(
        "--no-cap", action="store_true", help="no limit on a shared file system; ask your site first"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure."""
    raise NotImplementedError
