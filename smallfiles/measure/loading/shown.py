"""Records of loaders as tables: rates, how long a batch is waited for, where its time goes, what to take.

The trap: the stages of a batch are seconds of one worker, transfer those of a process beside it. Divide
what is made by the number of workers before comparing it with a step of training. Notebook 08 reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from smallfiles.measure.loading.advice import advice
from smallfiles.measure.loading.run import STAGES
from smallfiles.measure.record import Failed, Record
from smallfiles.measure.table import aligned, summary

_STAGES = ("read", "decode", "augment", "collate", "transfer", "device")


def tables(records: Sequence[Record], reference: str | None = None, failed: Sequence[Failed] = ()) -> str:
    """All that was measured, as text.

    Args:
        records: Of one run.
        reference: Ratios are against the record of this name; None takes the first of each table.
        failed: What could not be measured: a line each.
    """
    parts = []
    for what in dict.fromkeys([*(each.what for each in records), *(each.what for each in failed)]):
        group = [record for record in records if record.what == what]
        lost = [each for each in failed if each.what == what]
        if what != STAGES:
            parts += [summary(group, reference, lost)] + [_waits(group)] * bool(group)
        else:
            parts += [_breakdown(group)] * bool(group) + [summary((), None, lost)] * bool(lost)
    parts += [found.sentence for found in advice(records)]
    return "\n\n".join(parts)


def _waits(records: Sequence[Record]) -> str:
    rows = [
        [record.name, *(_ms(record.extra[key]) for key in ("first_batch_s", "wait_p50_s", "wait_p99_s"))]
        for record in records
    ]
    header = ("ms", "first batch\nof a new loader", "wait for a batch\nmedian", "99 of 100\nbelow")
    return aligned(header, rows)


def _breakdown(records: Sequence[Record]) -> str:
    used = [name for name in _STAGES if any(record.extra[f"{name}_s"] for record in records)]
    rows = [[record.name, *(_ms(record.extra[f"{name}_s"]) for name in used)] for record in records]
    return f"{STAGES}, batches of {records[0].batch}\n{aligned(('ms a batch', *used), rows)}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"
