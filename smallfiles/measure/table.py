"""Records as text: a table with aligned columns, with the spread of each median.

The trap: a ratio of two medians does not show whether it is significant. So a ratio whose quartiles
include 1 is shown as "≈ 1". Notebook 01 reads such a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from smallfiles.measure.record import Failed, Record, ratio
from smallfiles.progress import bytes_text

_HEADER = ("name", "samples/s", "quartiles", "bytes/s", "× {}")  # noqa: RUF001 - the multiplication sign is meant


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first aligned to the left, all others to the right.

    Args:
        header: Names of the columns; a line break makes the header two lines high.
        rows: The cells, each of one line.
    """
    split = [name.split("\n") for name in header]
    height = max(map(len, split))
    head = [[([""] * (height - len(name)) + name)[line] for name in split] for line in range(height)]
    lines = [*head, *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    shown = ["  ".join(map(_cell, line, widths, range(len(widths)))).rstrip() for line in lines]
    return "\n".join([*shown[:height], "  ".join("-" * width for width in widths), *shown[height:]])


def _cell(text: str, width: int, column: int) -> str:
    return text.rjust(width) if column else text.ljust(width)


def summary(records: Sequence[Record], failed: Sequence[Failed] = ()) -> str:
    """One table per condition: median rate, quartiles, bytes per second, ratio to the first.

    Args:
        records: Records of one measurement, those of one condition together.
        failed: The failed candidates: a line each, in the table of their condition.
    """
    tables: dict[tuple[str, str], list[str]] = {}
    for (what, cache), members in groupby(records, key=lambda record: (record.what, record.cache)):
        group = list(members)
        title = f"{what}, {cache} cache, {group[0].filesystem}, {group[0].repeats} rounds"
        tables[what, cache] = [title, _table(group, group[0])]
    for each in failed:
        tables.setdefault((each.what, each.cache), [f"{each.what}, {each.cache} cache"]).append(
            f"{each.name}  failed: {each.why}"
        )
    return "\n\n".join("\n".join(lines) for lines in tables.values())


def reference_of(records: Sequence[Record], name: str | None) -> Record:
    """The reference record: by name or format, or the first."""
    return next((record for record in records if name in (record.name, record.format)), records[0])


def _table(records: Sequence[Record], reference: Record) -> str:
    header = [column.format(reference.name) for column in _HEADER]
    has_memory = any("peak_above_interpreter_bytes" in record.extra for record in records)
    has_cpu = any("cpu_s" in record.extra for record in records)
    rows = [
        _row(record, reference) + _cpu(record) * has_cpu + _memory(record) * has_memory for record in records
    ]
    return aligned(header + ["processor"] * has_cpu + ["peak memory"] * has_memory, rows)


def _row(record: Record, reference: Record) -> list[str]:
    spread = record.spread
    rate_bytes = spread.median * record.bytes / max(record.samples, 1)
    quartiles = f"{spread.lower:,.0f} to {spread.upper:,.0f}"
    return [
        record.name,
        f"{spread.median:,.0f}",
        quartiles,
        f"{bytes_text(rate_bytes)}/s",
        times(record, reference),
    ]


def times(record: Record, reference: Record) -> str:
    """The ratio as text; `≈ 1` if its quartiles include 1, or those of the rates overlap."""
    if record is reference:
        return "1"
    found = ratio(record, reference)
    if found.lower <= 1 <= found.upper or record.spread.overlaps(reference.spread):
        return "≈ 1"
    return f"{found.median:.2f}" if found.median < 10 else f"{found.median:.0f}"


def _cpu(record: Record) -> list[str]:
    """Processor time per sample, over all threads, which does not depend on the number of samples."""
    each_us = 1e6 * record.extra.get("cpu_s", 0) / max(record.samples, 1)
    return [f"{each_us:,.0f} µs/sample"]


def _memory(record: Record) -> list[str]:
    return [bytes_text(record.extra.get("peak_above_interpreter_bytes", 0))]
