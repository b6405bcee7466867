"""Figures of records: bars for medians, a dot for each run, a title that states the finding.

`canvas` holds what all share, each other module a family of figures. Titles and alt texts are computed
from the measurement. The trap: an axis that does not start at zero turns 5 % into a victory.
"""

from smallfiles.measure.drawing.canvas import COLOURS, REFERENCE_COLOUR, as_svg, save
from smallfiles.measure.drawing.records import alt_text, check_comparable, finding, throughput

__all__ = [
    "COLOURS",
    "REFERENCE_COLOUR",
    "alt_text",
    "as_svg",
    "check_comparable",
    "finding",
    "save",
    "throughput",
]
