"""Four figures that a cell can call: bars, lines, histogram, timeline.

    figures.bars(measure.compare({"many files": many, "one file": one}), guess=guess)
    figures.lines({"warm": {1: [210, 190], 4: [700, 720]}}, title, x="opens in flight", y="files per second")

Each takes results of `smallfiles.measure`, or plain columns: a number for each name, or single runs, drawn
as their median with a dot for each run. Names without runs, and NaN, are left out. The last line of a figure
names the machine, unless it shows counts or a model.

The trap: Jupyter shows a figure that is the last value of its cell; any other needs `show.figure`.
Notebook 01 draws the first.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from helpers.axes import (
    Guess,
    Points,
    Writer,
    as_dots,
    count_millions,
    draw_guess,
    end_with,
    guessed,
    keep_labels_clear,
    label_line,
    mark,
    range_of,
    row_of,
    scale,
    unit_of,
    write_numbers,
    writer,
)
from helpers.show import Drawing
from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.measure.drawing import (
    COLOURS,
    FAINT,
    GUESS_COLOUR,
    INK,
    REFERENCE_COLOUR,
    check_comparable,
    empty_figure,
    finding,
    median_bars,
    median_line,
    number_text,
    styled,
    wrapped,
)
from smallfiles.measure.protocol import Comparison
from smallfiles.measure.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = float | Sequence[float]

_BINS = 48
_CAPTION_CHARACTERS = 104
_LEGEND_CHARACTERS = 86


@styled()
def bars(
    found: Comparison | Sequence[Record] | Mapping[str, Runs | Mapping[str, Runs]],
    title: str = "",
    *,
    x: str = "",
    note: str = "",
    dots: str = "runs",
    base: str | Collection[str] = "",
    groups: Sequence[str] = (),
    guess: Guess = None,
    guess_of: str = "",
    guess_text: str = "",
    marks: Mapping[str, float] | None = None,
    log: bool = False,
    counted: bool = False,
) -> Drawing:
    """A bar for each name, as long as the median of its runs; the axis starts at zero.

    Args:
        found: From `measure.compare`, records of one measurement, or a column: a number or runs for each
            name. Parts of a whole, each with a name of its own, are stacked; equal wholes have no number.
        title: The finding, in a sentence; required for a column.
        x: What the axis counts. A unit in brackets at its end, such as "time (s)", goes to the numbers.
        note: Under which conditions, such as "warm cache".
        dots: What the dots are, if not runs of the same measurement.
        base: The bar, or bars, that the others are compared with: grey. In comparisons and records the first.
        groups: Words in names; the bars of each have a colour of their own.
        guess: A place on the axis, or the name of a bar. `None` and `...` draw nothing.
        guess_of: Beginning of the names of neighbouring bars that a place is a guess at; all if empty.
        guess_text: How the guess was put, if not as a place on the axis, such as "50%".
        marks: More places on the axis by name; the axis reaches to them.
        log: Whether the axis is logarithmic, which has no zero: a large dot stands for each bar. No stacks.
        counted: Counts or a model's numbers, not measured on this machine, so the caption does not name it.

    Raises:
        UsageError: Nothing to draw, no title, or records of different conditions.
    """
    if isinstance(found, Comparison):
        rows: Mapping[str, Runs | Mapping[str, Runs]] = {name: found.rates_per_s(name) for name in found.runs}
        title, x = title or found.finding, x or f"{found.unit or 'calls'} per second"
        note = note or ("prepared before each run" if found.prepared else "warm: each ran once before")
    elif isinstance(found, Mapping):
        rows = found
    else:
        check_comparable(found)
        rows = {record.name: record.rates_per_s for record in found}
        title, x = title or finding(found), x or "samples per second"
        note = note or f"{found[0].cache} cache, {found[0].filesystem}"
    title = title[:1].upper() + title[1:]
    totals = {name: total for name, value in rows.items() if (total := _total(value))}
    stacked = {name: value for name, value in rows.items() if isinstance(value, Mapping) and name in totals}
    what = "large dot" if log else "bar"
    caption = _caption(_how(what, next(iter(totals.values()), []), dots), note, counted)
    figure = _begin(title, 0.42 * len(rows) + 0.55 + 0.25 * bool(stacked), caption, totals)
    axes = figure.subplots()
    label, unit = unit_of(x)
    text = writer(unit, None if log else max(median(runs) for runs in totals.values()))
    if not isinstance(found, Mapping) and len(totals) > 1:
        base = next(iter(totals))
    if stacked:
        _stack(axes, stacked)
    bases = {base} if isinstance(base, str) else {*base}
    colours = ["none" if stacked else COLOURS[_group(name, groups)] for name in totals]
    colours = [REFERENCE_COLOUR if name in bases else c for name, c in zip(totals, colours, strict=True)]
    median_bars(axes, totals, colours, text)
    if len(stacked) > 1 and len({median(runs) for runs in totals.values()}) == 1:
        for written in list(axes.texts):
            written.remove()
    axes.set_xlabel(label)
    if log:
        as_dots(axes, totals, colours)
        write_numbers(axes.xaxis, text)
    elif all(value.is_integer() for runs in totals.values() for value in runs):
        axes.locator_params(axis="x", integer=True)
    rows_of = [row for row, name in enumerate(totals) if name.startswith(guess_of)] if guess_of else []
    as_guessed = (lambda _: guess_text) if guess_text else text
    draw_guess(axes, guess, as_guessed, list(totals), rows=rows_of)
    for number, (name, place) in enumerate((marks or {}).items()):
        axes.set_xlim(right=max(axes.get_xlim()[1], 1.02 * place))
        mark(axes, name, place, (0.94 if guess is None or guess is ... else 0.85) - 0.08 * number)
    if not (log or unit):
        count_millions(axes)
    values = ", ".join(f"{name} {text(median(runs))}" for name, runs in totals.items())
    kind = "Dot chart" if log else "Bar chart"
    return _finish(figure, f"{kind}. {title}. {label}: {values}{guessed(guess, as_guessed)}.")


@styled()
def lines(
    series: Mapping[str, Mapping[float, Runs]],
    title: str,
    *,
    x: str,
    y: str,
    log: str = "",
    note: str = "",
    guess: Guess = None,
    marks: Mapping[str, float | Sequence[tuple[float, float]]] | None = None,
    ideal: str = "",
    counted: bool = False,
) -> Drawing:
    """A line through the medians of each series, a dot for each run.

    Args:
        series: For each name, the runs (or one number) at each x.
        title: The finding, in a sentence.
        x: What the axis counts. A unit in brackets at its end, such as "size (B)", goes to the numbers.
        y: As `x`.
        log: The logarithmic axes, "x", "y" or "xy"; others of y start at zero.
        note: Under which conditions, such as "warm cache".
        guess: A place on the x axis. `None` and `...` draw nothing.
        marks: More places on the x axis by name, or stretches from where to where, each name in a colour.
        ideal: Name of the series that was computed, not measured: grey, without marks.
        counted: Counts or a model's numbers, not measured on this machine, so the caption does not name it.

    Raises:
        UsageError: Nothing to draw, or no title.
    """
    drawn = {name: runs for name, points in series.items() if (runs := _points(points))}
    caption = _caption(_how("line", next(iter(next(iter(drawn.values()), {}).values()), [])), note, counted)
    figure = _begin(title, 3.2, caption, drawn)
    axes = figure.subplots()
    measured = [name for name in drawn if name != ideal]
    for name, points in drawn.items():
        if name == ideal:
            middle = [median(runs) for runs in points.values()]
            axes.plot(list(points), middle, ls=(0, (4, 3)), lw=1.4, color=REFERENCE_COLOUR, label=name)
        else:
            median_line(axes, name, points, measured.index(name))
    x_text, y_text = scale(axes, drawn, x, y, log)
    draw_guess(axes, guess, x_text)
    below = 0.94 if guess is None or guess is ... else 0.85
    for number, (name, place) in enumerate((marks or {}).items()):
        mark(axes, name, place, below - 0.08 * number, number)
    if "y" in log:
        end_with(axes, max(max(runs) for points in drawn.values() for runs in points.values()))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        _legend(axes)
    values = "; ".join(_ends(name, points, x_text, y_text) for name, points in drawn.items())
    axis = f"{unit_of(y)[0]} by {unit_of(x)[0]}"
    return _finish(figure, f"Line chart. {title}. {axis}: {values}{guessed(guess, x_text)}.")


@styled()
def histogram(
    values: Mapping[str, Sequence[float]],
    title: str,
    *,
    x: str,
    log: bool = False,
    note: str = "",
    marks: Mapping[str, float] | None = None,
    guess: Guess = None,
    guess_of: str = "",
) -> Drawing:
    """How single values spread: a panel for each name on one axis, with the median's number at the median.

    On a logarithmic axis a dot marks the largest value, whose bar may be far away and too low to see.

    Args:
        values: For each name, all of its values.
        title: The finding, in a sentence.
        x: What the axis counts. A unit in brackets at its end, such as "time (s)", goes to the numbers.
        log: Whether the axis is logarithmic.
        note: Under which conditions, such as "warm cache".
        marks: Places on the axis by name; the axis reaches to them.
        guess: A place on the axis, or the name of a panel. `None` and `...` draw nothing.
        guess_of: Name of the panel that a place is a guess at; all if empty.

    Raises:
        UsageError: Nothing to draw, or no title.
    """
    values = {
        name: kept
        for name, single in values.items()
        if (kept := [v for v in _runs(single) if v > 0 or not log])
    }
    caption = _caption(f"height: percent of the values, line: median{', dot: largest' * log}", note)
    figure = _begin(title, 0.95 * len(values) + 0.7, caption, values)
    panels = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    low, high = range_of(values, log)
    text = writer(unit_of(x)[1], None if log else high)
    edges = np.geomspace(low, high, _BINS + 1) if log else np.linspace(low, high, _BINS + 1)
    for axes, (name, single), colour in zip(panels, values.items(), COLOURS * len(values), strict=False):
        heights = np.full(len(single), 100 / len(single))
        axes.hist(np.clip(single, low, high), bins=edges, weights=heights, color=colour)
        middle = median(single)
        axes.axvline(middle, color=INK, lw=1.2)
        axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the number above the bars
        label_line(axes, middle, f"median {text(middle)}", INK, 0.86)
        if log:
            axes.plot(max(single), 0, "o", ms=5, color=colour, clip_on=False, zorder=4)
            label_line(axes, max(single), text(max(single)), FAINT, 0.3)
        axes.set_title(name, fontsize=9, fontweight="normal", pad=3)
    if log:
        panels[-1].set_xscale("log")
    write_numbers(panels[-1].xaxis, text)
    panels[-1].set_xlabel(unit_of(x)[0])
    for number, (name, place) in enumerate((marks or {}).items()):
        left, right = panels[-1].get_xlim()
        panels[-1].set_xlim(min(left, place / 1.1 if log else place), max(right, 1.1 * place))
        mark(panels[0], name, place, 0.86 - 0.12 * number)
    if isinstance(guess, str):
        panels[row_of(guess, list(values))].set_title(
            f"{guess}  ◂ your guess", fontsize=9, fontweight="normal", pad=3, color=GUESS_COLOUR
        )
    else:
        asked = [axes for axes, name in zip(panels, values, strict=True) if guess_of in ("", name)]
        for axes in asked:
            draw_guess(axes, guess, text, words=axes is asked[0])
    medians = ", ".join(f"{name} {text(median(v))}" for name, v in values.items())
    if log:
        largest = ", ".join(f"{name} {text(max(v))}" for name, v in values.items())
        medians += f"; largest: {largest}"
    found = f"Histogram. {title}. Median {unit_of(x)[0]}: {medians}{guessed(guess, text)}."
    return _finish(figure, found)


@styled()
def timeline(
    rows: Mapping[str, Sequence[tuple[float, float, str]]],
    title: str,
    *,
    x: str = "seconds",
    note: str = "",
    guess: Guess = None,
) -> Drawing:
    """The activities of each row over time; equal activities have equal colours.

    Args:
        rows: For each name its spans: begin, end, activity.
        title: The finding, in a sentence.
        x: What the axis counts, with its unit.
        note: Under which conditions, such as "slow storage".
        guess: A place on the axis. `None` and `...` draw nothing.

    Raises:
        UsageError: Nothing to draw, or no title.
    """
    figure = _begin(title, 0.34 * len(rows) + 0.95, _caption("one run", note), rows)
    axes = figure.subplots()
    kinds = list(dict.fromkeys(what for spans in rows.values() for _, _, what in spans))
    for number, kind in enumerate(kinds):
        colour = COLOURS[number % len(COLOURS)]
        for row, spans in enumerate(rows.values()):
            places = [(begin, end - begin) for begin, end, what in spans if what == kind]
            axes.broken_barh(places, (row - 0.32, 0.64), edgecolor="white", linewidth=1, facecolor=colour)
        axes.barh([0], [0], label=kind, color=colour)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.02 * max((end for spans in rows.values() for _, end, _ in spans), default=1))
    axes.set_xlabel(x)
    axes.tick_params(axis="y", length=0)
    text = writer(unit_of(x)[1])
    draw_guess(axes, guess, text)
    if kinds:
        _legend(axes)
    spans_text = "; ".join(f"{name}: {_spans_text(spans)}" for name, spans in rows.items())
    return _finish(figure, f"Timeline in {x}. {title}. {spans_text}{guessed(guess, text)}.")


def _begin(title: str, height_in: float, caption: str, data: Mapping[str, object]) -> Figure:
    """A canvas with its title above and its caption below."""
    if not data or not title.strip():
        raise UsageError(
            "there is nothing to draw" if title.strip() else "the figure has no title",
            expected="one name or more, and a title that says what was found",
            next_step="Measure first, then write the finding as an f-string",
        )
    head, foot = wrapped(title), "\n".join(textwrap.wrap(caption, _CAPTION_CHARACTERS))
    figure = empty_figure(height_in + 0.3 + 0.2 * head.count("\n") + 0.16 * (1 + foot.count("\n")))
    figure.suptitle(head, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(foot, x=0.01, ha="left", fontsize=8.5, color=FAINT)
    return figure


def _finish(figure: Figure, alt: str) -> Drawing:
    keep_labels_clear(figure)
    return Drawing(figure, " ".join(alt.split()))


def _caption(how: str, note: str, counted: bool = False) -> str:
    """How to read the figure, under which conditions, on which machine."""
    found = machine.describe()
    here = "" if counted else f"{found['cpus_usable']} of {found['cpus_present']} CPUs, {found['cpu']}"
    return " · ".join(filter(None, (how, note, here)))


def _how(what: str, runs: Sequence[float], dots: str = "runs") -> str:
    return f"{what}: median, dots: {len(runs)} {dots}" if len(runs) > 1 else ""


def _group(name: str, groups: Sequence[str]) -> int:
    """Which of the groups, by a word in its name; the first without any."""
    return next((number for number, group in enumerate(groups) if group in name), 0)


def _runs(value: Runs) -> list[float]:
    """The runs as numbers, without NaN."""
    values = [value] if isinstance(value, int | float) else value
    return [float(each) for each in values if np.isfinite(each)]


def _points(points: Mapping[float, Runs]) -> dict[float, list[float]]:
    return {place: runs for place, value in sorted(points.items()) if (runs := _runs(value))}


def _total(value: Runs | Mapping[str, Runs]) -> list[float]:
    """The runs of a bar; of a stack, the sum of its parts in each run."""
    if not isinstance(value, Mapping):
        return _runs(value)
    parts = [runs for part in value.values() if (runs := _runs(part))]
    if len({len(part) for part in parts}) <= 1:
        return [sum(each) for each in zip(*parts, strict=True)]
    return [sum(median(part) for part in parts)]


def _stack(axes: Axes, rows: Mapping[str, Mapping[str, Runs]]) -> None:
    """Parts in the proportion of their medians, together as long as the median of the whole."""
    medians = {name: {k: median(_runs(v) or [0.0]) for k, v in parts.items()} for name, parts in rows.items()}
    whole = {n: median(_total(parts)) / (sum(medians[n].values()) or 1) for n, parts in rows.items()}
    ends = dict.fromkeys(rows, 0.0)
    for number, part in enumerate(dict.fromkeys(part for parts in rows.values() for part in parts)):
        widths = {name: whole[name] * parts.get(part, 0.0) for name, parts in medians.items()}
        places = [list(rows).index(name) - 0.08 for name in widths]
        axes.barh(
            places,
            list(widths.values()),
            0.5,
            list(ends.values()),
            color=COLOURS[number % len(COLOURS)],
            edgecolor="white",
            linewidth=1,
            label=part,
        )
        ends = {name: end + widths[name] for name, end in ends.items()}
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Above the axes, filled row by row: matplotlib alone fills columns, and so breaks the order."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 5
    while (
        columns > 1
        and sum(max(map(len, labels[n::columns]), default=0) + 6 for n in range(columns)) > _LEGEND_CHARACTERS
    ):
        columns -= 1  # long names; with the line before each they need so much room
    order = [n for column in range(columns) for n in range(column, len(labels), columns)]
    axes.legend(
        [handles[n] for n in order],
        [labels[n] for n in order],
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=columns,
        borderpad=0,
    )


def _ends(name: str, points: Points, x_text: Writer, y_text: Writer) -> str:
    first, last = min(points), max(points)
    begin, end = (f"{y_text(median(points[place]))} at {x_text(place)}" for place in (first, last))
    top = max(points, key=lambda place: median(points[place]))
    most = f"{y_text(median(points[top]))} at {x_text(top)}"
    between = median(points[top]) > max(median(points[first]), median(points[last]))
    return f"{name} from {begin}{f', at most {most},' * between} to {end}"


def _spans_text(spans: Sequence[tuple[float, float, str]]) -> str:
    """The spans in words; of many spans only the sum of each kind."""
    if len(spans) <= 3:
        return ", ".join(f"{what} {number_text(begin)} to {number_text(end)}" for begin, end, what in spans)
    sums: dict[str, float] = {}
    for begin, end, what in spans:
        sums[what] = sums.get(what, 0.0) + end - begin
    return ", ".join(f"{what} {number_text(total)} together" for what, total in sums.items())
