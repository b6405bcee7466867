"""Ours and what others wrote, side by side on the same files: packing, raw reads, crops, epochs, S3.

    python -m benchmarks peers data --save results/peers.json

One run of five measurements, each of which interleaves its candidates in rounds; whatever is not installed,
fails or takes its process with it is a line of the table, with the reason. The table (`peers.md`) and the
figure (`peers.png`) are written beside the records; the table begins with our best beside the best of others,
whoever is ahead.

The trap: the best of many candidates is partly luck, so a factor is stated only where quartiles do not
overlap. And a crop with another filter is another crop: what says `linear` is compared with `linear`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from benchmarks.decoding import MOST_PICTURES, bench_decoding
from benchmarks.first_batch import KINDS, bench_first_batch
from benchmarks.reading import bench_raw_reads
from benchmarks.staging import first_of
from smallfiles import cli, sources
from smallfiles.measure import BUSY, BenchConfig, LoadBenchConfig, Step, bench_packing
from smallfiles.measure.bench import Target
from smallfiles.measure.loading import bench_loading
from smallfiles.measure.methods import REFERENCE, listed
from smallfiles.measure.packing import FORMATS
from smallfiles.measure.record import Failed, Record, Result
from smallfiles.measure.scratch import memory_folder
from smallfiles.measure.table import STAGES, times
from smallfiles.options import option
from smallfiles.pack import PackConfig, pack

_YARDSTICKS = (REFERENCE, "plain files")
_AHEAD = 256
_RAW_TIMES = 4
_LAST = "hashed and verified"
_FEW = f"decoding is measured on the first {MOST_PICTURES} files at most"
_NO_READS = "webdataset, DALI, SPDL and FFCV give no raw sample by its number, so epochs only"


@dataclass(frozen=True)
class PeersConfig(BenchConfig):
    """How to measure all of them."""

    repeats: int = option(5, "rounds", least=1)
    step: Step | None = option(None, "also imitate this training step of MLPerf Storage")


def bench_peers(folder: Path, config: PeersConfig | None = None) -> Result:
    """Measure packing, raw reads, decoding with augmenting, epochs, and requests to an object store.

    Args:
        folder: One sub-folder a class.
        config: How.

    Returns:
        All records; what failed; what has to be said.

    Raises:
        ResourceError: Memory has no room for all the copies.
    """
    found, loads = [], [os.getloadavg()[0]]
    for part in _measured(folder, config or PeersConfig()):
        loads.append(os.getloadavg()[0])
        records = [_with(each, load=loads[-2:]) for each in part.records if each.what != STAGES]
        found.append(replace(part, records=tuple(records)))
    return Result(
        tuple(each for part in found for each in part.records),
        tuple(dict.fromkeys(note for part in found for note in part.notes)),
        tuple(each for part in found for each in part.failed if each.what != STAGES),
    )


def _with(record: Record, **facts: Any) -> Record:
    return replace(record, extra=record.extra | facts)


def publish(saved: Path, result: Result) -> None:
    """Write the table and the figure beside the records.

    Args:
        saved: The records.
        result: What they are of.
    """
    saved.with_suffix(".md").write_text(as_markdown(result), encoding="utf-8")
    cli.main(["figure", str(saved), str(saved.with_suffix(".png"))])


def _measured(folder: Path, config: PeersConfig) -> Iterator[Result]:
    yield bench_packing(folder, config, others="benchmarks.packing")
    source = first_of(sources.load(folder), config.count)
    files, _ = listed(source)
    size = sum(Path(path).stat().st_size for path in files)
    loads = LoadBenchConfig(repeats=config.repeats, count=config.count, seed=config.seed, cap=config.cap)
    with memory_folder((len(FORMATS) + _RAW_TIMES) * size) as place:
        paths, failed = {}, []
        for format, name in FORMATS.items():
            try:
                pack(source, place / name, PackConfig(verify="none"))
                paths[format] = place / name
            except Exception as error:
                failed.append(Failed("random reads", format, str(error)))
        pack(source, place / "raw.arrow", PackConfig(verify="none", resize=_AHEAD, pixels=True))
        target = Target(paths["arrow"], "arrow", "arrow", len(files), size, "JPEG")
        yield Result((), (_NO_READS, _FEW), tuple(failed))
        yield bench_raw_reads(files, paths, target, config)
        yield bench_first_batch(target, config)
        yield bench_decoding(paths["arrow"], config, ["augment"])
        yield bench_loading([paths["arrow"], place / "raw.arrow"], loads, others="benchmarks.loaders")
        if config.step is not None:
            stepped = replace(loads, step=config.step)
            yield bench_loading([paths["arrow"]], stepped, others="benchmarks.loaders")


def as_markdown(result: Result) -> str:
    """The tables of a run, for the pages of the course: what won, all that ran, all that did not.

    Args:
        result: Of `bench_peers`.
    """
    first = result.records[0]  # the last one may be of pixels, which have other sizes
    versions = dict(sorted(chain.from_iterable(each.versions.items() for each in result.records)))
    made = first.machine
    groups = {what: list(group) for what, group in groupby(result.records, key=lambda each: each.what)}
    rows = [row for group in groups.values() for row in _ahead(group)]
    lines = [
        "# Side by side",
        f"{first.set_samples:,} files of {first.set_bytes / first.set_samples / 1e3:,.0f} kB, in memory; "
        f"{first.repeats} interleaved rounds; quartiles in brackets; our own in bold. Measured on: "
        f"{made['cpu']}, {made['cpus_usable']} cores, {made['memory_bytes'] >> 30} GiB, {made['system']}, "
        f"kernel {made['kernel']}, Python {made['python']}.",
        _busy(result.records, made["cpus_usable"]),
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.",
        _table(("measure", "our best", "images/s", "best of others", "images/s", "ours ÷ theirs"), rows),
        *chain.from_iterable(
            _section(what, groups.get(what, []), [each for each in result.failed if each.what == what])
            for what in dict.fromkeys([*groups, *(each.what for each in result.failed)])
        ),
        "## Notes",
        "\n".join(f"- {note}" for note in result.notes),
    ]
    return "\n\n".join(lines) + "\n"


def _busy(records: Sequence[Record], cpus: int) -> str:
    """Say what else the machine did, since the rates of a busy machine are too low."""
    parts = {each.what: each.extra["load"] for each in records if "load" in each.extra}
    if not parts:
        return ""
    loads = ", ".join(f"{what} {before:.1f} to {after:.1f}" for what, (before, after) in parts.items())
    return (
        f"Load averages before and after each part, of {cpus} cores: {loads}. Where they are above the "
        "number of cores, other programs ran too: compare processor time, requests and ratios, not rates."
    )


def _ahead(group: Sequence[Record]) -> Iterator[list[str]]:
    """Our best and the best of others, for each filter that both have."""
    for linear in (False, True):
        fit = [each for each in group if each.name.endswith(", linear") == linear]
        ours = [each for each in fit if _is_ours(each) and not each.name.endswith(_LAST)]
        others = [each for each in fit if not _is_ours(each) and each.name not in _YARDSTICKS]
        if ours and others:
            mine, theirs = _best(ours), _best(others)
            named = [mine.name, _rate(mine), theirs.name, _rate(theirs), times(mine, theirs)]
            yield [mine.what, *named]


def _section(what: str, group: Sequence[Record], failed: Sequence[Failed]) -> Iterator[str]:
    yield f"## {what[:1].upper()}{what[1:]}"
    if group:
        best = _best([each for each in group if _is_ours(each)] or group)
        emulated = any("utilisation" in each.extra for each in group)
        head = ["", "images/s", f"÷ {best.name}"]
        head += ["one accelerator computes", f"accelerators fed ≥ {BUSY:.0%} of the time"] * emulated
        ordered = sorted(group, key=lambda each: -each.spread.median)
        costs = [_costs(each) for each in ordered]
        titles = list(dict.fromkeys(title for cells in costs for title in cells))
        rows = [
            [*_row(each, best, emulated), *(cells.get(title, "") for title in titles)]
            for each, cells in zip(ordered, costs, strict=True)
        ]
        yield _table([*head, *titles], rows)
    if failed:
        yield "\n".join(f"- Not measured: {each.name}: {each.why}" for each in failed)


def _row(record: Record, best: Record, emulated: bool) -> list[str]:
    name = f"**{record.name}**" if _is_ours(record) else record.name
    fed = [f"{record.extra['utilisation']:.0%}", f"{record.extra['accelerators']:g}"] if emulated else []
    return [name, _rate(record), times(record, best), *fed]


def _costs(record: Record) -> dict[str, str]:
    """Return the columns that only some parts have."""
    extra, cells = record.extra, dict[str, str]()
    if "cpu_s" in extra:
        cells["CPU s per 1,000"] = f"{1000 * extra['cpu_s'] / record.samples:.2f}"
    for name in ("peak_above_interpreter_bytes", "memory_bytes"):
        if name in extra:
            cells["peak MB"] = f"{extra[name] / 1e6:,.0f}"
    for part in ("first_batch", "epoch"):
        for kind in KINDS:
            if (name := f"{kind}_{part}") in extra:
                number, unit = (extra[name] / 1e6, "MB") if kind == "bytes" else (extra[name], kind)
                cells[f"{unit}, {part.replace('_', ' ')}"] = f"{number:,.0f}"
    return cells


def _rate(record: Record) -> str:
    spread = record.spread
    return f"{spread.median:,.0f} ({spread.lower:,.0f} to {spread.upper:,.0f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ruler, *rows))


def _best(records: Sequence[Record]) -> Record:
    return max(records, key=lambda each: each.spread.median)


def _is_ours(record: Record) -> bool:
    packed = record.format in FORMATS and record.name not in _YARDSTICKS
    return packed or record.name.startswith("ours")
