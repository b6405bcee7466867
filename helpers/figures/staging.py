"""Figures of staging: who copied and who waited, and total time against epochs with the crossing.

Lines are medians, bands reach from the fastest to the slowest run, and the crossing is a band too. The
trap: two lines that cross at a point look like a law; with runs that differ, they cross in a range.
Notebook 07 draws both.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from helpers.experiments.nb07.epochs import FILES, PACKED, STAGED, Epochs
from helpers.experiments.nb07.together import Together
from smallfiles.measure.drawing.canvas import COLOURS, INK, empty_figure, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = {FILES: ("-.", COLOURS[3]), PACKED: ("--", COLOURS[1]), STAGED: ("-", COLOURS[0])}
_MOST_EPOCHS = 20
_SHOWN_STEPS = 200


def timeline(result: Together) -> Figure:
    """A bar for each process: who copied, who waited, from the call to the moment it had the copy."""
    with styled():
        figure = _titled(0.42 * len(result.ranks) + 1.1, result.finding)
        axes = figure.subplots()
        for copied, label, hatch, colour in (
            (True, "copies", "", COLOURS[0]),
            (False, "waits for the copy of the other", "//", "white"),
        ):
            chosen = [rank for rank in result.ranks if rank.copied == copied]
            axes.barh(
                [rank.number for rank in chosen],
                [rank.ended_s - rank.began_s for rank in chosen],
                left=[rank.began_s for rank in chosen],
                height=0.6,
                color=colour,
                edgecolor=COLOURS[0],
                hatch=hatch,
                label=label,
            )
        axes.set_yticks([rank.number for rank in result.ranks], [f"rank {r.number}" for r in result.ranks])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.05 * max(rank.ended_s for rank in result.ranks))
        axes.set_xlabel(f"seconds after the first call (one run; storage: {result.storage})", fontsize=9)
        axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def totals(result: Epochs) -> Figure:
    """Total seconds against epochs for three ways of reading, with the crossing marked."""
    crossing = result.crossing()
    last = 4 if crossing is None else min(_MOST_EPOCHS, max(4, math.ceil(2 * crossing.upper)))
    epochs = np.linspace(0, last, _SHOWN_STEPS)
    with styled():
        figure = _titled(3.7, result.finding)
        axes = figure.subplots()
        for name, label in result.lines.items():
            style, colour = _STYLES[name]
            runs = np.array([result.totals(name, epoch) for epoch in epochs])
            axes.plot(epochs, np.median(runs, axis=1), style, color=colour, lw=1.8, label=label)
            axes.fill_between(epochs, runs.min(axis=1), runs.max(axis=1), color=colour, alpha=0.25, lw=0)
        axes.set_xlim(0, last)
        axes.set_ylim(0, 1.15 * max(median(result.totals(name, last)) for name in (PACKED, STAGED)))
        if crossing is not None and crossing.upper < last:
            _mark(axes, result, crossing.lower, crossing.median, crossing.upper)
        axes.set_xlabel(f"epochs read (storage: {result.storage})", fontsize=9)
        axes.set_ylabel("seconds since the start\n(line: median, band: all runs)", fontsize=9)
        axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        axes.grid(color="#DDDDDD", lw=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _mark(axes: Axes, result: Epochs, lower: float, middle: float, upper: float) -> None:
    height = median(result.totals(STAGED, middle))
    axes.axvspan(lower, upper, color=INK, alpha=0.15, lw=0)
    axes.plot(middle, height, "o", ms=9, mfc="none", mec=INK, mew=1.6)
    axes.annotate(
        f"has paid after {middle:.2f} epochs",
        (middle, height),
        xytext=(10, -26),
        textcoords="offset points",
        fontsize=9,
        arrowprops={"arrowstyle": "-", "color": INK},
    )


def _titled(height_in: float, title: str) -> Figure:
    lines = wrapped(title)
    figure = empty_figure(height_in + 0.2 * lines.count("\n"))
    figure.suptitle(lines, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure
