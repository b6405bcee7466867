"""Figures of the course: bars for medians, a dot for each run, a title that states the finding.

`smallfiles.measure.drawing` holds what all share, each module here the figures of one notebook.
Titles and alt texts are computed from the measurement. The trap: an axis that does not start at zero
turns 5 % into a victory.
"""

from helpers.figures.general import guessed, levels, lines, spans, stacked
from smallfiles.measure.drawing.canvas import COLOURS, REFERENCE_COLOUR, as_svg, save
from smallfiles.measure.drawing.records import alt_text, bars, check_comparable, finding, throughput

__all__ = [
    "COLOURS",
    "REFERENCE_COLOUR",
    "alt_text",
    "as_svg",
    "bars",
    "check_comparable",
    "finding",
    "guessed",
    "levels",
    "lines",
    "save",
    "spans",
    "stacked",
    "throughput",
]
