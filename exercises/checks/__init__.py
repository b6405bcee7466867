"""Checks of the exercises: what is not started, what is wrong and why, what is solved.

A check is a plain function that tries the participant's answer and stops at the first case that is
wrong; `@check` turns it into a verdict, one of three:

    ○ not started     the stub is still there
    ✗ not yet         we tried, got, expected, because
    ✓ passed          and what that buys on the cluster

    @check(buys="Now a job asks for the space that it needs.")
    def total_bytes(attempt: Attempt) -> None:
        for sizes in ([], [1], [3, 4]):
            got = attempt(sizes)
            attempt.expect(sum(sizes), got, because=diagnose(got, (len(sizes), "that counts the files")))

No traceback reaches a participant: an exception becomes a ✗ with the line of their code, an endless
loop too. With `COURSE_STRICT=1` anything but ✓ raises `CheckFailed`, as the tests want.

The trap: a check that compares with one example is passed by that example. Check properties and edge
cases, and give each wrong answer that people really write its own diagnosis. Modules are named as
their exercise: `ex00_start_here`.
"""

from exercises.checks.attempt import Attempt, Mistake, NotStarted, close, diagnose, explain
from exercises.checks.check import check
from exercises.checks.verdict import CheckFailed, Verdict, Wrong, shown

__all__ = [
    "Attempt",
    "CheckFailed",
    "Mistake",
    "NotStarted",
    "Verdict",
    "Wrong",
    "check",
    "close",
    "diagnose",
    "explain",
    "shown",
]
