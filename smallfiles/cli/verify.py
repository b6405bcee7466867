"""`verify`: is a packed file still what was written, and what its source says? `inspect`: what is inside?"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import FORMATS, Verbs, add_run, add_source_flags, load_source
from smallfiles.cli.output import FAILED, UNPROVEN, in_seconds, report
from smallfiles.errors import FormatError, SmallfilesError, UsageError, first_few, no_samples, printable
from smallfiles.options import add_flags, from_args
from smallfiles.pack import PackConfig
from smallfiles.progress import bytes_text, plural
from smallfiles.selection import Choice

if TYPE_CHECKING:
    from smallfiles.pack import VerifyReport
    from smallfiles.samples import Reader
    from smallfiles.sources import Source

_SHOWN = 20
_KEYS = 3
_SIZES = 100_000
_WIDTH = 300
_BORDERS = [0, *(step * 10**power for power in range(14) for step in (1, 2, 5))]


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_run(verbs, "verify", run)
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--against", type=Path, metavar="DIR|M.json", help="compare with this source too")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    add_flags(parser, PackConfig, ("storage_timeout_s",))
    add_source_flags(parser)
    _add_inspect(verbs)


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
    more = {"verdict": found.verdict, "intact": found.intact}
    lines = [*_lines(found)]
    if found.verdict == "differs":
        lines.append(_packed_from(arguments))
    report(arguments, asdict(found) | more | {"seconds": round(found.seconds, 3)}, *lines)
    return {"intact": 0, "unproven": UNPROVEN}.get(found.verdict, FAILED)


def _source(arguments: argparse.Namespace) -> Source:
    """Open the source to compare with, read as for packing unless the command line says otherwise."""
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


def _add_inspect(verbs: Verbs) -> None:
    parser = add_run(verbs, "inspect", run_inspect)
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw samples (.html or .png)")
    help = "find samples with the same bytes; reads every sample once"
    parser.add_argument("--duplicates", action="store_true", help=help)
    help = "find samples that this packed set has, too"
    parser.add_argument("--against", type=Path, metavar="OTHER", help=help)
    help = "write OUT.croissant.json, a card of the set"
    parser.add_argument("--croissant", action="store_true", help=help)
    parser.add_argument("--licence", "--license", metavar="URL", help="of the set, for its card")
    parser.add_argument("--seed", type=int, metavar="S", help="of the choice of samples to draw (0)")
    add_flags(parser, Choice)


def run_inspect(arguments: argparse.Namespace) -> int:
    """Show what is inside a packed file.

    Format, layout, number of samples, classes, fields and which were added later, how and from what it was
    packed, the first keys and the distribution of sizes. Reads the index only, and with --picture the samples
    that it draws: look at them before you train for days. --croissant writes what catalogues of data sets and
    the library mlcroissant read: files, fields, classes, split. It reads every byte once, for SHA-256.

    --duplicates finds samples with the same bytes, by a hash of the first file of each. With --against, it
    also finds those that another packed set has, such as the validation set. It names the groups, and says
    how many have several labels, or several values of the field split. --picture then shows each group side
    by side. --where and --split choose samples of OUT only. Exit code 0: there are none. 1: there are some.

    Examples:
        smallfiles inspect train.arrow
        smallfiles inspect train.arrow --picture sheet.html
        smallfiles inspect train.tars --json
        smallfiles inspect train.arrow --where "label == 'cat' and age > 40" --picture cats.html
        smallfiles inspect train.arrow --duplicates --against val.arrow --picture same.html
        smallfiles inspect train.tars --croissant --licence https://spdx.org/licenses/CC-BY-4.0
    """
    from smallfiles import contact_sheet, croissant, formats
    from smallfiles.digests import added_fields
    from smallfiles.formats.reader import rule_of_added
    from smallfiles.selection import duplicates
    from smallfiles.selection.reader import select

    for name, needed in (("seed", "picture"), ("licence", "croissant"), ("against", "duplicates")):
        if getattr(arguments, name) is not None and not getattr(arguments, needed):
            raise UsageError(
                f"--{name} is given without --{needed}",
                expected=f"it with --{needed}, which alone uses it",
                next_step=f"Give --{needed} too, or leave --{name} out",
            )
    choice = from_args(Choice, arguments)
    found, lines = None, list[str]()
    with contextlib.ExitStack() as stack:
        opened, *others = [
            stack.enter_context(closing(formats.open(path, format)))
            for path, format in ((arguments.out, arguments.format), (arguments.against, None))
            if path is not None
        ]
        if not len(opened):
            raise no_samples(arguments.out)
        reader = select(opened, choice)
        facts = reader.info()
        sizes = _sizes(reader)
        keys = [reader.key(index) for index in range(min(_KEYS, len(reader)))]
        classes = list(reader.classes)
        facts = {"path": str(arguments.out), **facts, "samples": len(reader)}
        facts["fields"] = dict(reader.fields)
        facts["added_fields"] = [*reader.added()]
        facts["added_by"] = [file.name for file in added_fields(arguments.out)]
        for file in added_fields(arguments.out):
            facts |= rule_of_added(file)
        if arguments.duplicates:
            found = duplicates.find(reader, *others)
            lines = ["", *found.lines()]
            facts |= {"duplicates": found.record()} if arguments.json else {}
        if arguments.picture is not None:
            seed = arguments.seed or 0
            groups = None if found is None else found.drawn(seed)
            sheet = contact_sheet.write(reader, arguments.picture, seed, groups)
            facts["picture"] = f"{arguments.picture}: {sheet.note}"
        if arguments.croissant:
            facts["croissant"] = str(croissant.write(reader, arguments.licence))
    facts |= {"classes": classes, "first_keys": keys, "size_histogram": _histogram(sizes)}
    facts["bytes"] = int(facts.get("bytes", sum(sizes)))
    report(arguments, facts, *_described(dict(facts), len(sizes)), *lines)
    return FAILED if found is not None and found.groups else 0


def _sizes(reader: Reader) -> list[int]:
    """Return the sizes of all samples, or of evenly spread samples where there are very many."""
    step = max(1, len(reader) // _SIZES)
    return [reader.size(index) for index in range(0, len(reader), step)]


def _histogram(sizes: list[int]) -> list[dict[str, int]]:
    """Count the samples between 0, 1, 2, 5, 10, 20, 50, … bytes, from the smallest to the largest."""
    counts = Counter(bisect_right(_BORDERS, size) for size in sizes)
    if not counts:
        return []
    return [
        {"from_bytes": _BORDERS[n - 1], "below_bytes": _BORDERS[n], "samples": counts[n]}
        for n in range(min(counts), max(counts) + 1)
    ]


def _described(facts: dict[str, Any], measured: int) -> Iterator[str]:
    histogram, keys, classes = facts.pop("size_histogram"), facts.pop("first_keys"), facts.pop("classes")
    facts |= {"fields": ", ".join(f"{name} ({kind})" for name, kind in facts["fields"].items()) or "none"}
    for name in ("added_fields", "added_by"):
        facts[name] = ", ".join(facts[name])
    facts = {name: value for name, value in facts.items() if value != ""}
    origin = _origin(facts.pop("provenance", None) or {})
    width = max(len(name) for name in [*facts, *origin, "first keys"])
    for name, value in facts.items():
        shown = bytes_text(value) if name.endswith("bytes") and isinstance(value, int) else value
        yield f"{name.replace('_', ' '):<{width}}  {_short(shown)}"
    named = f"{'classes':<{width}}  {len(classes)}: {first_few(classes, len(classes))}"
    yield named if classes else "no class names"
    yield f"{'first keys':<{width}}  {first_few(keys, len(keys))}"
    for name, value in origin.items():
        yield f"{name:<{width}}  {_short(value)}"
    yield f"\nsizes of {measured:,} samples"
    most = max((column["samples"] for column in histogram), default=1)
    for column in histogram:
        bar = "█" * round(40 * column["samples"] / most)
        low, high = bytes_text(column["from_bytes"]), bytes_text(column["below_bytes"])
        yield f"  {low:>8} to {high:>8}  {column['samples']:>9,}  {bar}".rstrip()


def _origin(provenance: dict[str, Any]) -> dict[str, Any]:
    """Return how and from what a file was packed, except what other lines show. --json shows all of it."""
    from smallfiles.formats.table import recorded_columns as columns_of

    origin = {name: value for name, value in provenance.items() if name in ("options", "resize") and value}
    if columns := columns_of(provenance):
        origin["read with"] = shlex.join(word for each in columns for word in ("--field", each))
    schema = provenance.get("schema")
    if isinstance(schema, dict):
        parts = (schema.get("name"), schema.get("split"), schema.get("manifest_digest"))
        origin["packed from"] = ", ".join(str(part) for part in parts if part)
        origin["packed by"] = f"{provenance.get('package')} {provenance.get('version')}"
    return origin


def _short(value: Any) -> str:
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} …"
