"""`@check`: from a plain function that tries an answer to a verdict that never hurts.

The trap: a check has bugs too. If an answer of an odd kind trips it, the result is
a ✗, not a traceback into this package. Every exercise uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeAlias

from exercises.checks.attempt import Attempt, NotStarted, OutOfTime, line_of, time_limit
from exercises.checks.verdict import CheckFailed, Verdict, Wrong
from helpers.kernel import is_strict
from smallfiles.errors import SmallfilesError

CheckBody: TypeAlias = Callable[[Attempt], None]
_HOW_TO_START = "Replace the stub in the cell above with your code, run that cell, then run this one again."
_ODD_KIND = "the check cannot look into a result of this kind; compare it with the signature in the task"
_TOO_LATE = "it looks like a loop that never ends, or a DataLoader whose worker waits forever"


def check(
    *,
    buys: str,
    limit_s: float = 10.0,
    errors: Mapping[type[Exception], str] | None = None,
    start: str = _HOW_TO_START,
) -> Callable[[CheckBody], Callable[[Any], Verdict]]:
    """Make a check of a function that takes an `Attempt` and returns if all is well.

    Args:
        buys: One sentence on what the solution is good for on a cluster; shown with ✓.
        limit_s: Seconds that the whole check may take.
        errors: What an exception of the answer means, by its type.
        start: What ○ tells to do, where the cell above holds no stub.

    Returns:
        A function of the answer that returns its verdict; in strict mode it raises `CheckFailed`
        instead of returning ○ or ✗.
    """

    def decorate(body: CheckBody) -> Callable[[Any], Verdict]:
        name = body.__name__

        def not_yet(attempt: Attempt | None, got: str, expected: str, because: str) -> Verdict:
            gave = attempt.gave if attempt else name
            parts = (("we tried", gave), ("got", got), ("expected", expected), ("because", because))
            return Verdict(name, "not yet", parts)

        def judged(answer: Any) -> Verdict:
            attempt: Attempt | None = None
            try:
                with time_limit(limit_s):
                    attempt = Attempt(answer, name, errors)
                    with attempt.kept:
                        body(attempt)
            except NotStarted as stub:
                return Verdict(name, "not started", (("", str(stub) or start),))
            except Wrong as wrong:
                return not_yet(attempt, wrong.got, wrong.expected, wrong.because)
            except OutOfTime as late:
                place = line_of(late)
                got = f"nothing in {limit_s:g} s{f'; it was in {place}' if place else ''}"
                return not_yet(attempt, got, f"a result in less than {limit_s:g} s", _TOO_LATE)
            except SmallfilesError as error:  # the answer gave a file or a record that the package refuses
                return not_yet(attempt, error.got, error.expected, f"{error.next_step}.")
            except (Exception, SystemExit) as error:
                return not_yet(attempt, f"{type(error).__name__}: {error}", "a result", _ODD_KIND)
            return Verdict(name, "passed", (("", buys),))

        @wraps(body)
        def run(answer: Any) -> Verdict:
            verdict = judged(answer)
            if is_strict() and not verdict:
                raise CheckFailed(str(verdict), expected="✓", next_step="Solve the exercise")
            return verdict

        return run

    return decorate
