"""Pages of the site that are taken from the code and from results/: commands, API, comparison, storage.

Nothing of them is written by hand, so nothing of them can be out of date. The trap: autodoc looks for the
names of a module in `dir()`, where names that are imported when asked for are missing; so each is listed.
"""

import argparse
import ast
import importlib
import inspect
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType

from smallfiles.cli import build_parser
from smallfiles.measure.drawing import alt_text, as_page, throughput
from smallfiles.measure.probe import LOCAL, METADATA
from smallfiles.measure.record import Record, load
from smallfiles.measure.table import reference_of, times
from smallfiles.progress import bytes_text
from smallfiles.scaling import Storage

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROOMS = "machine sources manifest formats pack staging objectstore images loading ring training"
ROOMS += " slowfs scaling measure samples digests errors"
MODULES = [*(f"smallfiles.{room}" for room in ROOMS.split()), "pysquashfs"]
REFERENCES = {"peers.json": "torchvision ImageFolder, antialias"}


def write_pages(docs: Path) -> None:
    """Write all of them into the folder of the documents."""
    (docs / "cli.md").write_text(cli_page())
    (docs / "api").mkdir(exist_ok=True)
    for number, module in enumerate(MODULES):
        (docs / "api" / f"{number:02}_{module.rpartition('.')[2]}.md").write_text(api_page(module))
    (docs / "comparison.md").write_text(comparison_page(docs))
    (docs / "storage.md").write_text(storage_page())


def cli_page() -> str:
    """The help of every verb, as the program prints it."""
    text = "# Commands\n\nWhat `smallfiles VERB --help` prints. This page is made from the program.\n"
    return text + "".join(f"\n## {name}\n\n```text\n{help_}\n```\n" for name, help_ in helps(build_parser()))


def helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Name and help of a program, of its verbs, and of the topics of these."""
    yield parser.prog, parser.format_help().rstrip()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from helps(below)


def api_page(name: str) -> str:
    """A module's docstring, which is Markdown, then what it offers."""
    module = importlib.import_module(name)
    intro = inspect.cleandoc(module.__doc__ or "")
    entries = "\n".join(entry for each in public_names(module) for entry in directive(module, each))
    return f"# {name}\n\n{intro}\n\n```{{eval-rst}}\n.. currentmodule:: {name}\n\n{entries}\n```\n"


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what the module defines and what it imports under its own name (`X as X`)."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            found += [alias.asname for alias in node.names if alias.asname and alias.asname == alias.name]
    home = module.__name__
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == home]
    return [name for name in dict.fromkeys([*defined, *found]) if not name.startswith("_")]


def directive(module: ModuleType, name: str) -> list[str]:
    """How autodoc is asked for one name; modules and plain values have pages and sources of their own."""
    value = getattr(module, name)
    if inspect.isclass(value):
        return [f".. autoclass:: {name}", "   :members:", ""]
    return [f".. autofunction:: {name}", ""] if inspect.isroutine(value) else []


def comparison_page(docs: Path) -> str:
    """Every record of results/ as a figure and a table, and where the page on peers is, if there is one."""
    parts = [
        "# What it buys, beside the software of others",
        "All numbers come from `results/`, measured on one virtual machine with two cores. Rounds are "
        "interleaved; compare only within one table. Where quartiles overlap there is no clear difference, "
        "and the table says ≈ 1. `make bench` repeats it.",
        *["[Beside other loaders](../results/peers.md), on the same files."]
        * (RESULTS / "peers.md").exists(),
    ]
    for path in sorted(RESULTS.glob("*.json")):
        for number, group in enumerate(groups(load(path))):
            parts += section(group, REFERENCES.get(path.name), docs / "figures" / f"{path.stem}-{number}.svg")
    return "\n\n".join(parts) + "\n"


def storage_page() -> str:
    """A column for each shared record of a storage: what an operation takes, and what reads deliver."""
    shared = {
        path.stem.replace("_", " "): load(path) for path in sorted((RESULTS / "storage").glob("*.json"))
    }
    head = [f"{name} ({records[0].filesystem})" for name, records in shared.items()]
    rows = dict.fromkeys((record.what, record.name) for records in shared.values() for record in records)
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for what, name in rows:
        found = [{(each.what, each.name): each for each in records} for records in shared.values()]
        cells = [_storage_text(each[what, name]) if (what, name) in each else "" for each in found]
        lines.append(f"| {what}: {name} | {' | '.join(cells)} |")
    text = (
        "Each column is one anonymous record of `smallfiles doctor DIR --share R.json` or of the job "
        "`slurm/submit SITE 01_probe -- --share`: one machine, one moment, and whoever else used the storage "
        "then. To add yours, send its file for `results/storage`; it has no user, host, account or path. "
        "`smallfiles simulate --records R.json` and `smallfiles advise DIR --records R.json` reckon with it. "
        "The slow folders are those of `smallfiles slowfs`, which are only read."
    )
    parts = ("# What storage is like, here and elsewhere", text, "\n".join(lines), _cited())
    return "\n\n".join(parts) + "\n"


def _cited() -> str:
    """Return a table of the figures of centres, with their sources, beside ours."""
    cited = json.loads((RESULTS / "cited/storage.json").read_text())
    disk = next(each for each in load(RESULTS / "storage/virtual_disk.json") if each.bytes > 1e6)
    ours = [
        (f"assumed by `smallfiles simulate`, {Storage.targets} targets", Storage.target_bytes_s, "", ""),
        (f"the virtual disk above, {disk.name}", disk.spread.median * disk.bytes, "measured here", ""),
    ]
    rows = [
        *(
            (each["storage"], 1e6 * each["mb_per_s_and_target"], each["known_from"], f"<{each['source']}>")
            for each in cited
        ),
        *ours,
    ]
    lines = [f"| {name} | {rate / 1e6:,.0f} | {known} | {source} |" for name, rate, known, source in rows]
    head = "| storage | MB/s of one target | known from | source |\n|---|---:|---|---|"
    return "\n".join(("## Figures of centres", "", head, *lines))


def _storage_text(record: Record) -> str:
    rate = record.spread.median
    if record.what == LOCAL:
        return bytes_text(record.bytes)
    if record.what == METADATA:
        return f"{1e6 / rate:,.0f} µs" if rate < 1e5 else f"{1e6 / rate:.1f} µs"
    return f"{rate:,.0f} per s, {bytes_text(round(rate * record.bytes))}/s"


def groups(records: list[Record]) -> list[list[Record]]:
    """Records that may be compared: the same operation under the same conditions, two at least."""
    found = [list(group) for _, group in groupby(records, lambda record: str(record.conditions()))]
    return [group for group in found if len(group) > 1]


def section(group: list[Record], reference: str | None, picture: Path) -> list[str]:
    """Heading, figure and table of one comparison."""
    base = reference_of(group, reference)
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(as_page(throughput(group, reference=reference)))
    rows = [
        f"| {record.name} | {record.spread.median:,.0f} | {record.spread.lower:,.0f} to "
        f"{record.spread.upper:,.0f} | {times(record, base)} |"
        for record in group
    ]
    head = f"| | samples per second | quartiles | times {base.name} |\n|---|---:|---:|---:|\n"
    heading = f"{base.what[:1].upper()}{base.what[1:]} ({base.cache} cache, {base.filesystem})"
    return [
        f"## {heading}",
        f"![{alt_text(group, reference=reference)}](figures/{picture.name})",
        head + "\n".join(rows),
    ]
