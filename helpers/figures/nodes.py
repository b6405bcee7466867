"""Figures of notebook 10: who read which sample, and samples per second against ranks.

The trap: four rows of marks look complete even if two of them are equal; so each panel counts, and its title
says what the count was.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from helpers.experiments.nb10.reading import SCRIPT, SRUN, Reading, finding
from helpers.experiments.nb10.scaling import OWN, SHARED, Scaling
from smallfiles.measure.drawing.canvas import COLOURS, REFERENCE_COLOUR, empty_figure, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NODE_COLOURS = (COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3])
_LINES = {SHARED: ("s", "--", COLOURS[1]), OWN: ("o", "-", COLOURS[0])}


def readings(found: tuple[Reading, ...]) -> Figure:
    """A row for each rank, a mark for each sample that it read; one panel a way."""
    rows = len(found[0].shares)
    with styled():
        figure = empty_figure(0.5 + len(found) * (0.55 + 0.22 * rows))
        panels = figure.subplots(len(found), 1, sharex=True)
        for axes, reading in zip(panels, found, strict=True):
            seen_nodes: list[str] = []
            for row, share in enumerate(reading.shares):
                if share.node not in seen_nodes:
                    seen_nodes.append(share.node)
                colour = _NODE_COLOURS[seen_nodes.index(share.node) % len(_NODE_COLOURS)]
                axes.vlines(share.indices, row - 0.4, row + 0.4, color=colour, lw=0.9)
            names = [f"{share.node}, {_believed(reading, row)}" for row, share in enumerate(reading.shares)]
            axes.set_yticks(range(rows), names, fontsize=8)
            axes.set_ylim(rows - 0.5, -0.5)
            axes.set_title(f"{reading.way}: {reading.summary}", fontsize=9, loc="left")
            axes.tick_params(axis="y", length=0)
            axes.spines[["top", "right", "left"]].set_visible(False)
        panels[-1].set_xlim(-1, found[0].samples)
        panels[-1].set_xlabel("number of the sample (a mark: this process read it in this epoch)", fontsize=9)
        figure.suptitle(wrapped(finding(found)), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _believed(reading: Reading, row: int) -> str:
    place = reading.shares[row].place
    number = place.rank if reading.way in (SRUN, SCRIPT) else place.local_rank
    return f"“I am rank {number}”"


def scaling(found: Scaling) -> Figure:
    """Samples per second against ranks, shared storage and copies, with the ideal line."""
    with styled():
        figure = empty_figure(3.3)
        axes = figure.subplots()
        counts = sorted(found.runs[OWN])
        one = median(found.runs[OWN][1])
        axes.plot(counts, [n * one for n in counts], ":", color=REFERENCE_COLOUR, label="ideal")
        for where, (marker, style, colour) in _LINES.items():
            line = found.runs[where]
            for count, runs in line.items():
                axes.plot([count] * len(runs), runs, ".", ms=5, color=colour, alpha=0.5)
            middle = [median(line[count]) for count in counts]
            axes.plot(counts, middle, marker=marker, ls=style, ms=6, lw=1.6, color=colour, label=where)
        axes.set_xticks(counts)
        axes.set_ylim(0, 1.1 * max(max(runs) for line in found.runs.values() for runs in line.values()))
        axes.set_xlabel(
            f"ranks, one a node, {found.each} samples each (line: median, dots: runs; storage: "
            f"{found.storage or 'this disk'})",
            fontsize=9,
        )
        axes.set_ylabel("samples per second, all ranks", fontsize=9)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(color="#DDDDDD", lw=0.6)
        axes.set_axisbelow(True)
        axes.legend(fontsize=9, frameon=False, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(wrapped(found.finding), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure
