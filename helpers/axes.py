"""The axes of a figure: how they write numbers, and the vertical lines on them for a guess or a mark.

    text = writer("s", largest=12.0)        text(0.5) is "0.5 s", and so is its tick
    draw_guess(axes, guess, text)           a dashed line with words, on the side with room

The trap: a guess may lie far outside of what was measured; a line at its place would shrink the measurement
to a dot, so it stands at the edge, with an arrow. All figures of `helpers.figures` use this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from statistics import median
from types import EllipsisType
from typing import TYPE_CHECKING

import numpy as np

from smallfiles.errors import UsageError
from smallfiles.measure.drawing import COLOURS, FAINT, GRID, GUESS_COLOUR, REFERENCE_COLOUR, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

Points = Mapping[float, Sequence[float]]
Guess = float | str | EllipsisType | None
Writer = Callable[[float], str]

_STRETCHES = (REFERENCE_COLOUR, COLOURS[1], COLOURS[4])
_SCALED = ("B", "B/s", "s", "bit/s")  # units with prefixes
_MOST_TICKS = 8


def mark(
    axes: Axes, name: str, place: float | Sequence[tuple[float, float]], height: float, number: int = 0
) -> None:
    """Mark a place on the x axis by a dotted line with its name, or stretches by a colour.

    Args:
        axes: With what was measured.
        name: Of the mark.
        place: On the x axis; or where each stretch begins and ends.
        height: Of the name beside a line, as a share of the axes.
        number: Of this mark among several, for its colour.
    """
    if isinstance(place, int | float):
        axes.axvline(place, color=REFERENCE_COLOUR, lw=1.2, ls=(0, (1, 2)), zorder=0)
        _make_room(axes)
        label_line(axes, place, name, FAINT, height)
        return
    colour = _STRETCHES[number % len(_STRETCHES)]
    for begin, end in place:
        label = name if (begin, end) == place[0] else None
        axes.axvspan(begin, end, lw=0, zorder=0, label=label, color=colour, alpha=0.25)


def scale(axes: Axes, series: Mapping[str, Points], x: str, y: str, log: str) -> tuple[Writer, Writer]:
    """Limits, ticks and labels of both axes; how each writes its numbers."""
    places = sorted({place for points in series.values() for place in points})
    top = max(max(runs) for points in series.values() for runs in points.values()) or 1
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * top)
    x_text = writer(unit_of(x)[1], None if "x" in log else max(places))
    y_text = writer(unit_of(y)[1], None if "y" in log else top)
    write_numbers(axes.xaxis, x_text)
    write_numbers(axes.yaxis, y_text)
    if len(places) <= _MOST_TICKS:
        axes.set_xticks(places, [x_text(place) for place in places])
        axes.set_xticks([], minor=True)
    axes.set_xlabel(unit_of(x)[0])
    axes.set_ylabel(unit_of(y)[0])
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    return x_text, y_text


def write_numbers(axis: Axis, text: Writer) -> None:
    """Its numbers, and those between powers of ten where a logarithmic axis has room for them."""
    from matplotlib.ticker import LogFormatter

    class Between(LogFormatter):
        def __call__(self, value: float, pos: int | None = None) -> str:
            low, high = sorted(axis.get_view_interval())
            if 10 * low < high <= 2_000 * low:  # matplotlib itself would leave them empty
                return text(value) if f"{value:e}"[0] in "25" else ""
            return text(value) if super().__call__(value, pos) else ""

    axis.set_major_formatter(lambda value, _: text(value))
    axis.set_tick_params(which="minor", length=3.5, pad=3.5)  # as of the others: one height
    if axis.get_scale() == "log":
        axis.set_minor_formatter(Between())


def count_millions(axes: Axes) -> None:
    """Writes the numbers of a linear x axis as "5 million" if in full they are long."""
    if axes.get_xticks()[1] >= 1_000_000:
        axes.locator_params(axis="x", nbins=4)  # more of these words would overlap
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:,g} million" if value else "0")


def unit_of(label: str) -> tuple[str, str]:
    """`"time (s)"` as `("time", "s")`."""
    text, bracket, unit = label.removesuffix(")").rpartition(" (")
    return (text, unit) if bracket and label.endswith(")") else (label, "")


def writer(unit: str, largest: float | None = None) -> Writer:
    """How an axis writes its numbers: `1,500`, `12 µs`, `100 kB`.

    Args:
        unit: Of the numbers.
        largest: On a linear axis, whose numbers all get the prefix of this one.
    """
    common = None if largest is None else _power(largest, unit)
    return lambda value: _amount(value, unit, common)


def _amount(value: float, unit: str, common: int | None) -> str:
    """With the common prefix, unless the number is too small for it to be read."""
    if unit not in _SCALED:
        return f"{number_text(value)}{'' if unit == '%' else ' '}{unit}".rstrip()
    power = _power(value, unit)
    if (common is not None and abs(value) >= 0.99 * 1000.0 ** (common - 1)) or not value:
        power = common or 0
    scaled = value / 1000**power
    digits = f"{scaled:,.0f}" if abs(scaled) >= 1000 else f"{scaled:.3g}"
    return f"{digits} {['n', 'µ', 'm', '', 'k', 'M', 'G', 'T'][power + 3]}{unit}"


def _power(value: float, unit: str) -> int:
    """Of 1,000, for the prefix; time has none above the second, and bytes none below one."""
    power = int(np.floor(np.log10(abs(value)) / 3 + 1e-9)) if value else 0
    return min(0, max(-3, power)) if unit == "s" else min(4, max(0, power))


def range_of(values: Mapping[str, Sequence[float]], log: bool) -> tuple[float, float]:
    """From the smallest to the largest value; a linear axis starts at zero and leaves the last 1 % out."""
    single = np.concatenate([np.asarray(each, dtype=float) for each in values.values()])
    if log:
        return float(single.min()) / 1.1, float(single.max()) * 1.1
    return min(0.0, float(single.min())), float(np.percentile(single, 99)) * 1.05 or 1.0


def as_dots(axes: Axes, runs: Mapping[str, Sequence[float]], colours: Sequence[str]) -> None:
    """On a logarithmic axis, which has no zero: a large dot at the end of each bar, and no bar."""
    for bar, row, values, colour in zip(
        list(axes.patches), axes.get_yticks(), runs.values(), colours, strict=True
    ):
        axes.plot(median(values), row, "o", ms=9, color=colour, zorder=4)
        bar.remove()
    for number in _annotations(axes):
        number.xyann = (9, 0)  # clear of the dot
    low, high = range_of(runs, log=True)
    axes.set_xscale("log")
    axes.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** 0.14)  # room for the last number
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)


def draw_guess(
    axes: Axes,
    guess: Guess,
    text: Writer,
    names: Sequence[str] = (),
    *,
    words: bool = True,
    rows: Sequence[int] = (),
) -> None:
    """A dashed line at the guess; at the edge, with an arrow, if it lies far outside.

    Args:
        axes: With what was measured.
        guess: A place on the x axis, or one of the names.
        text: How a number is written.
        names: Of the bars.
        words: Whether the line is named.
        rows: The bars along which it goes; the whole height if not given.
    """
    if guess is None or guess is ...:
        return
    if isinstance(guess, str):
        row = row_of(guess, names)
        axes.set_yticks(axes.get_yticks(), [f"your guess ▸ {n}" if n == guess else n for n in names])
        axes.get_yticklabels()[row].set_color(GUESS_COLOUR)
        return
    low, high = axes.get_xlim()
    shown = min(max(float(guess), low), high * (10 if axes.get_xscale() == "log" else 2))
    axes.set_xlim(low, max(high, shown * 1.02))
    if rows:
        above = 0.85 if min(rows) == 0 else 0.5  # up to the words
        (line,) = axes.plot([shown, shown], [min(rows) - above, max(rows) + 0.5])
        if min(rows) > 0:  # a thin line from the words, past bars that the guess is not at
            axes.plot([shown, shown], [-0.85, min(rows) - above], color=GUESS_COLOUR, lw=0.7, zorder=2.5)
    else:
        line = axes.axvline(shown)
    line.set(color=GUESS_COLOUR, linewidth=1.6, linestyle=(0, (5, 2)), zorder=3)
    for box in filter(None, (label.get_bbox_patch() for label in axes.texts)):
        box.set_alpha(1)  # numbers stay readable where the line meets them
    _make_room(axes)
    if words:
        outside = " ▸" if guess > shown else " ◂" if guess < shown else ""
        bottom, top = axes.get_ylim()
        height = max(0.94, 1 - 0.25 / (bottom - top)) if bottom > top else 0.94  # above bars
        label_line(axes, shown, f"your guess: {text(guess)}{outside}", GUESS_COLOUR, height)


def row_of(guess: str, names: Sequence[str]) -> int:
    """Which of the names was guessed.

    Raises:
        UsageError: None of them.
    """
    if guess in names:
        return names.index(guess)
    raise UsageError(
        f"the guess {guess!r} is none of {', '.join(names) or 'the places on this axis'}",
        expected="a number, or a name as the figure writes it",
        next_step="Correct the guess in its cell",
    )


def guessed(guess: Guess, text: Writer) -> str:
    """The end of a description: what was guessed."""
    if guess is None or guess is ...:
        return ""
    return f"; your guess was {guess if isinstance(guess, str) else text(guess)}"


def _make_room(axes: Axes) -> None:
    """Above all that is drawn, for words next to a vertical line."""
    bottom, top = axes.get_ylim()
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom, top + (0.12 * top if top > bottom else -0.5))
    else:
        axes.set_ylim(bottom, top * (top / bottom) ** 0.12)


def end_with(axes: Axes, top: float) -> None:
    """Let the numbers of the y axis and its grid end with the data: above them are only words."""
    bottom = axes.get_ylim()[0]
    for minor in (False, True):
        places = axes.get_yticks(minor=minor)
        axes.set_yticks([place for place in places if bottom <= place <= 1.01 * top], minor=minor)


def label_line(axes: Axes, place: float, text: str, colour: str, height: float) -> None:
    """A text next to a vertical line, on the side with more room; see also `keep_labels_clear`."""
    transform = axes.get_xaxis_transform()
    left = axes.transData.transform((place, 0))[0]
    edge = axes.transAxes.transform((0.5, 0))[0]
    side, shift = ("right", -5) if left > edge else ("left", 5)
    axes.annotate(
        text,
        (place, height),
        xycoords=transform,
        xytext=(shift, 0),
        textcoords="offset points",
        ha=side,
        va="center",
        color=colour,
        fontsize=9,
        zorder=5,  # above another line
        bbox={"facecolor": "white", "pad": 1, "edgecolor": "none"},
    )


def keep_labels_clear(figure: Figure) -> None:
    """Turn a text that lies across another vertical line to its line's other side, if that side is free."""
    for axes in figure.axes:
        transform = axes.get_xaxis_transform()
        labels = [text for text in _annotations(axes) if text.xycoords == transform]
        drawn = [line for line in axes.lines if line.get_linestyle() != "None"]
        found = [np.unique(np.asarray(line.get_xdata(), dtype=float)) for line in drawn]
        lines = {float(places[0]) for places in found if len(places) == 1}
        if not labels or len(lines) < 2:
            continue
        figure.draw_without_rendering()  # which settles how wide the axes are
        for label in labels:
            if not _is_clear(label, axes, lines):
                _turn(label)
                if not _is_clear(label, axes, lines):
                    _turn(label)


def _annotations(axes: Axes) -> Iterator[Annotation]:
    from matplotlib.text import Annotation

    return (text for text in axes.texts if isinstance(text, Annotation))


def _is_clear(label: Annotation, axes: Axes, lines: Collection[float]) -> bool:
    box = label.get_window_extent()
    others = [axes.transData.transform((x, 0.0))[0] for x in lines if x != label.xy[0]]
    inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
    return inside and not any(box.x0 < x < box.x1 for x in others)


def _turn(label: Annotation) -> None:
    """To the other side of its line."""
    label.set_horizontalalignment("left" if label.get_horizontalalignment() == "right" else "right")
    label.xyann = (-label.xyann[0], label.xyann[1])
