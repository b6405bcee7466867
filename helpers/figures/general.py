"""Figures for cells: lines through runs, stacked bars, levels over time, spans of work.

    lines      numbers against a number, a line for each series, a dot for each run
    stacked    what a whole is made of, a bar for each whole
    levels     a number that changes now and then
    spans      who did what from when to when
    guessed    any of them, with the reader's guess beside the measurement

Each takes plain dicts, so a cell can fill them in its own loop. The trap: a guess that is not kept is
remembered as right. Notebook 08 draws all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from smallfiles.measure.drawing.canvas import COLOURS, INK, REFERENCE_COLOUR, empty_figure, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^", "D")
_STYLES = ("-", "--", "-.", ":")
_HATCHES = ("", "///", "", "\\\\\\", "xx")
_NARROW = 0.06


def lines(
    series: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    title: str,
    x: str,
    y: str,
    ideal: Mapping[float, float] | None = None,
    height_in: float = 3.3,
) -> Figure:
    """A line through the medians of each series, a dot for each run; both axes are linear.

    Args:
        series: By name: for each x the runs.
        title: The finding.
        x: Label with unit.
        y: Label with unit.
        ideal: Another line, in grey.
        height_in: Inches.
    """
    with styled():
        figure, axes = _empty(title, height_in)
        if ideal:
            axes.plot(list(ideal), list(ideal.values()), ":", color=REFERENCE_COLOUR, label="ideal")
        for number, (name, points) in enumerate(series.items()):
            look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)]}
            for at, runs in points.items():
                axes.plot([at] * len(runs), runs, ".", ms=5, alpha=0.5, **look)
            middle = [median(runs) for runs in points.values()]
            mark, style = _MARKERS[number % len(_MARKERS)], _STYLES[number % len(_STYLES)]
            axes.plot(list(points), middle, marker=mark, ls=style, lw=1.6, ms=5, label=name, **look)
        axes.set_ylim(0, 1.1 * max(max(runs) for points in series.values() for runs in points.values()))
        _finish(axes, x, y)
    return figure


def stacked(
    rows: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    x: str,
    runs: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """A bar for each row, made of its parts; the whole is written at its end.

    Args:
        rows: By name: the size of each part, the same parts in all rows.
        title: The finding.
        x: Label with unit.
        runs: The wholes of single runs, as dots.
    """
    parts = list(next(iter(rows.values())))
    ends = dict.fromkeys(rows, 0.0)
    longest = max(
        [sum(row.values()) for row in rows.values()] + [max(each) for each in (runs or {}).values()]
    )
    with styled():
        figure, axes = _empty(title, 0.5 * len(rows) + 1.2)
        for number, part in enumerate(parts):
            look: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "hatch": _HATCHES[number % len(_HATCHES)],
            }
            sizes = [row[part] for row in rows.values()]
            axes.barh(range(len(rows)), sizes, 0.55, list(ends.values()), label=part, ec="white", **look)
            for row, (name, size) in enumerate(zip(rows, sizes, strict=True)):
                if size > _NARROW * longest:
                    _inside(axes, ends[name] + size / 2, row, f"{size:.0f}")
                ends[name] += size
        for row, (name, end) in enumerate(ends.items()):
            axes.text(end, row, f"  {end:.0f}", va="center", fontsize=9, fontweight="bold")
            dots = (runs or {}).get(name, ())
            axes.plot(dots, [row + 0.36] * len(dots), "o", ms=2.5, color=INK)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * longest)
        _finish(axes, x, "", legend_above=len(parts))
    return figure


def levels(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    shaded: Sequence[tuple[float, float]] = (),
    what: str = "",
) -> Figure:
    """Steps: each value holds until the next.

    Args:
        series: By name: pairs of x and the value from there on.
        title: The finding.
        x: Label with unit.
        y: Label with unit.
        shaded: From where to where the background is grey.
        what: What the grey means.
    """
    with styled():
        figure, axes = _empty(title, 2.9)
        for number, (start, stop) in enumerate(shaded):
            axes.axvspan(start, stop, color=REFERENCE_COLOUR, alpha=0.2, lw=0, label="" if number else what)
        for number, (name, pairs) in enumerate(series.items()):
            style, colour = _STYLES[number % len(_STYLES)], COLOURS[number % len(COLOURS)]
            axes.step(*zip(*pairs, strict=True), where="post", lw=1.4, color=colour, ls=style, label=name)
        axes.set_ylim(0, 1.1 * max(value for pairs in series.values() for _, value in pairs) or 1)
        axes.set_xlim(0)
        _finish(axes, x, y, legend_above=len(series) + bool(shaded))
    return figure


def spans(rows: Mapping[str, Sequence[tuple[float, float, str]]], *, title: str, x: str) -> Figure:
    """A row for each actor, a bar for each thing that it did.

    Args:
        rows: By name: start, stop and what was done.
        title: The finding.
        x: Label with unit.
    """
    deeds = list(dict.fromkeys(what for row in rows.values() for _, _, what in row))
    with styled():
        figure, axes = _empty(title, 0.42 * len(rows) + 1.2)
        for number, deed in enumerate(deeds):
            found = [
                (place, start, stop - start)
                for place, row in enumerate(rows.values())
                for start, stop, what in row
                if what == deed
            ]
            places, starts, widths = zip(*found, strict=True)
            look: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "hatch": _HATCHES[number % len(_HATCHES)],
            }
            axes.barh(places, widths, 0.6, starts, label=deed, ec="white", **look)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlim(0)
        _finish(axes, x, "", legend_above=len(deeds))
    return figure


def guessed(figure: Figure, guess: float, *, axis: str = "x") -> Figure:
    """The same figure with a dashed line at the reader's guess.

    Args:
        figure: Any of one panel.
        guess: In the unit of the axis.
        axis: `x` or `y`.
    """
    axes = figure.axes[0]
    (axes.axvline if axis == "x" else axes.axhline)(guess, color=COLOURS[5], ls=(0, (4, 2)), lw=1.4)
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    (axes.set_xlim if axis == "x" else axes.set_ylim)(low, max(high, 1.08 * guess))
    place = (guess, 0.02) if axis == "x" else (0.01, guess)
    blend = axes.get_xaxis_transform() if axis == "x" else axes.get_yaxis_transform()
    axes.text(*place, " your guess", transform=blend, color=COLOURS[5], fontsize=9, va="bottom")
    return figure


def _empty(title: str, height_in: float) -> tuple[Figure, Axes]:
    shown = wrapped(title)
    figure = empty_figure(height_in + 0.2 * shown.count("\n"))
    figure.suptitle(shown, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure, figure.subplots()


def _look(number: int) -> dict[str, Any]:
    """A colour, and a hatch for those who do not see it."""
    return {"color": COLOURS[number % len(COLOURS)], "hatch": _HATCHES[number % len(_HATCHES)]}


def _inside(axes: Axes, x: float, y: float, text: str) -> None:
    box = {"facecolor": "white", "alpha": 0.8, "pad": 1, "edgecolor": "none"}
    axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox=box)


def _finish(axes: Axes, x: str, y: str, legend_above: int = 0) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    for axis in (axes.xaxis, axes.yaxis)[: 1 if not y else 2]:
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    place: dict[str, Any] = {
        "loc": "lower right",
        "bbox_to_anchor": (1.0, 1.0),
        "ncols": legend_above,
        "borderpad": 0,
    }
    axes.legend(fontsize=8, frameon=False, **(place if legend_above else {}))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
