"""The table and the page of the demo: cost and speed of each format, without external resources.

The trap: a page that is half written looks finished in a browser, so it is written aside and then renamed.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from smallfiles.atomic import replaced
from smallfiles.demo import DemoConfig
from smallfiles.measure import Record, Result, save
from smallfiles.measure import drawing as plots
from smallfiles.measure.table import aligned, times
from smallfiles.pack import PackReport
from smallfiles.progress import bytes_text

_TITLE = "One road for many small files"
_PANELS = (("sequential reads", "cold"), ("random reads", "cold"), ("random reads", "warm"))
_WORDS = {
    "cpu": "Processor",
    "cpus_usable": "CPUs usable",
    "memory_bytes": "Memory usable",
    "system": "System",
    "kernel": "Kernel",
    "python": "Python",
}
CONDITIONS = (
    ("sequential reads", "warm"),
    ("random reads", "warm"),
    ("sequential reads", "cold"),
    ("random reads", "cold"),
)
LEGEND = (
    "Packed and read: samples per second, medians. × plain: how many times as fast as plain files in the "  # noqa: RUF001
    "same rounds, ≈ 1 where there is no clear difference."
)
_SHORT = {"sequential reads": "in order", "random reads": "random"}


@dataclass(frozen=True)
class Table:
    """Cost and speed of each format, as text.

    Args:
        header: Names of the columns, in two lines; those of cold reads only where they were measured.
        rows: One for each format: name, files and folders, size, samples packed per second, and for each
            condition the median of reads and its ratio to that of plain files.
        inodes: Files and folders of each format on the file system, each of which costs an inode.
    """

    header: list[str]
    rows: list[list[str]]
    inodes: list[int]

    def __str__(self) -> str:
        return aligned(self.header, self.rows)


def table_of(reports: Sequence[PackReport], records: Sequence[Record]) -> Table:
    """Join the results of packing and reading, by format."""
    first = {(record.what, record.cache): record for record in reversed(records)}
    measured = [condition for condition in CONDITIONS if condition in first]
    header = ["format", "files,\nfolders", "size", "packed"]
    for what, cache in measured:
        header += [f"{_SHORT[what]},\n{cache}", "×\nplain"]  # noqa: RUF001 - the sign is meant
    table = Table(header, [], [_inodes_of(report) for report in reports])
    for report, inodes in zip(reports, table.inodes, strict=True):
        mine = {(each.what, each.cache): each for each in records if each.format == report.format}
        name, rate = mine[measured[0]].name, report.samples / max(report.seconds, 1e-9)
        row = [name, f"{inodes:,}", bytes_text(report.file_bytes), f"{rate:,.0f}"]
        for condition in measured:
            found = mine[condition]
            row += [f"{found.spread.median:,.0f}", times(found, first[condition])]
        table.rows.append(row)
    return table


def _inodes_of(report: PackReport) -> int:
    folders = sum(path.is_dir() for path in report.path.rglob("*")) + 1 if report.path.is_dir() else 0
    return report.files + folders


def publish(table: Table, reads: Result, config: DemoConfig, source: str) -> tuple[Path, Path]:
    """Write figure, records and page next to the packed files; the page is written atomically.

    Args:
        table: What is measured.
        reads: Records and notes.
        config: Configuration of the run, for its command and folder.
        source: The packed data, in words.

    Returns:
        The page and the PNG of the figure.
    """
    groups = figure_groups(reads.records)
    figure = plots.throughput(*groups)
    _, png = plots.save(figure, config.out / "reads")
    save(reads.records, config.out / "records.json")
    page = config.out / "report.html"
    with replaced(page) as partial:
        partial.write_text(_page(table, reads, config, source, plots.as_svg(figure)), encoding="utf-8")
    return page, png


def figure_groups(records: Sequence[Record]) -> list[list[Record]]:
    """The records of the figure, one panel per condition; cold ones if measured."""
    chosen = [[r for r in records if (r.what, r.cache) == condition] for condition in _PANELS]
    return [group for group in chosen if group]


def _page(table: Table, reads: Result, config: DemoConfig, source: str, svg: str) -> str:
    groups = figure_groups(reads.records)
    text = {
        "title": _TITLE,
        "lead": f"{source}, packed into {len(table.rows)} formats, each read back and compared byte by byte.",
        "legend": LEGEND,
        "alt": plots.alt_text(*groups),
        "command": config.to_cli(),
    }
    return Template(files("smallfiles.demo").joinpath("page.html").read_text(encoding="utf-8")).substitute(
        {name: html.escape(value) for name, value in text.items()},
        findings=_items([f"{plots.finding(group)}." for group in groups] + [_inodes(table.inodes)]),
        header="".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.header),
        rows="\n".join(map(_line, table.rows)),
        method=_items(_method(reads)),
        machine=_pairs(reads.records[0].machine),
        figure=base64.b64encode(svg.encode()).decode(),
    )


def _line(row: Sequence[str]) -> str:
    first, *rest = map(html.escape, row)
    return f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"


def _inodes(counts: Sequence[int]) -> str:
    plain, packed = counts[0], sorted(set(counts[1:]))
    became = f"{packed[0]:,}" if len(packed) == 1 else f"{packed[0]:,} to {packed[-1]:,}"
    return f"{plain:,} files and folders became {became} on the file system."


def _method(reads: Result) -> Iterable[str]:
    first = reads.records[0]
    share = f"{first.set_samples:,} samples, {bytes_text(first.set_bytes)}"
    yield f"Data set: {share}, on {first.filesystem}; one process, one sample at a time."
    yield f"{first.repeats} rounds; every round runs all formats in a new order. Shown are medians."
    yield f"What counts as read: {first.touched}; the sums prove that all formats gave the same bytes."
    if any(record.cache == "cold" for record in reads.records):
        yield (
            "Cold: the page cache was emptied of the files before each run. It drops data, not names, "
            "so plain files on a real parallel file system are slower than shown here."
        )
    yield "Packed per second counts reading, writing, reading back, comparing and publishing."
    yield from (f"{note[:1].upper()}{note[1:]}." for note in reads.notes)


def _items(sentences: Iterable[str]) -> str:
    return "\n".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)


def _pairs(machine: dict[str, Any]) -> str:
    shown = {**machine, "memory_bytes": bytes_text(machine.get("memory_bytes", 0))}
    return "\n".join(
        f"<dt>{word}</dt><dd>{html.escape(str(shown[name]))}</dd>"
        for name, word in _WORDS.items()
        if name in shown
    )
