"""Figures of shards: how well a buffer mixes, and how fast shards of one size are read.

Single runs are dots, lines join medians, the ideal is a dashed line. The trap: the size of a buffer and
of a shard grow by factors, so their axes are logarithmic; what was reached starts at zero. Notebook 05.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from helpers.experiments.nb05.mixing import PACKINGS, Mixing
from helpers.experiments.nb05.rates import SLOW_OPEN_S, ShardRates
from smallfiles.measure.drawing.canvas import COLOURS, INK, REFERENCE_COLOUR, empty_figure, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "s")


def mixing(result: Mixing) -> Figure:
    """Two panels over the size of the buffer: classes in a batch, pairs that met again."""
    with styled():
        figure = empty_figure(3.7)
        left, right = figure.subplots(1, 2)
        buffers = [mix.buffer for mix in result.line(PACKINGS[0])]
        for number, packing in enumerate(PACKINGS):
            line = result.line(packing)
            label = f"packed in {packing}" if number == 0 else "shuffled at packing"
            broad = 1.0 if number else 2.0  # it shows where the second line lies upon the first
            _line(left, buffers, [mix.classes for mix in line], number, label, broad)
            _line(right, buffers, [[100 * x for x in mix.met_again] for mix in line], number, label, broad)
        _ideal(left, median(result.ideal.classes))
        _ideal(right, 100 * median(result.ideal.met_again))
        left.set_ylabel(f"different classes in a batch of {result.config.batch}", fontsize=9)
        right.set_ylabel("pairs in a batch that had met before, %", fontsize=9)
        for axes in (left, right):
            _finish(axes, buffers, "shuffle buffer, images (1: none)")
        left.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(0, 0.68))
        _title(figure, result.finding)
    return figure


def rates(result: ShardRates) -> Figure:
    """Images per second over images in a shard, with and without a pause before each open."""
    with styled():
        figure = empty_figure(3.4)
        axes = figure.subplots()
        names = (
            f"as measured here ({result.filesystem})",
            f"with {SLOW_OPEN_S * 1000:g} ms before each open",
        )
        for number, (slow, name) in enumerate(zip((False, True), names, strict=True)):
            line = result.line(slow)
            _line(axes, [r.images for r in line], [r.rates_per_s for r in line], number, name)
        axes.set_ylabel("images per second", fontsize=9)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        repeats = len(result.rates[0].rates_per_s)
        _finish(
            axes,
            [r.images for r in result.line(False)],
            f"images in a shard (line: median, dots: {repeats} runs)",
        )
        axes.legend(fontsize=9, frameon=False, loc="lower right")
        _title(figure, result.finding)
    return figure


def _line(
    axes: Axes,
    xs: Sequence[int],
    runs: Sequence[Sequence[float]],
    number: int,
    label: str,
    broad: float = 1.0,
) -> None:
    colour, marker = COLOURS[number], _MARKERS[number]
    for x, values in zip(xs, runs, strict=True):
        axes.plot([x] * len(values), values, ".", ms=4, color=colour, alpha=0.5)
    medians = [median(values) for values in runs]
    axes.plot(xs, medians, marker=marker, ms=5 * broad, lw=1.6 * broad, color=colour, alpha=0.85, label=label)


def _ideal(axes: Axes, value: float) -> None:
    axes.axhline(value, color=REFERENCE_COLOUR, ls="--", lw=1.2, zorder=0, label="ideal: whole set shuffled")


def _finish(axes: Axes, xs: Sequence[int], label: str) -> None:
    axes.set_xscale("log")
    axes.set_xticks(xs, [f"{x:,}" for x in xs], fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(0, axes.get_ylim()[1] * 1.02)
    axes.set_xlabel(label, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(wrapped(text), x=0.01, ha="left", fontsize=11, fontweight="bold")
