"""Does loading limit *this* training? Run anybody's program unchanged, measure, and say what to do next.

    hooks     what runs inside the program: clocks, counters, a sampling thread
    watching  starts it, hands signals and its exit code on; records
    numbers   from what each process wrote to the numbers of a rank
    verdicts  the table of verdicts, and the forecast
    report    words and figure

The trap: a share of waiting says that data comes too late, not why. The numbers behind a verdict do, and
where one is missing the report says which. Notebook 08 shows the mechanism, a clock around `next`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.profile.report import draw as draw
    from smallfiles.profile.report import lines as lines
    from smallfiles.profile.verdicts import TABLE as TABLE
    from smallfiles.profile.watching import found_in as found_in
    from smallfiles.profile.watching import join as join
    from smallfiles.profile.watching import load as load
    from smallfiles.profile.watching import look_at as look_at
    from smallfiles.profile.watching import measured as measured
    from smallfiles.profile.watching import seen as seen
    from smallfiles.profile.watching import watch as watch

__getattr__ = lazy.names(__name__)
