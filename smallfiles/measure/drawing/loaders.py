"""A figure of loaders: samples per second against the number of workers, a line for each loader.

The trap: a line through medians hides that runs differ; so each run is a dot. Notebook 08 teaches to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smallfiles.errors import UsageError
from smallfiles.measure.drawing.canvas import COLOURS, INK, REFERENCE_COLOUR, empty_figure, styled, wrapped
from smallfiles.measure.loading.advice import advice, kind_of
from smallfiles.measure.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^", "D", "v", "P")


def tuning(records: Sequence[Record]) -> Figure:
    """One panel for each kind of pictures, with what is recommended as its title.

    Args:
        records: Epochs of one run of `bench load`.

    Raises:
        UsageError: There are none.
    """
    kinds = {
        kind_of(record): [each for each in records if kind_of(each) == kind_of(record)] for record in records
    }
    if not kinds:
        raise UsageError("there is nothing to draw", expected="one record or more", next_step="Measure first")
    titles = {found.what: found.headline for found in advice(records)}
    with styled():
        figure = empty_figure(3.4 * len(kinds))
        panels = figure.subfigures(len(kinds), 1, squeeze=False)[:, 0]
        for (kind, group), panel in zip(kinds.items(), panels, strict=True):
            title = titles.get(kind, f"{kind[:1].upper()}{kind[1:]}")
            panel.suptitle(wrapped(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
            _draw(panel.subplots(), group)
    return figure


def alt_text(records: Sequence[Record]) -> str:
    """What the figure shows, for those who cannot see it."""
    values = (
        f"{record.name} with {record.workers} workers {record.spread.median:,.0f}" for record in records
    )
    found = " ".join(f"{each.sentence[:1].upper()}{each.sentence[1:]}." for each in advice(records))
    return f"Line chart. {found} Median samples per second: {', '.join(values)}."


def _draw(axes: Axes, group: Sequence[Record]) -> None:
    cpus = group[0].machine.get("cpus_usable")
    if cpus:
        axes.axvline(cpus, color=REFERENCE_COLOUR, ls="--", lw=1.2, zorder=0, label="usable CPUs")
    for number, name in enumerate(dict.fromkeys(record.name for record in group)):
        line = sorted((each for each in group if each.name == name), key=lambda each: each.workers)
        colour = COLOURS[number % len(COLOURS)]
        for record in line:
            axes.plot(
                [record.workers] * record.repeats, record.rates_per_s, ".", ms=5, color=colour, alpha=0.5
            )
        axes.plot(
            [record.workers for record in line],
            [record.spread.median for record in line],
            marker=_MARKERS[number % len(_MARKERS)],
            lw=1.6,
            color=colour,
            label=name,
        )
    axes.set_xticks(sorted({record.workers for record in group}))
    axes.set_ylim(0, 1.1 * max(record.spread.maximum for record in group))
    axes.set_xlabel(
        f"workers (line: median, dots: {group[0].repeats} epochs; batches of {group[0].batch})", fontsize=9
    )
    axes.set_ylabel("samples per second", fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
