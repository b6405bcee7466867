"""Two calls at once, and calls that are ended in the middle of their copy.

The first child is stopped half-way; then the second comes, or the signal. The trap: left to chance,
two copies of a small file never meet. Exercise 07.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exercises.checks.attempt import Attempt
from exercises.checks.ex07_stage_a_dataset import diagnoses as why
from exercises.checks.ex07_stage_a_dataset.alone import (
    NAME,
    SIZE_BYTES,
    is_copy,
    large,
    no_error,
    write_source,
)
from exercises.checks.ex07_stage_a_dataset.children import Child, child, digest
from smallfiles.progress import bytes_text

_STOP_BYTES = SIZE_BYTES // 4
_WAITS_S = 0.5
_ENDS_S = 4.0


def two_at_once(attempt: Attempt, place: Path) -> None:
    """The second comes when the first is half-way."""
    src, folder = write_source(place), place / "node"
    answer = attempt.answer
    with child(answer, src, folder, stop_at=_STOP_BYTES) as first:
        if not first.caught():
            return  # too quick to be caught, by calls that we do not know
        attempt.given(f"{attempt.name}(src, folder) while another job is half-way with the same")
        _no_half(attempt, src, folder, why.FINAL_NAME, unless_given=answer)
        with child(answer, src, folder) as second:
            early = second.report(_WAITS_S)
            if early is not None:
                _judge_second(attempt, early, src)
            first.send(signal.SIGCONT)
            told = first.report()
            late = early if early is not None else second.report()
        _both(attempt, src, told, late)
    left = large(folder, NAME)
    attempt.require(
        not left and digest(folder / NAME) == digest(src),
        got=f"{', '.join([NAME, *left])} in the folder",
        expected=f"a complete {NAME} and nothing else",
        because=why.SHARED_NAME,
    )


def _judge_second(attempt: Attempt, told: dict[str, Any], src: Path) -> None:
    if told["error"] is not None:
        shared = told["error"] == "FileNotFoundError"
        raise attempt.wrong(
            f"the second: {told['text']}", "a complete copy", why.SHARED_NAME if shared else why.REFUSED
        )
    is_copy(attempt, told, src, why.GIVEN_HALF)


def _both(attempt: Attempt, src: Path, first: dict[str, Any] | None, second: dict[str, Any] | None) -> None:
    for name, told in (("first", first), ("second", second)):
        if told is None:
            raise attempt.wrong(f"the {name} did not return", "two complete copies, or one", why.STUCK)
        if told["error"] is not None:
            raise attempt.wrong(f"the {name}: {told['text']}", "a complete copy", why.SHARED_NAME)
        is_copy(attempt, told, src, why.SHARED_NAME)


def _no_half(
    attempt: Attempt, src: Path, folder: Path, because: str, unless_given: Callable[..., Any]
) -> None:
    """Refuse half a copy under the final name; if a second call gives it out, that is told first."""
    half = folder / NAME
    if not half.exists() or digest(half) == digest(src):
        return
    size = half.stat().st_size
    with child(unless_given, src, folder) as second:
        told = second.report(_WAITS_S)
    if told is not None and told["error"] is None and told["digest"] != digest(src):
        raise attempt.wrong(f"the second gave out {bytes_text(size)}", "a complete copy", why.GIVEN_HALF)
    raise attempt.wrong(
        f"{NAME} of {bytes_text(size)}, while the first still copies",
        f"no {NAME} until it is complete",
        because,
    )


def ended_by_sigterm(attempt: Attempt, place: Path) -> None:
    """The scheduler's first word."""
    src, folder = write_source(place), place / "node"
    folder.mkdir(mode=0o700)
    neighbour = folder / "val.arrow"
    neighbour.write_bytes(b"another job's" * 10_000)
    with child(attempt.answer, src, folder, stop_at=_STOP_BYTES) as one:
        if not one.caught():
            return
        attempt.given(f"{attempt.name}(src, folder), ended by SIGTERM in the middle of the copy")
        one.send(signal.SIGTERM)
        one.send(signal.SIGCONT)
        ended = one.ended(_ENDS_S)
        _no_success(attempt, one, ended)
    left = large(folder, neighbour.name)
    attempt.require(neighbour.exists(), got="val.arrow is gone", expected="it to stay", because=why.DELETES)
    attempt.require(
        NAME not in left,
        got=f"half of {NAME}",
        expected="nothing",
        because=f"{why.TERM_HALF}: {why.TERM_PART}",
    )
    attempt.require(not left, got=f"{', '.join(left)} left", expected="nothing", because=why.TERM_PART)


def _no_success(attempt: Attempt, one: Child, ended: bool) -> None:
    attempt.require(
        ended and one.code != 0,
        got=f"exit code {one.code}" if ended else f"it still runs {_ENDS_S:g} s later",
        expected="an end, with a code other than 0",
        because=why.TERM_IGNORED,
    )


def ended_by_sigkill(attempt: Attempt, place: Path) -> None:
    """Nobody can act on it but the next."""
    src, folder = write_source(place), place / "node"
    with child(attempt.answer, src, folder, stop_at=_STOP_BYTES) as one:
        if not one.caught():
            return
        one.send(signal.SIGKILL)
        one.ended()
    attempt.given(f"{attempt.name}(src, folder) after another job was killed in the middle of the copy")
    with child(attempt.answer, src, folder) as other:
        told = other.report()
    if told is None:
        raise attempt.wrong("nothing: it waits", "a complete copy", why.KILL_STUCK)
    is_copy(attempt, no_error(attempt, told), src, why.GIVEN_HALF)
    left = large(folder, NAME)
    attempt.require(
        not left, got=f"{', '.join(left)} of the killed job", expected="nothing of it", because=why.KILL_LEFT
    )


CASES: tuple[Callable[[Attempt, Path], None], ...] = (two_at_once, ended_by_sigterm, ended_by_sigkill)
