"""`annotate`: fields for a packed set that were not there when it was packed."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from smallfiles.cli.arguments import Verbs, add_run
from smallfiles.cli.output import in_seconds, report
from smallfiles.progress import bytes_text, plural, say_notes


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "annotate", run)
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("table", type=Path, metavar="TABLE", help=".csv, .tsv, .jsonl, .parquet or .arrow")
    parser.add_argument(
        "--key", metavar="COLUMN", required=True, help="keys of the samples, or their file names or stems"
    )
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="a column to add, and its name as a field (all but the keys); may be repeated",
    )
    parser.add_argument("--name", help="in the name of the new file (the stem of TABLE)")


def run(arguments: argparse.Namespace) -> int:
    """Add the columns of a table to a packed set, without writing any of it again.

    Writes OUT.NAME.fields.arrow beside OUT, whatever its format, and its digest. From then on these fields
    are read as if they had been packed; packing OUT again into another file packs them too. Rows are matched
    by key, file name or stem in any order: each sample needs exactly one, others are named and left out.
    The file is bound to the keys of the samples and their order, and refused beside any others. `verify`
    checks it too; `stage`, `push` and `pull` take it along. To undo it, delete it.

    Examples:
        smallfiles annotate train.arrow scores.csv --key filename
        smallfiles annotate train.tars people.parquet --key '{id}.jpg' --field age=years --name people
    """
    from smallfiles.pack import annotate

    done = annotate(
        *(arguments.out, arguments.table, arguments.key), fields=arguments.field, name=arguments.name
    )
    say_notes(done.notes)
    fields = ", ".join(f"{name} ({kind})" for name, kind in done.fields.items())
    where = f"{plural(done.samples, 'sample')} of {arguments.out}"
    return report(
        arguments,
        asdict(done) | {"path": str(done.path), "seconds": round(done.seconds, 3)},
        f"added {fields} to {where} in {in_seconds(done.seconds)}",
        f"{done.path} ({bytes_text(done.file_bytes)})",
    )
