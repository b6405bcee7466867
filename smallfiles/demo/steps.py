"""The steps of the demo, each a call of the function of a verb, and its table and page.

A run owns its output folder, marked by a small file, so that a second run may replace the packed
files and the report of the first and nobody else's. A data set that was made once is used again.
The trap: a page that is half written looks finished in a browser, so it is written aside and then renamed.
"""

from __future__ import annotations

import base64
import html
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from string import Template
from time import perf_counter
from typing import Any

from smallfiles import sources
from smallfiles.arrays import spread
from smallfiles.atomic import replaced
from smallfiles.demo import DemoConfig
from smallfiles.errors import OutputExistsError, UsageError
from smallfiles.measure import BenchConfig, Record, Result, bench_reads, save
from smallfiles.measure import drawing as plots
from smallfiles.measure.table import aligned, times
from smallfiles.pack import PackConfig, PackReport, pack
from smallfiles.progress import bytes_text
from smallfiles.sources import ManifestConfig, Source, synthetic

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
    """Group the records of the figure, one panel per condition, with cold reads if they were measured."""
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


PACKED = ("set.files", "set.arrow", "set.h5", "set.tars", "set.sqfs")
MEASURED = 1000
_CLASSES = 10
_MARK = ".smallfiles-demo"

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoResult:
    """The result of a demo.

    Args:
        table: Cost and speed of each format.
        reads: The records and notes of the measurement.
        samples: Samples in the set.
        bytes: Their encoded bytes.
        seconds: Duration of the whole demo.
        report: The page.
        figure: The figure as PNG; with an SVG of the same name.
    """

    table: Table
    reads: Result
    samples: int
    bytes: int
    seconds: float
    report: Path
    figure: Path


def run(config: DemoConfig, say: Say) -> DemoResult:
    """Make or take a data set, pack it into four formats, measure, report.

    Args:
        config: What to do.
        say: Takes one line about each step.

    Returns:
        The table and where the report is.

    Raises:
        UsageError: The output would lie inside the data.
        OutputExistsError: The output folder has other files than those of a demo.
    """
    began = perf_counter()
    _check_place(config)
    source = _load(config, say)
    reports = _pack_all(source, config, say)
    reads = _measure([report.path for report in reports], config, say)
    table = table_of(reports, reads.records)
    report, figure = publish(table, reads, config, _source_text(source, config))
    return DemoResult(
        table,
        reads,
        reports[0].samples,
        reports[0].payload_bytes,
        perf_counter() - began,
        report,
        figure,
    )


def _check_place(config: DemoConfig) -> None:
    """Refuse the folder of something else, before anything is read or written."""
    out = config.out
    if config.data is not None and out.resolve().is_relative_to(config.data.resolve()):
        raise UsageError(
            f"the output {out} lies inside the data {config.data}",
            expected="an output elsewhere, since your data is only read",
            next_step="Give another --out",
        )
    if out.exists() and not (out / _MARK).exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputExistsError(
            f"{out} exists and has files that no demo wrote",
            expected="a new or empty folder, or that of an earlier demo",
            next_step="Give another --out",
        )


def _own(out: Path) -> None:
    """Create the output folder and mark it as that of a demo."""
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()


def _load(config: DemoConfig, say: Say) -> Source:
    data = config.data if config.data is not None else _made(config, say)
    source = sources.read(data, config.reading)
    _own(config.out)  # only now: unreadable data leaves no folder
    for note in source.notes:
        say(f"note: {note}")
    source = _at_most(replace(source, notes=()), config.count, say)
    ManifestConfig().save(source, config.out / "manifest.json")
    say(f"manifest: {len(source.manifest):,} samples of {data} in {config.out / 'manifest.json'}")
    return source


def _made(config: DemoConfig, say: Say) -> Path:
    """Return the data set of these settings, from an earlier demo or created now (complete or not at all)."""
    _own(config.out)
    out = config.out / f"images-{config.count}-seed{config.seed}"
    if out.exists():
        say(f"data: {out} is there from an earlier run")
        return out
    made = synthetic.make(
        out, "folder", count=config.count, seed=config.seed, classes=min(_CLASSES, config.count)
    )
    say(f"data: {made.images:,} images ({bytes_text(made.bytes)}) made in {made.seconds:.0f} s")
    return out


def _at_most(source: Source, count: int, say: Say) -> Source:
    """Evenly spread samples, from all classes."""
    total = len(source.manifest)
    if total <= count:
        return source
    say(f"note: {count:,} of {total:,} samples are taken, evenly spread; --count takes more")
    chosen = spread(total, count)
    return replace(source, manifest=source.manifest.select(chosen))


def _pack_all(source: Source, config: DemoConfig, say: Say) -> list[PackReport]:
    folder = config.out / "packed"
    shutil.rmtree(folder, ignore_errors=True)
    settings = PackConfig(verify="full", on_error="skip" if config.data is not None else "stop")
    reports = []
    for name in PACKED:
        report = pack(source, folder / name, settings)
        reports.append(report)
        say(f"packed: {folder / name}, {report.samples:,} samples, all read back and compared")
        if report.skipped:
            say(f"note: {len(report.skipped):,} samples cannot be packed; see {report.path}.faults.json")
    return reports


def _measure(paths: Sequence[Path], config: DemoConfig, say: Say) -> Result:
    say(f"measuring: {config.repeats} rounds, all formats interleaved …")
    reads = bench_reads(paths, BenchConfig(config.repeats, min(config.count, MEASURED), seed=config.seed))
    for note in reads.notes:
        say(f"note: {note}")
    return reads


def _source_text(source: Source, config: DemoConfig) -> str:
    sizes = source.manifest.sizes
    volume = f", {bytes_text(int(sizes.sum()))}" if sizes is not None else ""
    kind = f"your {source.kind} data set" if config.data is not None else "synthetic images, ImageNet-like"
    return f"{len(source.manifest):,} samples of {kind}{volume}"
