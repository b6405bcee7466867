"""`verify`: is a packed file still what was written, and what its source says?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.cli.arguments import FORMATS, Verbs, add_source_flags, add_verb
from helpers.cli.failures import FAILED
from helpers.cli.output import in_seconds, print_json
from helpers.cli.source import load_source
from helpers.progress import bytes_text, plural

if TYPE_CHECKING:
    from helpers.pack import VerifyReport

_SHOWN = 20

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
            "python -m helpers verify train.tars --against data.json",
        ],
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--against", type=Path, metavar="DIR|M.json", help="compare with this source too")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    add_source_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check and tell; exit code 1 if anything is wrong."""
    from helpers.pack import verify

    source = None if arguments.against is None else load_source(arguments.against, arguments)
    report = verify(arguments.out, source, format=arguments.format)
    if arguments.json:
        print_json(_as_json(report))
    else:
        _tell(report)
    return 0 if report.intact else FAILED


def _as_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "samples": report.samples,
        "bytes": report.bytes,
        "seconds": round(report.seconds, 3),
        "intact": report.intact,
        "blocks": report.blocks,
        "against": report.against,
        "problems": list(report.problems),
        "notes": list(report.notes),
    }


def _tell(report: VerifyReport) -> None:
    compared = f", {report.against:,} compared with the source" if report.against else ""
    print(
        f"read {plural(report.samples, 'sample')} ({bytes_text(report.bytes)}), "
        f"checked {plural(report.blocks, 'block')}"
        f"{compared} in {in_seconds(report.seconds)}"
    )
    for note in report.notes:
        print(f"note: {note}")
    for problem in report.problems[:_SHOWN]:
        print(f"damaged: {problem}")
    if len(report.problems) > _SHOWN:
        print(f"… and {len(report.problems) - _SHOWN:,} more; --json names all of them")
    print(f"{report.path} is intact" if report.intact else f"{report.path} is NOT intact")
