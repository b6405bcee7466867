"""`inspect`: what is inside a packed file."""

from __future__ import annotations

import argparse
import json
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import FORMATS, Verbs, add_run
from smallfiles.cli.output import report
from smallfiles.errors import UsageError, first_few, no_samples
from smallfiles.keys import printable
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from smallfiles.samples import Reader

_KEYS = 3
_SIZES = 100_000
_WIDTH = 300
_BORDERS = [0, *(step * 10**power for power in range(14) for step in (1, 2, 5))]


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "inspect", run)
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    parser.add_argument("--format", metavar="NAME", help=f"overrides the suffix of OUT: {FORMATS}")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw samples (.html or .png)")
    parser.add_argument(
        "--croissant", action="store_true", help="write OUT.croissant.json, a card of the set"
    )
    parser.add_argument("--licence", "--license", metavar="URL", help="of the set, for its card")
    parser.add_argument("--seed", type=int, metavar="S", help="of the choice of samples to draw (0)")


def run(arguments: argparse.Namespace) -> int:
    """Show what is inside a packed file.

    Format, layout, number of samples, classes, fields and which were added later, how and from what it was
    packed, the first keys and the distribution of sizes. Reads the index only, and with --picture the samples
    that it draws: look at them before you train for days. --croissant writes what catalogues of data sets and
    the library mlcroissant read: files, fields, classes, split. It reads every byte once, for SHA-256.

    Examples:
        smallfiles inspect train.arrow
        smallfiles inspect train.arrow --picture sheet.html
        smallfiles inspect train.tars --json
        smallfiles inspect train.tars --croissant --licence https://spdx.org/licenses/CC-BY-4.0
    """
    from smallfiles import contact_sheet, croissant, formats
    from smallfiles.digests import added_fields

    for name, needed in (("seed", "picture"), ("licence", "croissant")):
        if getattr(arguments, name) is not None and not getattr(arguments, needed):
            raise UsageError(
                f"--{name} is given without --{needed}",
                expected=f"it with --{needed}, which alone uses it",
                next_step=f"Give --{needed} too, or leave --{name} out",
            )
    began = perf_counter()
    with closing(formats.open(arguments.out, arguments.format)) as reader:
        if not len(reader):
            raise no_samples(arguments.out)
        facts = reader.info()
        sizes = _sizes(reader)
        keys = [reader.key(index) for index in range(min(_KEYS, len(reader)))]
        classes = list(reader.classes)
        facts = {"path": str(arguments.out), **facts, "samples": len(reader)}
        facts["fields"] = dict(reader.fields)
        facts["added_fields"] = [*reader.added()]
        facts["added_by"] = [file.name for file in added_fields(arguments.out)]
        if arguments.picture is not None:
            sheet = contact_sheet.write(reader, arguments.picture, arguments.seed or 0)
            facts["picture"] = f"{arguments.picture}: {sheet.note}"
        if arguments.croissant:
            facts["croissant"] = str(croissant.write(reader, arguments.licence))
    facts |= {"classes": classes, "first_keys": keys, "size_histogram": _histogram(sizes)}
    facts["bytes"] = int(facts.get("bytes", sum(sizes)))
    facts["seconds"] = round(perf_counter() - began, 3)
    return report(arguments, facts, *_lines(dict(facts), len(sizes)))


def _sizes(reader: Reader) -> list[int]:
    """Sizes of all samples, or of evenly spread ones where there are very many."""
    step = max(1, len(reader) // _SIZES)
    return [reader.size(index) for index in range(0, len(reader), step)]


def _histogram(sizes: list[int]) -> list[dict[str, int]]:
    """Number of samples between 0, 1, 2, 5, 10, 20, 50 … bytes, from the smallest to the largest."""
    counts = Counter(bisect_right(_BORDERS, size) for size in sizes)
    if not counts:
        return []
    return [
        {"from_bytes": _BORDERS[n - 1], "below_bytes": _BORDERS[n], "samples": counts[n]}
        for n in range(min(counts), max(counts) + 1)
    ]


def _lines(facts: dict[str, Any], measured: int) -> Iterator[str]:
    histogram, keys, classes = facts.pop("size_histogram"), facts.pop("first_keys"), facts.pop("classes")
    facts |= {"fields": ", ".join(f"{name} ({kind})" for name, kind in facts["fields"].items()) or "none"}
    for name in ("added_fields", "added_by"):
        facts[name] = ", ".join(facts[name])
    facts = {name: value for name, value in facts.items() if value != ""}
    facts.pop("seconds")  # for programs; how long a look took says nothing of the file
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
    """How and from what a file was packed, without what stands in other lines; --json has all of it."""
    from smallfiles.formats.provenance import columns as columns_of

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
