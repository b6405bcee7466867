"""The report of a training in words, and as a figure: a timeline, and bars for where time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from smallfiles.profile.numbers import KINDS, Numbers
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PERCENT = (
    "waiting",
    "waiting_first",
    "waiting_later",
    "waiting_most",
    "waiting_least",
    "startup",
    "copying",
    "making",
    "queued",
    "small",
    "shm_use",
)


def text_of(name: str, value: Any) -> str:
    """A number as it is written in a report."""
    if value is None or isinstance(value, str):
        return value or "unknown"
    if name in _PERCENT or name.startswith("in_"):
        return f"{value:.0%}"
    if "bytes" in name:
        return bytes_text(value) + "/s" * name.endswith("bytes_s")
    if name in ("samples_s", "opens_s"):
        return f"{value:,.0f} per second"
    if name.endswith("_s"):
        return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def lines(record: dict[str, Any]) -> Iterator[str]:
    """The report.

    Args:
        record: What `smallfiles.profile` wrote.
    """
    for n in record["ranks"][:8]:
        yield from _of_rank(n)
    verdict = record["verdict"]
    yield f"verdict: {verdict['name']}"
    facts = (f"{name.replace('_', ' ')} {text_of(name, value)}" for name, value in verdict["because"].items())
    yield f"  because   {', '.join(facts)}"
    if verdict["missing"]:
        yield f"  missing   {', '.join(verdict['missing'])}"
    yield f"  next      {verdict['next']}"
    if record["forecast"]:
        yield f"  forecast  {record['forecast']}"


def _of_rank(n: Numbers) -> Iterator[str]:
    def say(name: str) -> str:
        return text_of(name, n[name])

    yield (
        f"rank {n['rank'] or 0}: {n['steps']:,} steps of {say('batch_samples')} samples in "
        f"{n['seconds']:.1f} s, {say('samples_s')}; first batch after {say('first_batch_s')}"
    )
    yield (
        f"  waiting   {say('waiting')} of the time; {say('wait_p50_s')} per step at the median, "
        f"{say('wait_p99_s')} at the 99th percentile"
    )
    if n["headroom"]:
        yield f"  headroom  {n['headroom']:.2f} times as fast if data cost nothing ({n['headroom_by']})"
    else:
        yield f"  headroom  not measured: {n['headroom_by']}"
    yield (
        f"  files     {say('opens_s')} opened by Python, {say('files')} different, {say('file_bytes')} each, "
        f"{say('small')} below 1 MB; {say('filesystem')}, {say('folder')}"
    )
    yield (
        f"  reading   {say('asked_bytes')} asked for, {say('device_bytes')} from the device, "
        f"{say('read_bytes')} per read"
    )
    parts = ", ".join(f"{kind} {n[f'in_{kind}']:.0%}" for kind in KINDS if n[f"in_{kind}"])
    yield (
        f"  batches   {say('batch_s')} to make one; {say('making')} of the time of {say('workers')} workers: "
        f"{parts or 'unknown'}"
    )
    yield (
        f"  CPUs      {say('cpus')} bound of {say('cpus_node')}, {say('cpus_used')} used, "
        f"{say('cpus_wanted')} wanted; {say('threads_busy')} threads busy per worker; "
        f"start of workers {say('startup_s')} per epoch"
    )
    yield (
        f"  memory    workers {say('workers_bytes')} of {say('limit_bytes')}; "
        f"{say('waiting_bytes')} wait in /dev/shm of {say('shm_bytes')}"
    )


def forecast(n: Numbers, step_s: Sequence[float] | None, now_s: float | None) -> str | None:
    """The forecast of an epoch in words."""
    if not step_s or not now_s:
        return None
    steps = n["epoch_steps"] or 1000
    low, high, now = (_duration(each * steps) for each in (*step_s, now_s))
    what = "an epoch" if n["epoch_steps"] else "1,000 steps"
    return f"{what} would take {low} to {high} instead of {now}"


def _duration(seconds: float) -> str:
    return (
        f"{seconds / 60:.0f} min"
        if seconds >= 600
        else f"{seconds:.0f} s"
        if seconds >= 20
        else f"{seconds:.1f} s"
    )


def draw(record: dict[str, Any]) -> tuple[Figure, str]:
    """A timeline of waiting and computing, and bars of what making a batch goes to; and the alt text."""
    from smallfiles.measure import drawing

    ranks = record["ranks"][:8]
    with drawing.styled():
        figure = drawing.empty_figure(2.6 + 0.3 * len(ranks))
        above, below = figure.subplots(2, 1, height_ratios=[1 + 0.5 * len(ranks), 1.6])
        for row, n in enumerate(ranks):
            steps = n["timeline"]
            waits = [(asked, got - asked) for asked, got, *_ in steps]
            works = [(a[1], b[0] - a[1]) for a, b in pairwise(steps) if a[2] == b[2] and a[3] >= b[3] % 2]
            above.broken_barh(
                works, (row - 0.35, 0.7), color=drawing.COLOURS[2], label="computing" if not row else None
            )
            above.broken_barh(
                waits, (row - 0.35, 0.7), color=drawing.COLOURS[5], label="waiting" if not row else None
            )
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
    return figure, f"Timeline of {len(ranks)} ranks, and bars of what workers do. {title}"
