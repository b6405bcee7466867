"""Exercise 07: a staging function that survives two jobs at once, a full disk and SIGTERM.

    alone       one call: names, bytes, modes, links, old copies, a full disk
    together    two calls at once, and calls that are ended in the middle

The answer runs in forked children that can be stopped in the middle of their copy, so each race is
played the same way every time. The traps it teaches: a name that exists is not a copy that is
complete; a lock file outlives its owner, a lock does not; SIGTERM ends Python without any `finally`.
Notebook 07 sends participants here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from exercises.checks.attempt import Attempt
from exercises.checks.check import check
from exercises.checks.ex07_stage_a_dataset import alone, together

__all__ = ["stage"]

_LIMIT_S = 90.0


@check(
    buys="Thirty jobs of one node now share one copy, and none of them leaves its memory to the next.",
    limit_s=_LIMIT_S,
)
def stage(attempt: Attempt) -> None:
    """`stage(src, folder)` copies a file to a folder of this node, and gives the path of the copy."""
    for number, case in enumerate((*alone.CASES, *together.CASES)):
        with tempfile.TemporaryDirectory(prefix=f"smallfiles-{number}-") as place:
            case(attempt, Path(place))
