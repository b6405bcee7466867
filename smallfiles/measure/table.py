"""Records as text: tables with the spread of each median, and the recommended setting of loaders.

Of the settings that are not clearly slower than the fastest (quartiles overlap), the one with the fewest
workers is recommended: each worker uses a CPU and memory that training could use, and the fastest of a dozen
medians is partly luck. With equal numbers, threads come before processes, and a ring last: fewer parts can
fail.

The traps: a ratio of two medians does not show whether it is significant. So a ratio whose quartiles include
1 is shown as "≈ 1". A recommendation is valid for the CPUs it was measured on. And the stages of a batch are
seconds of one worker: divide them by the number of workers before comparing them with a training step.
Notebook 01 reads such a table, and notebook 08 one of loaders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from smallfiles.measure import BUSY, MODES
from smallfiles.measure.counting import COUNTED_BY, KINDS, PER_1000
from smallfiles.measure.record import Failed, Record, ratio
from smallfiles.progress import bytes_text

STAGES = "where a batch's time goes"
_STAGES = ("read", "decode", "augment", "collate", "transfer", "device")
_ASKED = ("lookups", "opens", "metadata", "reads")
_FEWEST_PARTS = ("threads", "processes", "ring")
_HEADER = ("name", "samples/s", "quartiles", "bytes/s", "× {}")  # noqa: RUF001 - the multiplication sign is meant


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as text, with the first column aligned to the left and all others to the right.

    Args:
        header: Names of the columns; a line break makes the header two lines high.
        rows: The cells, each with one line.
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


def rendered(records: Sequence[Record], failed: Sequence[Failed] = ()) -> str:
    """Return all records of one measurement as text.

    Args:
        records: Those of one condition together.
        failed: The failed candidates: a line each, in the table of their condition.
    """
    conditions = [(each.what, each.cache) for each in records] + [(each.what, each.cache) for each in failed]
    parts = []
    for what, cache in dict.fromkeys(conditions):
        group = [each for each in records if (each.what, each.cache) == (what, cache)]
        lost = [each for each in failed if (each.what, each.cache) == (what, cache)]
        title, lines = f"{what}, {cache} cache", [f"{each.name}  failed: {each.why}" for each in lost]
        if what == STAGES and group:
            parts.append(_breakdown(group))
        elif group:
            title += f", {group[0].filesystem}, {group[0].repeats} rounds"
            lines = [_table(group, group[0]), *lines]
        parts += ["\n".join([title, *lines])] * bool(lines)
        if group and "wait_p50_s" in group[0].extra:
            parts.append(_waits(group))
    return "\n\n".join([*parts, *(found.sentence for found in advice(records))])


def reference_of(records: Sequence[Record], name: str | None) -> Record:
    """Return the record with this name or format, or the first record, as the reference."""
    return next((record for record in records if name in (record.name, record.format)), records[0])


def _table(records: Sequence[Record], reference: Record) -> str:
    header = [column.format(reference.name) for column in _HEADER]
    more = [_more(record) for record in records]
    titles = list(dict.fromkeys(title for cells in more for title in cells))
    rows = [
        [*_row(record, reference), *map(cells.get, titles, repeat(""))]
        for record, cells in zip(records, more, strict=True)
    ]
    about = records[0].extra.get(COUNTED_BY)
    return aligned([*header, *titles], rows) + f"\nper 1,000 samples: {about}" * bool(about)


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
    """Format the ratio of two records: `≈ 1` if its quartiles include 1, or if their rates overlap."""
    if record is reference:
        return "1"
    found = ratio(record, reference)
    if found.lower <= 1 <= found.upper or record.spread.overlaps(reference.spread):
        return "≈ 1"
    return f"{found.median:.2f}" if found.median < 10 else f"{found.median:.0f}"


def _more(record: Record) -> dict[str, str]:
    """Return the columns that only some topics have."""
    cells, extra = dict[str, str](), record.extra
    if "cpu_s" in extra:  # over all threads; per sample, so that it does not depend on their number
        cells["processor"] = f"{1e6 * extra['cpu_s'] / max(record.samples, 1):,.0f} µs/sample"
    for name in ("peak_above_interpreter_bytes", "memory_bytes"):
        if name in extra:
            cells["peak memory"] = bytes_text(extra[name])
    asked = {kind: extra[f"{kind}{PER_1000}"] for kind in _ASKED if f"{kind}{PER_1000}" in extra}
    return cells | {f"{KINDS[kind]}\nper 1,000": f"{count:,.0f}" for kind, count in asked.items()}


@dataclass(frozen=True)
class Advice:
    """The setting to train with.

    Args:
        what: The operation, such as `epoch of JPEG`.
        record: The record of the setting.
        level: Number of other settings that are not clearly slower than the fastest, which is included.
        settings: Number of measured settings.
        most: Whether no larger number of workers was measured.
    """

    what: str
    record: Record
    level: int
    settings: int
    most: bool

    @property
    def mode(self) -> str:
        """The mode: where batches are made."""
        return mode_of(self.record)

    @property
    def headline(self) -> str:
        """The setting and its rate, for a title."""
        count = f"{self.record.workers} worker{'s' * (self.record.workers > 1)}"
        rate = f"{self.record.spread.median:,.0f} samples/s"
        return f"{self.what[:1].upper()}{self.what[1:]}: {self.record.name} with {count}, {rate}"

    @property
    def sentence(self) -> str:
        """The command, and how clear the recommendation is."""
        number, name = self.record.workers, self.record.name.removesuffix(f", {self.mode}")
        flags = f"train --workers {number} --mode {self.mode}"
        if self.mode == "ring":
            flags = f"ring fill --producers {number}, and train --ring"
        found = f"recommended for {name} ({self.what}): {flags}: {self.record.spread.median:,.0f} samples/s"
        return found + self._others + ("; more workers were not measured" if self.most else "")

    @property
    def _others(self) -> str:
        others = self.settings - 1
        if self.level:
            are = "is" if self.level == 1 else "are"
            return f"; {self.level} of the {others} other settings {are} not clearly slower"
        return f"; {'the other setting is' if others == 1 else f'all {others} others are'} clearly slower"


def advice(records: Sequence[Record]) -> tuple[Advice, ...]:
    """Recommend a setting for each kind of pictures for which several settings were measured.

    Args:
        records: Records of one run of `bench load`.
    """
    kinds: dict[str, list[Record]] = {}
    for record in records:
        if mode_of(record):
            kinds.setdefault(kind_of(record), []).append(record)
    return tuple(_advice(kind, group) for kind, group in kinds.items() if len(group) > 1)


def mode_of(record: Record) -> str:
    """Return the mode of a loader of ours. It is empty for other loaders and for stages."""
    mode = record.name.rpartition(", ")[2]
    return mode if mode in MODES else ""


def kind_of(record: Record) -> str:
    """Return the operation of a record without the number of workers."""
    return record.what.rpartition(", ")[0]


def _advice(what: str, group: Sequence[Record]) -> Advice:
    fastest = max(group, key=lambda record: record.spread.median)
    equal = [record for record in group if record.spread.overlaps(fastest.spread)]
    chosen = min(
        equal,
        key=lambda record: (
            record.workers,
            _FEWEST_PARTS.index(mode_of(record)),
            -record.spread.median,
        ),
    )
    most = chosen.workers == max(record.workers for record in group)
    return Advice(what, chosen, len(equal) - 1, len(group), most)


def _waits(records: Sequence[Record]) -> str:
    rows = [
        [record.name, *(_ms(record.extra[key]) for key in ("first_batch_s", "wait_p50_s", "wait_p99_s"))]
        for record in records
    ]
    header = ["ms", "first batch\nof a new loader", "wait for a batch\nmedian", "99 of 100\nbelow"]
    if any("utilisation" in record.extra for record in records):
        header += ["one accelerator\ncomputes", f"fed for {BUSY:.0%}\nof the time"]
        for row, record in zip(rows, records, strict=True):
            row += [f"{record.extra['utilisation']:.1%}", f"{record.extra['accelerators']:g}"]
    return aligned(header, rows)


def _breakdown(records: Sequence[Record]) -> str:
    used = [name for name in _STAGES if any(record.extra[f"{name}_s"] for record in records)]
    rows = [[record.name, *(_ms(record.extra[f"{name}_s"]) for name in used)] for record in records]
    return f"{STAGES}, batches of {records[0].batch}\n{aligned(('ms per batch', *used), rows)}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"
