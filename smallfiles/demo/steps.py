"""The steps of the demo, each a call of the function of a verb.

A run owns its output folder, marked by a small file, so that a second run may replace the packed
files and the report of the first and nobody else's. A data set that was made once is used again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from smallfiles import sources
from smallfiles.arrays import spread
from smallfiles.demo import DemoConfig
from smallfiles.demo.report import Table, publish, table_of
from smallfiles.errors import OutputExistsError, UsageError
from smallfiles.measure import BenchConfig, Result, bench_reads
from smallfiles.pack import PackConfig, PackReport, pack
from smallfiles.progress import bytes_text
from smallfiles.sources import ManifestConfig, Source, synthetic

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
    """The data set of these settings: of an earlier demo, or created now (complete or not at all)."""
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
