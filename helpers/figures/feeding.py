"""Figures of notebook 08: where a batch's time goes, throughput against workers, a ring's level over time.

The trap: a stacked bar hides the spread of its parts; so the whole of each single batch is a dot beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from helpers.experiments.nb08.clock import STAGES
from helpers.experiments.nb08.stages import Following
from helpers.experiments.nb08.stalls import ENOUGH, TOO_SLOW, Run, Stalls
from helpers.experiments.nb08.workers import MODES, Throughput
from smallfiles.images.decoding import Pixels
from smallfiles.measure.drawing.canvas import COLOURS, INK, REFERENCE_COLOUR, empty_figure, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = ("", "///", "", "\\\\\\", "xx")
_MARKERS = ("o", "s")
_NARROW = 0.06


def stages(found: Following) -> Figure:
    """A stacked bar of milliseconds for each way, a dot for each batch."""
    with styled():
        figure = empty_figure(3.2)
        axes = figure.subplots()
        rows = list(range(len(found.ways)))
        left = np.zeros(len(rows))
        longest = max(1e3 * second for way in found.ways for second in way.totals_s)
        for number, stage in enumerate(STAGES):
            widths = np.array([1e3 * way.median_s(stage) for way in found.ways])
            axes.barh(
                rows,
                widths,
                0.55,
                left,
                color=COLOURS[number],
                hatch=_HATCHES[number],
                label=stage,
                edgecolor="white",
                linewidth=0.5,
            )
            for row, start, width in zip(rows, left, widths, strict=True):
                if width > _NARROW * longest:
                    axes.text(
                        start + width / 2,
                        row,
                        f"{width:.0f}",
                        ha="center",
                        va="center",
                        fontsize=8,
                        bbox={"facecolor": "white", "alpha": 0.8, "pad": 1, "edgecolor": "none"},
                    )
            left += widths
        for row, way in zip(rows, found.ways, strict=True):
            totals = [1e3 * second for second in way.totals_s]
            axes.plot(totals, [row + 0.36] * len(totals), "o", ms=2.5, color=INK)
            axes.text(left[row], row, f"  {left[row]:.0f} ms", va="center", fontsize=9, fontweight="bold")
        axes.set_yticks(rows, [way.way for way in found.ways])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * longest)
        axes.set_xlabel(
            f"milliseconds of one worker for a batch of {found.batch} (bar: medians, dots: batches)",
            fontsize=9,
        )
        axes.legend(
            fontsize=8,
            frameon=False,
            ncols=len(STAGES),
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderpad=0,
        )
        _finish(figure, axes, found.finding)
    return figure


def workers(found: Throughput) -> Figure:
    """Images per second against workers, a line for processes and one for threads."""
    with styled():
        figure = empty_figure(3.3)
        axes = figure.subplots()
        axes.axvline(
            found.cpus, color=REFERENCE_COLOUR, ls="--", lw=1.2, zorder=0, label="CPUs of this kernel"
        )
        for number, mode in enumerate(MODES):
            line = found.line(mode)
            colour = COLOURS[number]
            for count, runs in line:
                axes.plot([count] * len(runs), runs, ".", ms=5, color=colour, alpha=0.5)
            axes.plot(
                [count for count, _ in line],
                [median(runs) for _, runs in line],
                marker=_MARKERS[number],
                ms=6 - number,
                lw=1.6,
                color=colour,
                label=mode,
            )
        counts = [count for count, _ in found.line(MODES[0])]
        axes.set_xticks(counts, ["0\n(main)", *map(str, counts[1:])])
        axes.set_ylim(0, 1.1 * max(rate for runs in (found.main, *found.runs.values()) for rate in runs))
        axes.set_xlabel(
            f"workers (line: median, dots: {len(found.main)} epochs; batches of {found.batch})", fontsize=9
        )
        axes.set_ylabel("images per second", fontsize=9)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(fontsize=9, frameon=False, loc="lower right")
        _finish(figure, axes, found.finding)
    return figure


def stalls(found: Stalls) -> Figure:
    """Left the share of waiting by buffer, right the level of the ring over time."""
    with styled():
        figure = empty_figure(3.6)
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.25]})
        rows = np.arange(len(found.buffers))
        for number, supply in enumerate((ENOUGH, TOO_SLOW)):
            shares = [100 * found.share(buffer, supply) for buffer in found.buffers]
            places = rows + (number - 0.5) * 0.38
            left.barh(
                places,
                shares,
                0.34,
                color=COLOURS[number],
                hatch=_HATCHES[number],
                edgecolor="white",
                label=f"supply {supply}",
            )
            for place, share in zip(places, shares, strict=True):
                left.text(share, place, f" {share:.0f} %", va="center", fontsize=9)
        left.set_yticks(
            rows,
            [buffer.replace(" of ", "\nof ").replace(" batches ", " batches\n") for buffer in found.buffers],
            fontsize=9,
        )
        left.invert_yaxis()
        left.set_xlim(0, 1.3 * max(1.0, *(100 * run.waiting_share for run in found.runs)))
        left.set_xlabel("time spent waiting for a batch, %\n(one run each)", fontsize=9)
        for number, supply in enumerate((ENOUGH, TOO_SLOW)):
            _level(right, next(r for r in found.runs if r.levels and r.supply == supply), number)
        right.axhline(found.slots, color=REFERENCE_COLOUR, ls="--", lw=1)
        right.set_ylim(0, 1.55 * found.slots)
        right.set_xlim(0)
        right.set_xlabel("seconds since the first batch", fontsize=9)
        right.set_ylabel(f"batches ready in the ring of {found.slots}", fontsize=9)
        right.legend(fontsize=8, frameon=False, loc="upper right")
        right.spines[["top", "right"]].set_visible(False)
        _finish(figure, left, found.finding)
    return figure


def _level(axes: Axes, run: Run, number: int) -> None:
    seconds, levels = zip(*run.levels, strict=True)
    for at, (start, stop) in enumerate(run.still):
        label = "storage stands still" if not at else None
        axes.axvspan(start, min(stop, seconds[-1]), color=REFERENCE_COLOUR, alpha=0.25, lw=0, label=label)
    axes.step(
        seconds,
        levels,
        where="post",
        lw=1.6,
        color=COLOURS[number],
        ls=("-", "--")[number],
        label=f"supply {run.supply}",
    )


def views(rows: dict[str, Sequence[Pixels]], original: Pixels) -> Figure:
    """A picture and random views of it, one row for each kind."""
    columns = 1 + max(len(found) for found in rows.values())
    with styled():
        figure = empty_figure(1.35 * len(rows))
        panels = figure.subplots(len(rows), columns, squeeze=False)
        for row, (name, found) in zip(panels, rows.items(), strict=True):
            row[0].imshow(original)
            row[0].set_title(name, fontsize=8, loc="left")
            for axes, picture in zip(row[1:], found, strict=False):
                axes.imshow(picture)
        for axes in panels.ravel():
            axes.set_axis_off()
    return figure


def _finish(figure: Figure, axes: Axes, title: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    figure.suptitle(wrapped(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
