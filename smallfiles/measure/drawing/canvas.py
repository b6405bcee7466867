"""What all figures of the course share: palette, fonts, an empty canvas, titles that fit, files.

The trap: matplotlib's `pyplot` keeps every figure alive and picks a window system; here a figure is
an object that is drawn to bytes and forgotten. Notebook 01 draws the first.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by colour-blind eyes; the reference is grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
REFERENCE_COLOUR = "#8C8C8C"
INK = "#222222"
FAINT = "#666666"
GRID = "#DDDDDD"
GUESS_COLOUR = "#C2410C"
_PAGE = {  # what a figure is drawn with, on a light page and on a dark one
    "paper": ("#FFFFFF", "#1B1E22"),
    "ink": (INK, "#E8E8E8"),
    "faint": (FAINT, "#A8ACB0"),
    "grid": (GRID, "#3A3F45"),
    "guess": (GUESS_COLOUR, "#FF8A4C"),
}
WIDTH_IN = 7.2
_TITLE_CHARACTERS = 76
_STYLE: Any = {
    "font.size": 10,
    "svg.hashsalt": "smallfiles",  # equal records give equal files
    "svg.fonttype": "path",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.edgecolor": FAINT,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def styled() -> Iterator[None]:
    """Everything drawn in this block looks like the course's other figures."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def empty_figure(height_in: float, width_in: float = WIDTH_IN) -> Figure:
    """A figure without any window, which no registry keeps alive.

    Args:
        height_in: Inches.
        width_in: Inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def wrapped(title: str) -> str:
    """A title in lines that fit on the figure."""
    return "\n".join(textwrap.wrap(title, _TITLE_CHARACTERS))


def number_text(value: float) -> str:
    """A number as a figure says it: `1,240`, `15.3`, `0.012`."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem.svg` and `stem.png`; equal figures give equal bytes.

    Args:
        figure: From this package.
        stem: Path without suffix.
    """
    svg, png = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    svg.write_text(as_svg(figure), encoding="utf-8")
    figure.savefig(png, dpi=160, metadata={"Software": None})
    return svg, png


def as_svg(figure: Figure) -> str:
    """The figure as SVG text, for a page that must not load anything."""
    target = io.StringIO()
    with styled():
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return target.getvalue()


def as_page(figure: Figure) -> str:
    """The figure as SVG text whose ink and paper follow the reader's page, light or dark."""
    svg = as_svg(figure)
    for name, (light, _) in _PAGE.items():
        svg = svg.replace(light.lower(), f"var(--{name})")
    light, dark = (";".join(f"--{name}:{pair[n]}" for name, pair in _PAGE.items()) for n in (0, 1))
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    return svg.replace("<defs>", f"{style}<defs>", 1)
