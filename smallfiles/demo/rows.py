"""The demo's table: what each format costs and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smallfiles.measure.record import Record
from smallfiles.measure.table import aligned, times
from smallfiles.pack import PackReport
from smallfiles.progress import bytes_text

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
class Row:
    """One format in the demo's table.

    Args:
        name: What it is called in figures.
        files: Files and folders on the file system, each of which costs an inode.
        file_bytes: Their size.
        packed_per_s: Samples packed, verified and published per second.
        rates_per_s: Median samples per second for each condition that was measured.
        ratios: Beside each rate, how many times plain files that is, as text.
    """

    name: str
    files: int
    file_bytes: int
    packed_per_s: float
    rates_per_s: dict[tuple[str, str], float]
    ratios: dict[tuple[str, str], str]


def rows_of(reports: Sequence[PackReport], records: Sequence[Record]) -> tuple[Row, ...]:
    """Join what packing and reading found, by format."""
    first = {(record.what, record.cache): record for record in reversed(records)}
    rows = []
    for report in reports:
        mine = [record for record in records if record.format == report.format]
        rows.append(
            Row(
                name=mine[0].name,
                files=_inodes(report),
                file_bytes=report.file_bytes,
                packed_per_s=report.samples / max(report.seconds, 1e-9),
                rates_per_s={(r.what, r.cache): r.spread.median for r in mine},
                ratios={(r.what, r.cache): times(r, first[r.what, r.cache]) for r in mine},
            )
        )
    return tuple(rows)


def _inodes(report: PackReport) -> int:
    folders = sum(path.is_dir() for path in report.path.rglob("*")) + 1 if report.path.is_dir() else 0
    return report.files + folders


def header(rows: Sequence[Row]) -> list[str]:
    """Names of the columns in two lines; those of cold reads only where they were measured."""
    names = ["format", "files,\nfolders", "size", "packed"]
    for what, cache in _measured(rows):
        names += [f"{_SHORT[what]},\n{cache}", "×\nplain"]  # noqa: RUF001 - the sign is meant
    return names


def cells(row: Row) -> list[str]:
    """One line of the table as text."""
    line = [row.name, f"{row.files:,}", bytes_text(row.file_bytes), f"{row.packed_per_s:,.0f}"]
    for condition in _measured([row]):
        line += [f"{row.rates_per_s[condition]:,.0f}", row.ratios[condition]]
    return line


def as_text(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    return aligned(header(rows), [cells(row) for row in rows])


def _measured(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [condition for condition in CONDITIONS if condition in rows[0].rates_per_s]
