"""Task 1: what to mend, tried on cases that each tell one mistake from the others."""

from __future__ import annotations

import random
from dataclasses import dataclass

from exercises.checks import Attempt

TRAINING = "training"
_STAGES = {"augment": 0.01, "read": 0.02, "decode": 0.03}


@dataclass(frozen=True)
class Case:
    """Arguments, and what it means to get them wrong.

    Args:
        stages: Seconds by stage.
        workers: How many.
        step_s: Seconds of a step of training.
        because: The diagnosis of the other answer.
    """

    stages: dict[str, float]
    workers: int
    step_s: float
    because: str

    @property
    def longest(self) -> str:
        """The stage that takes most."""
        return max(self.stages, key=lambda stage: self.stages[stage])

    @property
    def right(self) -> str:
        """What limits the training."""
        if self.workers and sum(self.stages.values()) / self.workers <= self.step_s:
            return TRAINING
        return self.longest


_KEEPS_UP = (
    "batches come faster than they are used here, so no stage needs mending: first compare the time of a "
    "batch with a step"
)
_SUM = "a worker does all stages for a batch, one after the other: compare their sum with the step"
_DIVIDE = (
    "workers work at the same time, so batches come so many times as often: divide the sum by their number"
)
_NONE = "with 0 workers the trainer makes each batch itself and waits for it, however long a step is"
_EQUAL = "batches that come exactly as fast as they are used are fast enough: <= and not <"
_ALL = "the number of stages, their names and their order may be others than in the notebook"

CASES = (
    Case(_STAGES, 1, 0.01, _SUM),
    Case(_STAGES, 1, 0.1, _KEEPS_UP),
    Case(_STAGES, 1, 0.04, _SUM),
    Case(_STAGES, 2, 0.02, _SUM),
    Case(_STAGES, 4, 0.02, _DIVIDE),
    Case(_STAGES, 0, 0.1, _NONE),
    Case({"read": 0.5, "collate": 0.25}, 3, 0.25, _EQUAL),
    Case({"transfer": 1.0}, 1, 0.5, _ALL),
)


def try_cases(attempt: Attempt) -> None:
    """Refuse an answer that gets a case wrong."""
    chance = random.Random(8)
    more = [
        Case(
            {name: chance.random() for name in chance.sample(("read", "unpack", "decode", "collate"), 3)},
            chance.randint(0, 4),
            chance.random(),
            _ALL,
        )
        for _ in range(40)
    ]
    for case in (*CASES, *more):
        got = attempt(case.stages, case.workers, case.step_s)
        attempt.require(
            isinstance(got, str),
            got=got,
            expected=f"{case.right!r}",
            because="return the name, not the seconds: max(stages, key=stages.get)",
        )
        attempt.expect(case.right, got, because=_because(case, got))


def _because(case: Case, got: str) -> str:
    shortest = min(case.stages, key=lambda stage: case.stages[stage])
    if got not in (*case.stages, TRAINING):
        return "return a name from stages, letter for letter, or training"
    if case.right == case.longest and got == max(case.stages) != TRAINING:
        return "max(stages) compares names, not seconds: max(stages, key=stages.get)"
    if case.right == case.longest and got == shortest:
        return "that is the shortest stage; mending it gains least"
    if case.right != TRAINING and got != TRAINING:
        return "another stage takes longer"
    return case.because
