"""`epoch`: read one epoch on all ranks, and check that every sample came exactly once."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_run
from smallfiles.cli.failures import FAILED
from smallfiles.cli.output import in_seconds, report
from smallfiles.errors import UsageError
from smallfiles.loading.config import LoaderConfig
from smallfiles.options import add_flags, given
from smallfiles.progress import plural

if TYPE_CHECKING:
    from smallfiles.measure.ranks import Count


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "epoch", run)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="a packed file and a folder")
    parser.add_argument("--count", action="store_true", help="evaluate the records of a folder")
    add_flags(parser, LoaderConfig)


def run(arguments: argparse.Namespace) -> int:
    """Read an epoch on all ranks, and check that every sample comes once.

    Under srun or torchrun each rank reads its share and writes a record into the folder. Afterwards, run it
    once with --count: it evaluates the records and exits with 1 unless every sample came exactly once.

    Examples:
        smallfiles epoch train.arrow seen --workers 2   # under srun or torchrun
        smallfiles epoch --count seen
    """
    from smallfiles.measure import ranks

    wanted = 1 if arguments.count else 2
    if len(arguments.paths) != wanted:
        raise UsageError(
            f"{plural(len(arguments.paths), 'path')} given",
            expected="--count FOLDER" if arguments.count else "a packed file and a folder for the records",
            next_step="See smallfiles epoch --help",
        )
    if arguments.count and given(LoaderConfig, arguments):
        raise UsageError(
            "--count is given together with flags of a loader, but reads no samples",
            expected="--count FOLDER",
            next_step="Leave the others out",
        )
    if arguments.count:
        found = ranks.count(arguments.paths[0])
        report(arguments, _as_json(found), *_lines(found))
        return 0 if found.exact else FAILED
    packed, folder = arguments.paths
    share = ranks.read_share(packed, folder, LoaderConfig.from_args(arguments))
    summary = (
        f"rank {share.rank} of {share.world_size} on {share.node}: {share.samples:,} samples "
        f"in {in_seconds(share.seconds)} with {share.cpus} CPUs"
    )
    return report(arguments, dataclasses.asdict(share), summary)


def _as_json(found: Count) -> dict[str, object]:
    return {
        "samples": sum(share.samples for share in found.shares),
        "bytes": sum(share.bytes for share in found.shares),
        "seconds": max(share.seconds for share in found.shares),
        "exactly_once": found.exact,
        "lost": list(found.lost),
        "repeated": list(found.repeated),
        "ranks": [dataclasses.asdict(share) for share in found.shares],
    }


def _lines(found: Count) -> Iterator[str]:
    for share in found.shares:
        yield f"rank {share.rank} on {share.node}: {share.samples:,} samples in {in_seconds(share.seconds)}"
    yield found.sentence()
