"""Figures of bench records: bars for medians, a dot for each run, a title that states the finding.

A figure that compares what was measured under different conditions is worse than none, so records
are refused unless their conditions agree. Titles and alt texts are computed from the records; where
spreads overlap, the title says that there is no clear difference.

The trap: an axis that does not start at zero turns 5 % into a victory. Notebook 01 draws the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from smallfiles.errors import UsageError
from smallfiles.measure.drawing.canvas import (
    COLOURS,
    INK,
    REFERENCE_COLOUR,
    empty_figure,
    number_text,
    styled,
    wrapped,
)
from smallfiles.measure.record import Record, Spread, ratio
from smallfiles.measure.table import reference_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def throughput(*groups: Sequence[Record], reference: str | None = None) -> Figure:
    """Draw one panel for each group of records: median bars, a dot for each run.

    Args:
        groups: Records of one run; the records of a group share all conditions.
        reference: Name of the record to compare with; None takes the first of each group.

    Returns:
        A figure without any window; `save` writes it.

    Raises:
        UsageError: A group is empty, or its records were measured under different conditions.
    """
    for group in groups:
        check_comparable(group)
    with styled():
        titles = [wrapped(finding(group, reference)) for group in groups]
        heights = [
            0.42 * len(group) + 0.85 + 0.2 * title.count("\n")
            for group, title in zip(groups, titles, strict=True)
        ]
        figure = empty_figure(sum(heights))
        panels = figure.subfigures(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
        colours = _colours(groups, reference)
        for group, title, panel in zip(groups, titles, panels, strict=True):
            panel.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
            axes = panel.subplots()
            runs = {each.name: each.rates_per_s for each in group}
            median_bars(axes, runs, [colours[name] for name in runs])
            axes.set_xlabel(_axis_label(reference_of(group, reference)))
    return figure


def check_comparable(records: Sequence[Record]) -> None:
    """Refuse to compare what was measured under different conditions.

    Raises:
        UsageError: Names the conditions that differ.
    """
    if not records:
        raise UsageError("there is nothing to draw", expected="one record or more", next_step="Measure first")
    first = records[0].conditions()
    differing = {
        name for record in records for name, value in record.conditions().items() if value != first[name]
    }
    if differing:
        raise UsageError(
            f"these records differ in {', '.join(sorted(differing))}",
            expected="records of one run under equal conditions",
            next_step="Draw them in separate panels, or measure them in one run",
        )


def finding(records: Sequence[Record], reference: str | None = None) -> str:
    """The sentence that the records support, for a title.

    The best is named together with those whose quartiles overlap its own; where they overlap the
    reference's, no difference is claimed.
    """
    check_comparable(records)
    base = reference_of(records, reference)
    others = [record for record in records if record is not base]
    head = _headline(base)
    if not others:
        return f"{head}: {base.name} reaches {base.spread.median:,.0f} samples/s"
    best = max(others, key=lambda record: record.spread.median)
    if best.spread.overlaps(base.spread):
        return f"{head}: no clear difference between {best.name} and {base.name}"
    if best.spread.median < base.spread.median:
        return f"{head}: nothing is faster than {base.name}"
    leaders = [record for record in others if record.spread.overlaps(best.spread)]
    factors = sorted(ratio(record, base).median for record in leaders)
    return f"{head}: {_and([r.name for r in leaders])} {_factor_text(factors)} as fast as {base.name}"


def alt_text(*groups: Sequence[Record], reference: str | None = None) -> str:
    """What the figure shows, for those who cannot see it."""
    sentences = []
    for group in groups:
        values = ", ".join(f"{record.name} {record.spread.median:,.0f}" for record in group)
        sentences.append(f"{finding(group, reference)}. Median samples per second: {values}.")
    return "Bar chart. " + " ".join(sentences)


def _colours(groups: Sequence[Sequence[Record]], reference: str | None) -> dict[str, str]:
    """One colour for each name through all panels."""
    references = {reference_of(group, reference).name for group in groups}
    names = dict.fromkeys(record.name for group in groups for record in group)
    others = [name for name in names if name not in references]
    chosen = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(others)}
    return {**chosen, **dict.fromkeys(references, REFERENCE_COLOUR)}


def median_bars(
    axes: Axes,
    runs: Mapping[str, Sequence[float]],
    colours: Sequence[str],
    text: Callable[[float], str] = number_text,
) -> None:
    """A bar for each name with the median's number at its end, and its runs as dots below it.

    Args:
        axes: From zero to the slowest run after this.
        runs: Of each name, from top to bottom.
        colours: Of the bars.
        text: How a number is written.
    """
    rows = range(len(runs))
    medians = [Spread.of(values).median for values in runs.values()]
    axes.barh([row - 0.08 for row in rows], medians, height=0.5, color=colours)
    for row, values, middle in zip(rows, runs.values(), medians, strict=True):
        if len(values) > 1:
            axes.plot([min(values), max(values)], [row + 0.3] * 2, color=REFERENCE_COLOUR, lw=0.8)
            axes.plot(values, [row + 0.3] * len(values), "o", ms=3.4, mfc="white", mec=INK, mew=0.7, ls="")
        axes.annotate(
            text(middle),
            (middle, row - 0.08),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
            zorder=5,
            bbox={"facecolor": "white", "alpha": 0.8, "pad": 0.5, "edgecolor": "none"},
        )
    axes.set_yticks([row - 0.08 for row in rows], list(runs))
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.set_xlim(0, max(max(max(values) for values in runs.values()), 1.14 * max(medians)) * 1.02 or 1)
    axes.xaxis.set_major_formatter(lambda value, _: text(value))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _axis_label(record: Record) -> str:
    return (
        f"samples per second (bar: median, dots: {record.repeats} runs; {record.filesystem}, "
        f"{record.workers} process{'es' if record.workers > 1 else ''})"
    )


def _headline(record: Record) -> str:
    what = record.what[:1].upper() + record.what[1:]
    return f"{what}, {record.cache} cache" if record.what.endswith("reads") else what


def _factor_text(factors: Sequence[float]) -> str:
    low, high = _rounded(factors[0]), _rounded(factors[-1])
    if len(factors) == 1 or low == high:
        return f"{'is' if len(factors) == 1 else 'are'} {high} times"
    return f"are {low} to {high} times"


def _rounded(factor: float) -> str:
    return f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
