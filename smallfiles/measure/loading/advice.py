"""Records of loaders as tables, and the recommended mode and number of workers.

Of the settings that are not clearly slower than the fastest (quartiles overlap), the one with the fewest
workers is recommended: each worker uses a CPU and memory that training could use, and the fastest of a dozen
medians is partly luck. With equal numbers, threads come before processes, and a ring last: fewer parts can
fail.

The trap: a recommendation is valid for the CPUs it was measured on; measure again for a job with more CPUs.
The stages of a batch are seconds of one worker: divide them by the number of workers before comparing them
with a training step. Notebook 08 teaches it, `slurm/jobs/08_tune_loader.sbatch` ends with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smallfiles.measure.config import MODES
from smallfiles.measure.loading.steps import BUSY
from smallfiles.measure.record import Failed, Record
from smallfiles.measure.table import aligned, summary

STAGES = "where a batch's time goes"
_STAGES = ("read", "decode", "augment", "collate", "transfer", "device")
_FEWEST_PARTS = ("threads", "processes", "ring")


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
    """The recommended setting for each kind of pictures with several measured settings.

    Args:
        records: Records of one run of `bench load`.
    """
    kinds: dict[str, list[Record]] = {}
    for record in records:
        if mode_of(record):
            kinds.setdefault(kind_of(record), []).append(record)
    return tuple(_advice(kind, group) for kind, group in kinds.items() if len(group) > 1)


def mode_of(record: Record) -> str:
    """The mode of one of our loaders; empty for other loaders, and for stages."""
    mode = record.name.rpartition(", ")[2]
    return mode if mode in MODES else ""


def kind_of(record: Record) -> str:
    """The operation without the number of workers."""
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


def tables(records: Sequence[Record], failed: Sequence[Failed] = ()) -> str:
    """All records as text.

    Args:
        records: Records of one run.
        failed: The failed candidates: a line each.
    """
    parts = []
    for what in dict.fromkeys([*(each.what for each in records), *(each.what for each in failed)]):
        group = [record for record in records if record.what == what]
        lost = [each for each in failed if each.what == what]
        if what != STAGES:
            parts += [summary(group, lost)] + [_waits(group)] * bool(group)
        else:
            parts += [_breakdown(group)] * bool(group) + [summary((), lost)] * bool(lost)
    parts += [found.sentence for found in advice(records)]
    return "\n\n".join(parts)


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
