"""The price of small files, drawn: space by block size, times of operations, rate by size and in flight.

Sizes and times that span powers of ten have logarithmic axes and say so; rates in flight start at
zero. The trap: four curves in four colours are one curve for some readers, so line style and marker
say the same a second time. Notebook 01 draws all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from helpers.experiments.nb01 import InFlight, Ladder, Operations, TreeCount
from helpers.experiments.nb01.ladder import size_text
from helpers.experiments.nb01.operations import micro_text
from smallfiles.measure.drawing.canvas import COLOURS, INK, empty_figure, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCKS_BYTES = tuple(512 << shift for shift in range(16))  # 512 bytes to 16 MiB
SHOWN_BLOCK_BYTES = 1 << 20
_MARKERS = ("o", "s", "^", "D")
_HISTOGRAM_BINS = np.logspace(-7, -1, 61)  # seconds


def space_finding(trees: Mapping[str, TreeCount]) -> str:
    """What large blocks would cost these trees, for the title."""
    first, *others = [
        (name, f"{tree.taken_share(SHOWN_BLOCK_BYTES):,.1f} times") for name, tree in trees.items()
    ]
    told = [f"{first[0]} would take {first[1]} its bytes", *(f"{name} {times}" for name, times in others)]
    return f"In blocks of {_binary_text(SHOWN_BLOCK_BYTES)} {', '.join(told)}"


def space_alt_text(trees: Mapping[str, TreeCount]) -> str:
    """The figure of space in words."""
    told = [
        f"{name}: {', '.join(f'{_binary_text(b)} {tree.taken_share(b):.2f}' for b in BLOCKS_BYTES[::3])}"
        for name, tree in trees.items()
    ]
    return (
        f"Line chart, both axes logarithmic. {space_finding(trees)}. Bytes taken for each byte stored, "
        f"by block size. {'; '.join(told)}."
    )


def space(trees: Mapping[str, TreeCount]) -> Figure:
    """Space taken for each byte stored against block size; a large marker is what is measured here."""
    with styled():
        figure = _titled(3.3, space_finding(trees))
        axes = figure.subplots()
        for (name, tree), colour, marker in zip(trees.items(), COLOURS, _MARKERS, strict=False):
            taken = [tree.taken_share(block) for block in BLOCKS_BYTES]
            axes.plot(BLOCKS_BYTES, taken, "-", color=colour, marker=marker, ms=3.5, label=name)
            axes.plot(tree.block_bytes, tree.allocated_share, marker, mfc="none", mec=colour, ms=11, mew=2)
        axes.plot([], [], "o", mfc="none", mec=INK, ms=11, mew=2, ls="", label="measured on this file system")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: _binary_text(int(value)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_xlabel("size of a block (computed from the sizes of the files)", fontsize=9)
        axes.set_ylabel("bytes taken for each\nbyte stored", fontsize=9)
        _finish(axes)
    return figure


def latencies(operations: Operations) -> Figure:
    """A histogram of single times for each operation, all on one logarithmic axis of time."""
    rows = operations.rows()
    with styled():
        figure = _titled(0.75 * len(rows) + 1.0, operations.finding)
        panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, times), colour in zip(panels, rows, COLOURS, strict=False):
            weights = np.full(len(times), 100 / len(times))
            axes.hist(times, bins=_HISTOGRAM_BINS, weights=weights, color=colour)
            median = float(np.median(times))
            axes.axvline(median, color=INK, lw=1)
            text = f"median {micro_text(median)}, 1 % above {micro_text(np.percentile(times, 99))}"
            axes.text(0.99, 0.75, text, transform=axes.transAxes, ha="right", fontsize=9)
            axes.set_ylabel(name, rotation=0, ha="right", va="center")
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(axis="y", labelsize=8)
        panels[-1].set_xscale("log")
        panels[-1].set_xlim(2e-7, 5e-2)
        panels[-1].xaxis.set_major_formatter(lambda value, _: micro_text(value).replace(".0 ", " "))
        panels[-1].set_xlabel("time of one operation (height: percent of the operations)", fontsize=9)
    return figure


def throughput_by_size(ladder: Ladder) -> Figure:
    """Throughput against file size, both axes logarithmic: many files and one, warm and cold."""
    with styled():
        figure = _titled(3.9, ladder.finding)
        axes = figure.subplots()
        for layout, colour, marker in (("one file", COLOURS[1], "s"), ("many files", COLOURS[0], "o")):
            for cache in ladder.caches:
                line = ladder.line(layout, cache)
                sizes = [rung.size_bytes for rung in line]
                style = "-" if cache == "warm" else "--"
                fill = colour if cache == "warm" else "white"
                medians = [rung.spread.median for rung in line]
                axes.plot(
                    sizes, medians, style, color=colour, marker=marker, mfc=fill, label=f"{layout}, {cache}"
                )
                _dots(axes, sizes, [rung.bytes_per_s for rung in line], colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: size_text(value))
        axes.yaxis.set_major_formatter(lambda value, _: f"{size_text(value)}/s")
        axes.set_xlabel(f"size of a file, or of a piece ({ladder.filesystem}, one process)", fontsize=9)
        axes.set_ylabel("bytes read per second\n(line: median, dots: runs)", fontsize=9)
        _finish(axes)
    return figure


def in_flight(*measured: InFlight) -> Figure:
    """Files per second against opens in flight, a panel for each store."""
    with styled():
        figure = _titled(3.1, in_flight_finding(*measured))
        panels = figure.subplots(1, len(measured), squeeze=False)[0]
        for axes, one, colour in zip(panels, measured, COLOURS, strict=False):
            counts = list(one.rates_per_s)
            axes.plot(counts, [one.spread(k).median for k in counts], "-o", color=colour, ms=4)
            _dots(axes, counts, list(one.rates_per_s.values()), colour)
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(k) for k in counts])
            axes.set_ylim(0, 1.08 * max(max(rates) for rates in one.rates_per_s.values()))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_title(one.name, loc="left", fontsize=10)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("files per second\n(line: median, dots: runs)", fontsize=9)
        figure.supxlabel("opens in flight (each panel has its own scale)", fontsize=9)
    return figure


def in_flight_finding(*measured: InFlight) -> str:
    """What the panels say together."""
    told = "; ".join(one.finding for one in measured)
    return f"{told[:1].upper()}{told[1:]}"


def in_flight_alt_text(*measured: InFlight) -> str:
    """The figure of opens in flight in words."""
    return f"Line charts, one for each store. {' '.join(one.alt_text for one in measured)}"


def _titled(height_in: float, title: str) -> Figure:
    lines = wrapped(title)
    figure = empty_figure(height_in + 0.2 * lines.count("\n"))
    figure.suptitle(lines, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _dots(axes: Axes, places: Sequence[float], runs: Sequence[Sequence[float]], colour: str) -> None:
    for place, values in zip(places, runs, strict=True):
        axes.plot([place] * len(values), values, "o", ms=2.2, color=colour, alpha=0.5, ls="")


def _finish(axes: Axes) -> None:
    axes.grid(which="major", color="#DDDDDD", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def _binary_text(count: int) -> str:
    """A power of two as people say it: `4 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"
