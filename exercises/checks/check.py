"""`@check`: from a plain function that tries an answer to a verdict that never hurts.

The trap: a check has bugs too. Whatever it trips over because an answer is of an odd kind is told as
a ✗, not as a traceback into this package. Every exercise uses it.
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
_ODD_KIND = (
    "the result is of a kind that the check cannot look into; compare it with the signature in the task"
)


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
        @wraps(body)
        def run(answer: Any) -> Verdict:
            verdict = _judged(body, answer, buys, limit_s, errors, start)
            if is_strict() and not verdict:
                raise CheckFailed(str(verdict), expected="✓", next_step="Solve the exercise")
            return verdict

        return run

    return decorate


def _judged(
    body: CheckBody,
    answer: Any,
    buys: str,
    limit_s: float,
    errors: Mapping[type[Exception], str] | None,
    start: str,
) -> Verdict:
    name = body.__name__
    attempt: Attempt | None = None
    try:
        with time_limit(limit_s):
            attempt = Attempt(answer, name, errors)
            body(attempt)
    except NotStarted as stub:
        return Verdict(name, "not started", (("", str(stub) or start),))
    except Wrong as wrong:
        return _not_yet(name, wrong.gave, wrong.got, wrong.expected, wrong.because)
    except OutOfTime as late:
        return _not_yet(name, _gave(attempt, name), *_too_late(line_of(late), limit_s))
    except SmallfilesError as error:  # the answer gave a file or a record that the package refuses
        return _not_yet(name, _gave(attempt, name), error.got, error.expected, f"{error.next_step}.")
    except Exception as error:
        return _not_yet(name, _gave(attempt, name), f"{type(error).__name__}: {error}", "a result", _ODD_KIND)
    return Verdict(name, "passed", (("", buys),))


def _gave(attempt: Attempt | None, name: str) -> str:
    return attempt.gave if attempt else name


def _not_yet(name: str, gave: str, got: str, expected: str, because: str) -> Verdict:
    parts = (("you gave", gave), ("got", got), ("expected", expected), ("because", because))
    return Verdict(name, "not yet", parts)


def _too_late(place: str, limit_s: float) -> tuple[str, str, str]:
    return (
        f"nothing in {limit_s:g} s{f'; it was in {place}' if place else ''}",
        f"a result in less than {limit_s:g} s",
        "it looks like a loop that never ends, or a DataLoader whose worker waits for ever",
    )
