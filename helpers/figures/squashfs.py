"""The figure of notebook 06: what the settings of an image cost a random read.

Left how many files a second, right how many bytes are fetched and unpacked for each that is delivered.

The trap: rates that differ by a factor of a hundred do not fit on one axis that starts at zero. So each
bar has its number beside it, and the short ones can be read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers.experiments.nb06 import Measured
from smallfiles.measure.drawing.canvas import COLOURS, INK, empty_figure, styled, wrapped
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CLEAR = 1.15


def finding(measured: Sequence[Measured]) -> str:
    """What the settings did, for the title.

    Args:
        measured: Settings, the one to be recommended last and the one people use before others.
    """
    best = max(measured, key=lambda one: one.rate().median)
    worst = min(measured, key=lambda one: one.rate().median)
    factor = best.rate().median / worst.rate().median
    if factor < _CLEAR or best.rate().overlaps(worst.rate()):
        return "No setting reads clearly faster than another here"
    most = max(measured, key=lambda one: one.amplification)
    told = f"{best.name}: {factor:,.0f} times as many files a second as {worst.name}"
    if most.amplification >= _CLEAR:
        told += f"; {most.name} fetches {most.amplification:.1f} bytes for each delivered"
    return told


def alt_text(measured: Sequence[Measured]) -> str:
    """The figure in words."""
    told = "; ".join(
        f"{one.name} {one.rate().median:,.0f} files per second, {one.amplification:.1f} bytes fetched "
        "for each delivered"
        for one in measured
    )
    return f"Two bar charts. {finding(measured)}. Medians: {told}."


def settings(measured: Sequence[Measured]) -> Figure:
    """Random reads a second, and bytes fetched for each delivered, by setting and back end."""
    with styled():
        title = wrapped(finding(measured))
        backends = list(measured[0].reads)
        figure = empty_figure(0.24 * len(measured) * (1 + len(backends)) + 1.3 + 0.2 * title.count("\n"))
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [1.6, 1]})
        _rates(left, measured, backends)
        rows = range(len(measured))
        values = [one.amplification for one in measured]
        right.barh(rows, values, height=0.5, color=COLOURS[5], alpha=0.75)
        for row, value in zip(rows, values, strict=True):
            right.text(value, row, f" {value:.1f}", va="center", fontsize=9)
        right.set_xlim(0, 1.25 * max(values))
        right.set_xlabel("bytes fetched and unpacked\nfor each byte delivered", fontsize=9)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=9)
    return figure


def _rates(axes: Axes, measured: Sequence[Measured], backends: Sequence[str]) -> None:
    height = 0.8 / len(backends)
    fastest = max(rate for one in measured for record in one.reads.values() for rate in record.rates_per_s)
    for number, (backend, colour) in enumerate(zip(backends, COLOURS, strict=False)):
        rows = [row + (number - (len(backends) - 1) / 2) * height for row in range(len(measured))]
        medians = [one.rate(backend).median for one in measured]
        axes.barh(rows, medians, height=0.9 * height, color=colour, alpha=0.75, label=backend)
        for row, one, median in zip(rows, measured, medians, strict=True):
            runs = one.reads[backend].rates_per_s
            axes.plot(runs, [row] * len(runs), "o", ms=2.5, color=INK, ls="")
            axes.text(max(runs), row, f"  {median:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(measured)), [one.name for one in measured])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * fastest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    first = measured[0].reads[backends[0]]
    size = first.bytes // max(1, first.samples)
    axes.set_xlabel(
        f"files per second at random (bar: median, dots: runs;\n{first.cache} cache, {first.filesystem}, "
        f"files of {bytes_text(size)})",
        fontsize=9,
    )
    if len(backends) > 1:
        axes.legend(fontsize=8, frameon=False, loc="upper right")
