"""Figures of records: bars for medians, a dot for each run, a title that states the finding.

Records are refused unless their conditions agree, since a figure of different conditions misleads.
Titles and alt texts are computed from the records; where spreads overlap, the title says that there is
no clear difference. The first part is shared by all figures of the course: palette, fonts, canvas,
titles, bars, lines, files.

The traps: an axis that does not start at zero turns 5 % into a victory. And matplotlib's `pyplot` keeps
references to all figures and chooses a window system; here a figure is a plain object.
Notebook 01 draws the first, notebook 08 explains that of loaders.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from smallfiles.errors import UsageError
from smallfiles.measure.record import Record, Spread, factor_text
from smallfiles.measure.table import advice, kind_of, reference_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind people can distinguish; the reference is grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
REFERENCE_COLOUR = "#8C8C8C"
INK = "#222222"
FAINT = "#666666"
GRID = "#DDDDDD"
GUESS_COLOUR = "#C2410C"
_PAGE = {  # colours on a light and on a dark page
    "paper": ("#FFFFFF", "#1B1E22"),
    "ink": (INK, "#E8E8E8"),
    "faint": (FAINT, "#A8ACB0"),
    "grid": (GRID, "#3A3F45"),
    "guess": (GUESS_COLOUR, "#FF8A4C"),
}
WIDTH_IN = 7.2
_LINES: Any = (("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"), ("v", (0, (7, 2, 1, 2, 1, 2))), ("P", "--"))
_MANY_POINTS = 30
_TITLE_CHARACTERS = 76
STYLE: Any = {
    "font.size": 10,
    "svg.hashsalt": "smallfiles",  # equal records give equal files
    "svg.fonttype": "path",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.edgecolor": FAINT,
    "axes.prop_cycle": f"cycler('color', {COLOURS})",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def styled() -> Iterator[None]:
    """Everything drawn in this block looks like the course's other figures."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def empty_figure(height_in: float) -> Figure:
    """Make a figure without a window, which is not registered in `pyplot`.

    Args:
        height_in: Height in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def wrapped(title: str) -> str:
    """Break a title into lines that fit on the figure."""
    return "\n".join(textwrap.wrap(title, _TITLE_CHARACTERS))


def number_text(value: float) -> str:
    """Format a number for a figure, such as `1,240`, `15.3`, or `0.012`."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem.svg` and `stem.png`; equal figures give equal bytes.

    Args:
        figure: What to write.
        stem: Path without suffix.
    """
    svg, png = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    svg.write_text(as_svg(figure), encoding="utf-8")
    figure.savefig(png, dpi=160, metadata={"Software": None})
    return svg, png


def as_svg(figure: Figure) -> str:
    """Return the figure as SVG text without external resources."""
    target = io.StringIO()
    with styled():
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return target.getvalue()


def as_page(figure: Figure) -> str:
    """Return the figure as SVG text whose colours follow the page, light or dark."""
    svg = as_svg(figure).replace("#000000", "var(--ink)")
    for name, (light, _) in _PAGE.items():
        svg = svg.replace(light.lower(), f"var(--{name})")
    light, dark = (";".join(f"--{name}:{pair[n]}" for name, pair in _PAGE.items()) for n in (0, 1))
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    style += "svg{fill:var(--ink)}</style>"  # matplotlib writes no colour where it fills in black
    return svg.replace("<defs>", f"{style}<defs>", 1)


def draw(records: Sequence[Record]) -> tuple[Figure, str]:
    """Draw the records of one measurement, and describe the figure.

    Loaders that were measured with several numbers of workers become lines over these; all others become
    bars, one panel for each condition.

    Returns:
        The figure, and its alt text.
    """
    epochs = [record for record in records if record.what.startswith("epoch of ")]
    if advice(epochs) and len({record.workers for record in epochs}) > 1:
        return tuning(epochs), tuning_in_words(epochs)
    groups = [list(group) for _, group in groupby(records, key=lambda record: (record.what, record.cache))]
    return throughput(*groups), alt_text(*groups)


def throughput(*groups: Sequence[Record], reference: str | None = None) -> Figure:
    """Draw one panel for each group of records: median bars, a dot for each run.

    Args:
        groups: Records of one run; the records of a group share all conditions.
        reference: Name of the record to compare with; None takes the first of each group.

    Returns:
        A figure; `save` writes it.

    Raises:
        UsageError: A group is empty, or its records were measured under different conditions.
    """
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
            base = reference_of(group, reference)
            where = f"{base.filesystem}, {base.workers} process{'es' if base.workers > 1 else ''}"
            axes.set_xlabel(f"samples per second (bar: median, dots: {base.repeats} runs; {where})")
    return figure


def check_comparable(records: Sequence[Record]) -> None:
    """Refuse records that were measured under different conditions.

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
    """Return the conclusion that the records support, for a title.

    It names the best record and all records whose quartiles overlap those of the best. If they overlap
    those of the reference, it says that there is no clear difference.
    """
    check_comparable(records)
    base = reference_of(records, reference)
    others = [record for record in records if record is not base]
    head = base.what[:1].upper() + base.what[1:] + f", {base.cache} cache" * base.what.endswith("reads")
    if not others:
        return f"{head}: {base.name} reaches {base.spread.median:,.0f} samples/s"
    best = max(others, key=lambda record: record.spread.median)
    if best.spread.overlaps(base.spread):
        return f"{head}: no clear difference between {best.name} and {base.name}"
    if best.spread.median < base.spread.median:
        return f"{head}: nothing is faster than {base.name}"
    leaders = [record for record in others if record.spread.overlaps(best.spread)]
    factors = sorted(record.spread.median / base.spread.median for record in leaders)  # as drawn
    return f"{head}: {_and([r.name for r in leaders])} {_factor_text(factors)} as fast as {base.name}"


def alt_text(*groups: Sequence[Record], reference: str | None = None) -> str:
    """Return the alt text of `throughput`."""
    sentences = []
    for group in groups:
        values = ", ".join(f"{record.name} {record.spread.median:,.0f}" for record in group)
        sentences.append(f"{finding(group, reference)}. Median samples per second: {values}.")
    return "Bar chart. " + " ".join(sentences)


def _colours(groups: Sequence[Sequence[Record]], reference: str | None) -> dict[str, str]:
    """Choose a colour for each name, the same in all panels."""
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
    """Draw a bar for each name with the median at its end, and its runs as dots below it.

    Args:
        axes: Where to draw. Afterwards they range from zero to the largest run.
        runs: The runs of each name, from top to bottom.
        colours: The colours of the bars.
        text: Formats a number.
    """
    rows = range(len(runs))
    medians = [Spread.of(values).median for values in runs.values()]
    axes.barh([row - 0.08 for row in rows], medians, height=0.5, color=colours)
    for row, values, middle in zip(rows, runs.values(), medians, strict=True):
        if len(values) > 1:
            axes.plot([min(values), max(values)], [row + 0.3] * 2, color=REFERENCE_COLOUR, lw=0.8)
            (dots,) = axes.plot(values, [row + 0.3] * len(values), "o", ms=3.4, mfc="white", mec=INK, mew=0.7)
            dots.set_clip_on(False)  # whole also at zero
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
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def median_line(axes: Axes, name: str, runs: Mapping[float, Sequence[float]], number: int) -> None:
    """Draw a line through the medians, and a dot for each of several runs.

    Args:
        axes: Where to draw.
        name: Name in the legend.
        runs: The runs at each place of the x axis, in order.
        number: Number of the line, which decides its colour, marker, and dashes.
    """
    marker, style = _LINES[number % len(_LINES)]
    colour = COLOURS[number % len(COLOURS)]
    for place, values in runs.items():
        if len(values) > 1:
            axes.plot([place] * len(values), values, ".", ms=4.5, color=colour, alpha=0.5)
    shown = marker if len(runs) <= _MANY_POINTS else ""
    medians = [median(values) for values in runs.values()]
    axes.plot(list(runs), medians, ls=style, marker=shown, ms=5.5, lw=1.7, color=colour, label=name)


def _factor_text(factors: Sequence[float]) -> str:
    low, high = factor_text(factors[0]), factor_text(factors[-1])
    if len(factors) == 1 or low == high:
        return f"{'is' if len(factors) == 1 else 'are'} {high} times"
    return f"are {low} to {high} times"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def tuning(records: Sequence[Record]) -> Figure:
    """Draw samples per second against the number of workers: a line per loader, and a dot per run.

    There is one panel for each kind of pictures. Its title is the recommended setting.

    Args:
        records: Epochs of one run of `bench load`.

    Raises:
        UsageError: There are no such records.
    """
    kinds = {
        kind_of(record): [each for each in records if kind_of(each) == kind_of(record)] for record in records
    }
    titles = {found.what: found.headline for found in advice(records)}
    with styled():
        figure = empty_figure(3.4 * len(kinds))
        panels = figure.subfigures(len(kinds), 1, squeeze=False)[:, 0]
        for (kind, group), panel in zip(kinds.items(), panels, strict=True):
            title = titles.get(kind, f"{kind[:1].upper()}{kind[1:]}")
            panel.suptitle(wrapped(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
            _draw_lines(panel.subplots(), group)
    return figure


def tuning_in_words(records: Sequence[Record]) -> str:
    """Return the alt text of `tuning`."""
    values = (
        f"{record.name} with {record.workers} workers {record.spread.median:,.0f}" for record in records
    )
    found = " ".join(f"{each.sentence[:1].upper()}{each.sentence[1:]}." for each in advice(records))
    return f"Line chart. {found} Median samples per second: {', '.join(values)}."


def _draw_lines(axes: Axes, group: Sequence[Record]) -> None:
    cpus = group[0].machine.get("cpus_usable")
    if cpus:
        axes.axvline(cpus, color=REFERENCE_COLOUR, ls="--", lw=1.2, zorder=0, label="usable CPUs")
    for number, name in enumerate(dict.fromkeys(record.name for record in group)):
        line = sorted((each for each in group if each.name == name), key=lambda each: each.workers)
        median_line(axes, name, {record.workers: record.rates_per_s for record in line}, number)
    axes.set_xticks(sorted({record.workers for record in group}))
    axes.set_ylim(0, 1.1 * max(record.spread.maximum for record in group))
    axes.set_xlabel(
        f"workers (line: median, dots: {group[0].repeats} epochs; batches of {group[0].batch})", fontsize=9
    )
    axes.set_ylabel("samples per second", fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(fontsize=8)
