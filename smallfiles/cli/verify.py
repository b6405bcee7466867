"""`verify`: is a packed file still what was written, and what its source says?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import FORMATS, Verbs, add_run, add_source_flags, load_source
from smallfiles.cli.failures import FAILED, UNPROVEN
from smallfiles.cli.output import in_seconds, print_json
from smallfiles.keys import printable
from smallfiles.progress import bytes_text, plural

if TYPE_CHECKING:
    from smallfiles.pack import VerifyReport

_SHOWN = 20


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "verify", run)
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--against", type=Path, metavar="DIR|M.json", help="compare with this source too")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    add_source_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check that a packed file is what was written, and what its source says.

    Checks the blocks of the file against the digest taken while writing, then the samples; with --against
    also every sample (key, target, JSON object, bytes) against its source. Damage is named by block and
    sample. Exit code 0: intact. 1: damaged, or the source holds something else. 3: all of it can be read, but
    there is neither a digest nor a source to compare it with.

    Examples:
        smallfiles verify train.arrow
        smallfiles verify train.tars --against data.json
    """
    from smallfiles.pack import verify

    source = None if arguments.against is None else load_source(arguments.against, arguments)
    report = verify(arguments.out, source, format=arguments.format)
    if arguments.json:
        print_json(_as_json(report))
    else:
        _tell(report)
    return {"intact": 0, "unproven": UNPROVEN}.get(report.verdict, FAILED)


def _as_json(report: VerifyReport) -> dict[str, Any]:
    more = {"verdict": report.verdict, "intact": report.intact}
    return asdict(report) | more | {"path": str(report.path), "seconds": round(report.seconds, 3)}


def _tell(report: VerifyReport) -> None:
    compared = f", {report.against:,} compared with the source" if report.against else ""
    print(
        f"read {plural(report.samples, 'sample')} ({bytes_text(report.bytes)}), "
        f"checked {plural(report.blocks, 'block')}"
        f"{compared} in {in_seconds(report.seconds)}"
    )
    for note in report.notes:
        print(f"note: {printable(note)}")
    _list("damaged", report.problems)
    _list("differs", report.differences)
    print(f"{report.path} {_conclusion(report)}")


def _list(what: str, sentences: list[str]) -> None:
    for sentence in sentences[:_SHOWN]:
        print(f"{what}: {printable(sentence)}")
    if len(sentences) > _SHOWN:
        print(f"… and {len(sentences) - _SHOWN:,} more; --json names all of them")


def _conclusion(report: VerifyReport) -> str:
    if report.verdict == "intact":
        return "is intact" + ("" if report.digests else ": it holds what the source holds")
    if report.verdict == "damaged":
        return "is NOT intact"
    if report.verdict == "differs" and report.digests:
        return "is as it was written, but the source is not what was packed"
    if report.verdict == "differs":
        return "differs from the source; without its digest nobody can tell which of the two changed"
    return (
        "can be read to its end, which does not prove that it is intact: there is nothing to compare with. "
        "Give the source (--against), or copy its .digest.json too"
    )
