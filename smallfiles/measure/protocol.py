"""How we measure: everything interleaved, round by round, in an order that changes.

Measured one after the other, the first case meets a cold cache and a fast clock and the last a warm
cache and a hot processor. Interleaved, a disturbance hits all of them, and pairs of one round can be
compared. The trap: a fixed order within the round lets one case always inherit its neighbour's
cache; so each round shuffles, from a seed. Notebook 01 teaches it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from smallfiles.errors import UsageError
from smallfiles.measure.workers import reason
from smallfiles.progress import progress

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Outcome:
    """One run of one case: what was done and how long it took."""

    samples: int
    bytes: int
    seconds: float
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rate_per_s(self) -> float:
        """Samples per second."""
        return self.samples / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Args:
        name: Unique in its run.
        run: Does it once and times itself, so that preparation stays outside.
        warm_up: Whether one run before the first round is thrown away.
    """

    name: str
    run: Callable[[], Outcome]
    warm_up: bool = True


def interleaved(
    cases: Sequence[Case], repeats: int, seed: int, what: str, failed: dict[str, str] | None = None
) -> dict[str, list[Outcome]]:
    """Run every case `repeats` times, one of each a round, shuffled within the round.

    Args:
        cases: What to measure.
        repeats: Number of rounds.
        seed: Of the order within rounds.
        what: For the progress shown.
        failed: Gets the reason for each case that fails, which takes no part from then on; None lets a
            failure end the measurement.

    Returns:
        The outcomes of each case by name, in the order of the rounds; those that failed are left out.

    Raises:
        UsageError: Fewer than one round, or two cases of one name.
    """
    if repeats < 1:
        raise UsageError(f"{repeats} rounds were asked for", expected="at least 1", next_step="Use 5 or more")
    outcomes: dict[str, list[Outcome]] = {case.name: [] for case in cases}
    if len(outcomes) < len(cases):
        raise UsageError("two cases have the same name", expected="names that differ", next_step="Rename one")
    warm = [case for case in cases if case.warm_up]
    runs = [(case, False) for case in warm]
    for number in range(repeats):
        runs += [(case, True) for case in random.Random(f"{seed}/{number}").sample(list(cases), len(cases))]
    with progress(len(runs), f"measuring {what}", unit="runs") as shown:
        for case, counts in runs:
            outcome = attempt(case.name, case.run, failed) if case.name in outcomes else None
            if outcome is None:
                outcomes.pop(case.name, None)
            elif counts:
                outcomes[case.name].append(outcome)
            shown.advance()
    return outcomes


def attempt(name: str, run: Callable[[], _Result], failed: dict[str, str] | None) -> _Result | None:
    """What `run` returns, or None and the reason under its name in `failed`.

    Args:
        name: Of the case.
        run: Called once.
        failed: Gets the reason; None lets the failure pass.
    """
    if failed is None:
        return run()
    try:
        return run()
    except Exception as error:  # libraries of others raise anything
        failed[name] = reason(error)
        return None
