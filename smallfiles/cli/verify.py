"""`verify`: is a packed file still what was written, and what its source says?"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import FORMATS, Verbs, add_run, add_source_flags, load_source
from smallfiles.cli.failures import FAILED, UNPROVEN
from smallfiles.cli.output import in_seconds, report
from smallfiles.errors import FormatError, SmallfilesError
from smallfiles.keys import printable
from smallfiles.options import add_flags
from smallfiles.pack.config import PackConfig
from smallfiles.progress import bytes_text, plural

if TYPE_CHECKING:
    from smallfiles.pack import VerifyReport
    from smallfiles.sources import Source

_SHOWN = 20


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "verify", run)
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--against", type=Path, metavar="DIR|M.json", help="compare with this source too")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    add_flags(parser, PackConfig, ("storage_timeout_s",))
    add_source_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check that a packed file is what was written, and what its source says.

    Checks the blocks of the file against the digest taken while writing, then the samples; with --against
    also every sample (key, target, JSON object, bytes) against its source, which is read with the split, the
    suffixes and without labels as the file says it was packed. Damage is named by block and
    sample. Exit code 0: intact. 1: damaged, or the source holds something else. 3: all of it can be read, but
    there is neither a digest nor a source to compare it with.

    Examples:
        smallfiles verify train.arrow
        smallfiles verify train.tars --against data.json
    """
    from smallfiles.pack import verify

    source = None if arguments.against is None else _source(arguments)
    found = verify(arguments.out, source, format=arguments.format)
    more = {"verdict": found.verdict, "intact": found.intact, "path": str(found.path)}
    lines = [*_lines(found)]
    if found.verdict == "differs":
        lines.append(_packed_from(arguments))
    report(arguments, asdict(found) | more | {"seconds": round(found.seconds, 3)}, *lines)
    return {"intact": 0, "unproven": UNPROVEN}.get(found.verdict, FAILED)


def _source(arguments: argparse.Namespace) -> Source:
    """What to compare with, read as it was when it was packed, unless the command line says otherwise."""
    from smallfiles import formats
    from smallfiles.sources import inline, packed
    from smallfiles.sources.table_files import is_table

    against: Path = arguments.against
    if against.suffix == ".json" or (against.exists() and packed.format_of(against)):
        return load_source(against, arguments)  # it holds its own options
    usual: dict[str, Any] = {}
    with contextlib.suppress(FormatError), closing(formats.open(arguments.out, arguments.format)) as reader:
        usual = packed.flags_of(reader)
    if is_table(against) or inline.find(against, usual.get("split"), usual.get("columns", ())):
        usual.pop("suffixes", None)  # a table lists its files
    return load_source(against, arguments, **usual)


def _packed_from(arguments: argparse.Namespace) -> str:
    """Return what a packed file says it was packed from, since `--against` may name something else."""
    from smallfiles import formats

    with (
        contextlib.suppress(SmallfilesError),
        closing(formats.open(arguments.out, arguments.format)) as reader,
    ):
        schema = (reader.info().get("provenance") or {}).get("schema")
        if isinstance(schema, dict) and schema.get("name"):
            what = f"{schema['name']!r}, split {schema.get('split')!r}, {plural(len(reader), 'sample')}"
            return f"it was packed from {what}; it was compared with {arguments.against}"
    return "it does not say what it was packed from"


def _lines(found: VerifyReport) -> Iterator[str]:
    compared = f", {found.against:,} compared with the source" if found.against else ""
    yield (
        f"read {plural(found.samples, 'sample')} ({bytes_text(found.bytes)}), "
        f"checked {plural(found.blocks, 'block')}{compared} in {in_seconds(found.seconds)}"
    )
    yield from (f"note: {printable(note)}" for note in found.notes)
    for what, sentences in (("damaged", found.problems), ("differs", found.differences)):
        yield from (f"{what}: {printable(sentence)}" for sentence in sentences[:_SHOWN])
        if len(sentences) > _SHOWN:
            yield f"… and {len(sentences) - _SHOWN:,} more; --json names all of them"
    yield f"{found.path} {_conclusion(found)}"


def _conclusion(found: VerifyReport) -> str:
    if found.verdict == "intact":
        return "is intact" + ("" if found.digests else ": it holds what the source holds")
    if found.verdict == "damaged":
        return "is NOT intact"
    if found.verdict == "differs" and found.digests:
        return "is as it was written, but the source is not what was packed"
    if found.verdict == "differs":
        return "differs from the source; without its digest there is no telling which of the two changed"
    return (
        "can be read to its end, which does not prove that it is intact: there is nothing to compare with. "
        "Give the source (--against), or copy its .digest.json too"
    )
