"""Figures of the course: bars for medians, a dot for each run, a title that states the finding.

`primitives` holds the four that a cell calls: `bars`, `lines`, `histogram`, `timeline`. Titles and alt
texts are computed from the measurement. The trap: an axis that does not start at zero turns 5 % into a
victory.
"""

from helpers.figures.primitives import bars, histogram, lines, timeline
from smallfiles.measure.drawing.canvas import COLOURS, REFERENCE_COLOUR, as_svg, save
from smallfiles.measure.drawing.records import alt_text, check_comparable, finding, throughput

__all__ = [
    "COLOURS",
    "REFERENCE_COLOUR",
    "alt_text",
    "as_svg",
    "bars",
    "check_comparable",
    "finding",
    "histogram",
    "lines",
    "save",
    "throughput",
    "timeline",
]
