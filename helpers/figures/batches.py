"""The figure of notebook 03: random reads a second against rows a batch, in three ways.

The package's reader has a panel of its own, since beside it the other two could not be told apart.

The trap: on a logarithmic axis of rates a factor of a hundred looks like a small step down; so rates
start at zero in both panels, and each panel tells its own scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.experiments.nb03.batches import WAYS, Batches, Point
from smallfiles.measure.drawing.canvas import COLOURS, empty_figure, styled, wrapped
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = dict(zip(WAYS, ("s", "o", "^"), strict=True))
_HUES = dict(zip(WAYS, (COLOURS[5], COLOURS[0], COLOURS[2]), strict=True))


def draw(found: Batches) -> Figure:
    """Left both ways of opening in pyarrow, right the package's reader."""
    with styled():
        figure = empty_figure(3.9)
        figure.suptitle(wrapped(found.finding), x=0.01, ha="left", fontsize=11, fontweight="bold")
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.5, 1]})
        _panel(left, [found.of(way) for way in WAYS[:2]], "pyarrow: get_batch, then one cell")
        _panel(right, [found.of(WAYS[2])], "smallfiles.formats: one image")
        left.set_ylabel("images per second, at random", fontsize=9)
        figure.supxlabel(
            f"rows a record batch (line: median, dots: {len(found.points[0].rates_per_s)} runs; warm cache, "
            f"{found.filesystem}, images of {bytes_text(found.image_bytes)})",
            fontsize=9,
        )
    return figure


def _panel(axes: Axes, lines: list[list[Point]], title: str) -> None:
    for line in lines:
        _line(axes, line)
    rows = [point.rows for point in lines[0]]
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(count) for count in rows])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 1.35 * max(rate for line in lines for point in line for rate in point.rates_per_s))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(labelsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: Axes, points: list[Point]) -> None:
    way = points[0].way
    medians = [point.spread.median for point in points]
    axes.plot([point.rows for point in points], medians, color=_HUES[way], lw=1.8)
    for number, point in enumerate(points):
        axes.plot(
            [point.rows] * len(point.rates_per_s),
            point.rates_per_s,
            _MARKS[way],
            ms=3.5,
            mfc="white",
            mec=_HUES[way],
            ls="",
            label=None if number else f"{way}: {medians[0]:,.0f} → {medians[-1]:,.0f}",
        )
