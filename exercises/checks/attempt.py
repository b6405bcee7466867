"""Try a participant's answer without being hurt by it.

The answer may raise, never return, change what it was given, print instead of return, or still be
the stub. Each becomes a verdict of its own. The trap: `signal.alarm` is one for the whole process, so
the time limit puts back what others had set. Every exercise uses it.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import io
import linecache
import math
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from exercises.checks.verdict import Wrong, shown

Mistake: TypeAlias = tuple[Callable[..., Any], str]
"""A function that computes the result of a common wrong idea, and the sentence that helps."""

_Result = TypeVar("_Result")
_STUB_OPERATIONS = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS"}
_OURS = Path(__file__).resolve().parent
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class NotStarted(Exception):
    """The stub is still there; its text says how to start where that is not the usual way."""


class OutOfTime(BaseException):
    """The time limit; not an `Exception`, so that no `except Exception` of an answer swallows it."""


class Attempt:
    """A participant's answer, called safely: `attempt(1, 2)` is `answer(1, 2)` with a net below.

    Args:
        answer: What they wrote: a function, a class or a value.
        name: How to call it in messages.
        errors: What an exception of this type means here, for the diagnosis.
    """

    def __init__(self, answer: Any, name: str, errors: Mapping[type[Exception], str] | None = None) -> None:
        self.answer = answer
        self.name = getattr(answer, "__name__", name)
        self.gave = self.name
        self.kept = contextlib.ExitStack()
        self._errors = dict(errors or {})
        if answer is None or answer is ... or is_stub(answer):
            raise NotStarted

    def __call__(self, *arguments: Any, _shown: str | None = None) -> Any:
        """Call the answer; arguments that it changes are noticed.

        Args:
            *arguments: What it is called with; it gets copies.
            _shown: How to show the arguments, where their repr says little.
        """
        self.gave = f"{self.name}({_shown if _shown is not None else ', '.join(map(shown, arguments))})"
        given = _copied(arguments)
        with self.guarded(), _printed() as printed:
            result = self.answer(*given)
        if not _same(given, arguments):
            because = "your function changes what it was given (sort, append, pop …): work on a copy"
            as_they_were = f"arguments left as they were: {', '.join(map(shown, arguments))}"
            raise self.wrong("a changed argument", as_they_were, because)
        if result is None or result is ...:
            raise self.wrong(shown(result), "a result", _nothing_returned(printed.getvalue()))
        return result

    def given(self, what: str) -> None:
        """Say what the next expectations look at, where it is not a call: "the file train.arrow"."""
        self.gave = what

    def tried(self, what: str, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """What `work` returns, which runs the participant's code.

        Args:
            what: How messages call it: "reader[3]".
            work: It may raise what it likes.
            *arguments: What it is called with.
        """
        self.gave = what
        with self.guarded():
            return work(*arguments)

    def folder(self) -> Path:
        """A new empty folder, removed when the check ends."""
        made = tempfile.TemporaryDirectory(prefix="smallfiles-", ignore_cleanup_errors=True)
        return Path(self.kept.enter_context(made))

    def expect(self, expected: Any, got: Any, *, because: str) -> None:
        """Refuse anything but `expected`, of its own type (a whole number is not 2.0, nor True)."""
        if type(got) is not type(expected) or not _same(got, expected):
            raise self.wrong(shown(got), shown(expected), because)

    def expect_dict(self, names: Iterable[str], got: Any, *, because: str) -> None:
        """Refuse anything but a dict of these names, in any order."""
        named = isinstance(got, dict) and set(got) == set(names)
        self.require(named, got, f"a dict of {', '.join(names)}", because)

    def require(self, holds: bool, got: Any, expected: str, because: str) -> None:
        """Refuse what has not this property.

        Args:
            holds: Whether it has.
            got: What was found: a sentence, or a value to be shown.
            expected: What should have been found, in words.
            because: The diagnosis.
        """
        if not holds:
            raise self.wrong(got if isinstance(got, str) else shown(got), expected, because)

    def wrong(self, got: str, expected: str, because: str) -> Wrong:
        """A ✗ for what was given last, to be raised."""
        return Wrong(gave=self.gave, got=got, expected=expected, because=because)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Around code that runs the participant's: an exception becomes a ✗ with their line."""
        try:
            yield
        except NotImplementedError as error:
            raise NotStarted from error
        except (Wrong, NotStarted):
            raise
        except (Exception, SystemExit) as error:
            place = line_of(error)
            got = f"{type(error).__name__}: {str(error)[:200]}{f' in {place}' if place else ''}"
            because = "your code raised an exception on this input"
            known = next((text for kind, text in self._errors.items() if isinstance(error, kind)), None)
            if isinstance(error, TypeError) and not place and "argument" in str(error):
                because = "it cannot be called as the task says; compare its arguments with the signature"
            elif known:
                because += f". A common reason: {known}"
            raise self.wrong(got, "a result", because) from error


def diagnose(got: Any, *mistakes: tuple[Any, str], otherwise: str = "the result is another one") -> str:
    """The diagnosis of a wrong result, by what a known mistake would have given.

    Args:
        got: The result.
        *mistakes: What a mistake gives here, floats but for rounding, and its diagnosis; the first that
            fits is taken.
        otherwise: When none fits.
    """
    for value, text in mistakes:
        if _fits(got, value):
            return text
    return otherwise


def explain(
    answer: Callable[..., Any],
    case: Sequence[Any],
    cases: Iterable[Sequence[Any]],
    mistakes: Iterable[Mistake],
    *,
    otherwise: str,
) -> str:
    """Return why an answer is wrong in a case.

    One wrong result is not a proof, since several mistakes may give it. So a mistake is asserted only if it
    explains what the answer gives in all cases; those in which the answer raises an exception do not count.

    Args:
        answer: The participant's function, or a function that picks one part of its result.
        case: The arguments that gave the wrong result.
        cases: The arguments of all cases, in which any two mistakes must differ.
        mistakes: What each known mistake would give, and its diagnosis.
        otherwise: What to say if no mistake is proven.
    """
    got = [(other, result) for other in cases if (result := _quietly(answer, other)) is not None]
    result, known = _quietly(answer, case), list(mistakes)
    fitting = [(mistake, text) for mistake, text in known if _fits(result, _quietly(mistake, case))]
    for mistake, text in fitting:
        if all(_fits(result, _quietly(mistake, other)) for other, result in got):
            return text
    if not fitting:
        return otherwise
    return f"{otherwise}. A known mistake, which need not be yours, gives the same result: {fitting[0][1]}"


def _quietly(work: Callable[..., Any], case: Sequence[Any]) -> Any:
    """Call a function without showing its output; return None if it raises an exception."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return work(*_copied(tuple(case)))
    except Exception:  # it is called for the diagnosis only
        return None


def _fits(got: Any, value: Any) -> bool:
    return close(got, value) if isinstance(value, float) else type(value) is type(got) and _same(value, got)


def close(got: Any, expected: float, tolerance: float = 0.001) -> bool:
    """Whether a result is a number, and that one but for rounding."""
    number = isinstance(got, int | float) and not isinstance(got, bool)
    return number and math.isclose(got, expected, rel_tol=tolerance, abs_tol=1e-9)


def is_stub(answer: Any) -> bool:
    """Whether a function does nothing yet: only a docstring, `...`, `pass` or `return None`."""
    code = getattr(answer, "__code__", None)
    if code is None:
        return False
    operations = {instruction.opname for instruction in dis.get_instructions(code)}
    returned = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_CONST", "RETURN_CONST")]
    return operations <= _STUB_OPERATIONS and all(value is None or value is ... for value in returned)


def line_of(error: BaseException) -> str:
    """Where in the participant's own code it happened: `line 3: return total / 0`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_relative_to(_OURS) and not frame.filename.startswith((*_LIBRARIES, "<frozen")):
            text = (linecache.getline(frame.filename, frame.lineno or 0) or frame.line or "").strip()
            return f"line {frame.lineno}: {text}"
    return ""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in this block after `seconds`, and each second after, however it is caught.

    Only the main thread can be interrupted; in another one there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, _out_of_time)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # somebody else's alarm goes on where it was
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (time.monotonic() - started)), interval)


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return copy.deepcopy(arguments)
    except Exception:  # an open reader, a lock: such things are given as they are
        return arguments


def _same(one: Any, other: Any) -> bool:
    """Equality that also works for arrays and for containers of them."""
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        equal = one == other
        return bool(equal.all()) if hasattr(equal, "all") else bool(equal)
    except Exception:
        return False


@contextlib.contextmanager
def _printed() -> Iterator[io.StringIO]:
    """What is printed in this block; it appears all the same."""
    kept = io.StringIO()
    try:
        with contextlib.redirect_stdout(kept):
            yield kept
    finally:
        sys.stdout.write(kept.getvalue())


def _nothing_returned(printed: str) -> str:
    if printed.strip():
        return "your function prints its result; a caller needs it returned: replace print(…) by return …"
    return "your function ends without return, so Python returns None"
