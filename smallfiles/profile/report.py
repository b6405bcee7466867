"""The report of a training in words, and as a figure: a timeline, and bars for where time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from smallfiles.measure.counting import Requests
from smallfiles.profile.numbers import KINDS, Numbers
from smallfiles.progress import bytes_text, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PERCENT = (
    "waiting waiting_first waiting_later waiting_most waiting_least startup copying making queued small"
)
_NAMES = {
    "samples_s": "samples per second",
    "opens_s": "opens per second",
    "asked_bytes_s": "bytes asked for per second",
    "compute_s": "computing per step",
    "startup_s": "start of workers per epoch",
    "startup": "share of starting workers",
    "waiting_bytes": "batches in /dev/shm",
    "shm_bytes": "size of /dev/shm",
    "read_bytes": "bytes per read",
    "batch_bytes": "bytes per batch",
    "making": "workers at work",
    "copying": "share of copying",
    "queued": "queued for a CPU",
    "threads_busy": "busy threads per worker",
    "cpus": "CPUs allowed",
    "cpus_wanted": "CPUs wanted",
    "cpus_node": "CPUs of the node",
    "waiting_first": "waiting in the first epoch",
    "waiting_later": "waiting in later epochs",
    "waiting_most": "longest waiting",
    "waiting_least": "shortest waiting",
    "slowest": "slowest rank",
    **{f"in_{kind}": f"time in {kind}" for kind in KINDS},
}
"""How a number is called in a report, where its name needs words."""


def text_of(name: str, value: Any) -> str:
    """Format a number for the report."""
    if value is None or isinstance(value, str):
        return value or "unknown"
    if name in _PERCENT.split() or name.startswith("in_"):
        return f"{value:.0%}"
    if "bytes" in name:
        return bytes_text(value)
    if name.endswith("_s") and name not in ("samples_s", "opens_s"):
        return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report.

    Args:
        record: The record of `smallfiles profile`.
    """
    for n in record["ranks"][:8]:
        yield from _of_rank(n)
    for each in record.get("requests", ()):
        counted = Requests(**each["counted"]).text_per_1000(each["samples"])
        place = f"requests to {each['storage']}" if each["storage"] else "calls"
        yield f"{place} per 1,000 samples: {counted}"
    verdict = record["verdict"]
    yield f"verdict: {verdict['name']}"
    because = verdict["because"].items()
    facts = (f"{_NAMES.get(name, name.replace('_', ' '))} {text_of(name, value)}" for name, value in because)
    yield from rows(because=", ".join(facts), missing=", ".join(verdict["missing"]), next=verdict["next"])
    yield from rows(forecast=record["forecast"], end=record.get("ended"))


def rows(**texts: str | None) -> Iterator[str]:
    """Yield the rows of a report that have a text."""
    yield from (f"  {name:<9} {text}" for name, text in texts.items() if text)


_ROWS = (
    "rank {rank}: {steps} of {batch_samples} samples in {seconds:.1f} s, {samples_s} per second; "
    "first batch after {first_batch_s}{others}",
    "  waiting   {waiting} of the time; {wait_p50_s} per step at the median, "
    "{wait_p99_s} at the 99th percentile",
    "  headroom  {headroom}",
    "  files     {opens_s} per second opened by Python, {files} different, {file_bytes} each, "
    "{small} below 1 MB; {filesystem}, {folder}",
    "  reading   {asked_bytes} asked for, {device_bytes} from the device, {read_bytes} per read",
    "  batches   {batch_s} to make one; {making} of the time of {workers}: {parts}",
    "  CPUs      {cpus} allowed of {cpus_node}, {cpus_used} used, {cpus_wanted} wanted; "
    "{threads_busy} threads busy per worker; start of workers {startup_s} per epoch",
    "  memory    workers {workers_bytes} of {limit_bytes}; {waiting_bytes} wait in /dev/shm of {shm_bytes}",
)


def _of_rank(n: Numbers) -> Iterator[str]:
    left_out, parts = n.get("other_steps", 0), ((kind, n[f"in_{kind}"]) for kind in KINDS)
    by, times = n["headroom_by"], n["headroom"]
    headroom = f"{times:.2f} times as fast if data cost nothing ({by})" if times else f"not measured: {by}"
    said = {
        "rank": n["rank"] or 0,
        "steps": plural(n["steps"], "step"),
        "others": f"; {plural(left_out, 'step')} of other loaders left out" if left_out else "",
        "headroom": headroom,
        "workers": f"{text_of('workers', n['workers'])} worker{'s' * (n['workers'] != 1)}",
        "parts": ", ".join(f"{kind} {share:.0%}" for kind, share in parts if share) or "unknown",
        "seconds": n["seconds"],
    }
    texts = {name: text_of(name, value) for name, value in n.items() if not isinstance(value, list)} | said
    yield from (row.format_map(texts) for row in _ROWS)


def forecast(n: Numbers, step_s: Sequence[float] | None, now_s: float | None) -> str | None:
    """Return the forecast of an epoch in words."""
    if not step_s or not now_s:
        return None
    steps = n["epoch_steps"] or 1000
    low, high, now = (_duration(each * steps) for each in (*step_s, now_s))
    what = "an epoch" if n["epoch_steps"] else "1,000 steps"
    span = low if low == high else f"{low} to {high}"
    return f"{what} would take {span} instead of {now}"


def _duration(seconds: float) -> str:
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.{int(seconds < 20)}f} s"


def draw(record: dict[str, Any]) -> tuple[Figure, str]:
    """Draw a timeline of waiting and computing, and bars for the stages of a batch, with an alt text."""
    from smallfiles.measure import drawing

    ranks = record["ranks"][:8]
    with drawing.styled():
        figure = drawing.empty_figure(2.6 + 0.3 * len(ranks))
        above, below = figure.subplots(2, 1, height_ratios=[1 + 0.5 * len(ranks), 1.6])
        for row, n in enumerate(ranks):
            steps = n["timeline"]
            waits = [(asked, got - asked) for asked, got, *_ in steps]
            works = [(a[1], b[0] - a[1]) for a, b in pairwise(steps) if a[2] == b[2] and a[3] >= b[3] % 2]
            for parts, low, number, name in ((works, 0.0, 2, "computing"), (waits, -0.35, 5, "waiting")):
                colour, label = drawing.COLOURS[number], name if row == 0 else None
                above.broken_barh(parts, (row + low, 0.35), color=colour, lw=0.3, label=label)
        above.set_yticks(range(len(ranks)), [f"rank {n['rank'] or 0}" for n in ranks])
        above.set_xlabel("seconds; white: paused")
        above.invert_yaxis()
        above.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
        worst = max(ranks, key=lambda n: n["waiting"] or 0)
        shares = {kind: [100 * (worst[f"in_{kind}"] or 0)] for kind in KINDS}
        drawing.median_bars(below, shares, [drawing.COLOURS[n] for n in range(len(KINDS))])
        below.set_xlabel("% of the time in which batches are made")
        title = drawing.wrapped(
            f"{text_of('waiting', worst['waiting'])} waiting for data: {record['verdict']['name']}"
        )
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure, f"Timeline of {plural(len(ranks), 'rank')}, and bars of what workers do. {title}"
