"""Exercise 05: which shards does this worker of this rank read, in this epoch?

Answers are tried over a grid of ranks, workers and shards, fewer shards than processes included, and
judged by what all processes together read. The trap it teaches: every process decides alone, so what
it decides may follow from its arguments only. Notebook 05 sends participants here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from exercises.checks import Attempt, check
from exercises.checks.ex05_shard_a_dataset import mistakes
from exercises.checks.ex05_shard_a_dataset.processes import Case, Round, ask, neighbours

GRID = ((2, 3, 16), (2, 3, 4), *itertools.product((1, 2, 3, 8), (1, 2, 5), (1, 2, 3, 7, 20, 60)))
EPOCH_GRID = ((2, 3, 16), (1, 1, 60), (2, 2, 60), (3, 2, 7), (2, 5, 3), (8, 5, 60))
SEED = 5
_SOME_GET_NONE = "with fewer shards than processes some get none; return an empty list for them"


@check(
    buys="Sixty-four GPUs now read the set once between them, and nobody trains twice on the same images.",
    errors={
        IndexError: _SOME_GET_NONE,
        ValueError: _SOME_GET_NONE,
    },
)
def my_shards(attempt: Attempt) -> None:
    """`my_shards(shards, rank, ranks, worker, workers)` deals every shard to one process."""
    for numbers in GRID:
        dealt = ask(attempt, Case(*numbers))
        _refuse_wrong_sum(attempt, dealt)
        _refuse_uneven(attempt, dealt)


@check(
    buys="Each epoch has an order of its own, and a run resumed in epoch 7 finds that of epoch 7.",
    errors={
        TypeError: "if it is about the seed: a seed is one number or text, such as "
        'random.Random(f"{seed} {epoch}"); if not, compare your first line with the task',
        IndexError: _SOME_GET_NONE,
    },
)
def my_shards_in_epoch(attempt: Attempt) -> None:
    """`my_shards_in_epoch(shards, rank, ranks, worker, workers, seed, epoch)` shuffles, then deals."""
    for numbers in EPOCH_GRID:
        for epoch in (0, 1):
            dealt = ask(attempt, Case(*numbers), SEED, epoch)
            _refuse_wrong_sum(attempt, dealt)
            _refuse_uneven(attempt, dealt)
    _refuse_other_answers(attempt)
    _refuse_still(attempt)


def _refuse_wrong_sum(attempt: Attempt, dealt: Round) -> None:
    attempt.require(
        dealt.is_each_once,
        got=dealt.found,
        expected="every shard with exactly one process",
        because=mistakes.of_the_sum(attempt, dealt),
    )


def _refuse_uneven(attempt: Attempt, dealt: Round) -> None:
    of_rank = [len(dealt.of_rank(rank)) for rank in range(dealt.case.ranks)]
    _refuse_wide(attempt, dealt, "the ranks", of_rank)
    for rank in range(dealt.case.ranks):
        of_worker = [len(dealt.hands[rank, worker]) for worker in range(dealt.case.workers)]
        _refuse_wide(attempt, dealt, f"the workers of rank {rank}", of_worker)


def _refuse_wide(attempt: Attempt, dealt: Round, who: str, counts: Sequence[int]) -> None:
    attempt.require(
        max(counts) - min(counts) <= 1,
        got=f"{who} read {min(counts)} to {max(counts)} shards",
        expected=f"{who} within one shard of each other",
        because=mistakes.of_the_balance(dealt),
    )


def _refuse_other_answers(attempt: Attempt) -> None:
    """Refuse what is no function of its arguments, even if all processes happened to agree."""
    dealt = ask(attempt, Case(1, 1, 60), SEED, 1)
    because = mistakes.of_reasons_outside(attempt, dealt)
    attempt.require(
        not because,
        got="another order when asked again",
        expected="the same order, whenever and wherever it is asked",
        because=because,
    )


def _refuse_still(attempt: Attempt) -> None:
    """Refuse orders that do not change, or change too little, from epoch to epoch."""
    case = Case(2, 2, 60)
    first, second = (ask(attempt, case, SEED, epoch).hands for epoch in (0, 1))
    attempt.given(f"{attempt.name} for {case}, seed {SEED}, epochs 0 and 1")
    attempt.require(
        first != second,
        got="the same shards in the same order in both epochs",
        expected="another order in each epoch",
        because=mistakes.of_stillness(list(first.values())),
    )
    attempt.require(
        any(sorted(first[place]) != sorted(second[place]) for place in first),
        got="each process keeps its shards, in another order",
        expected="shards that change hands from epoch to epoch",
        because="you shuffle after dealing: shuffle the whole list first, then deal it out",
    )
    _refuse_turned(attempt)
    other = ask(attempt, case, SEED + 1, 1).hands
    attempt.require(
        other != second,
        got=f"the order of seed {SEED}",
        expected="another order for another seed",
        because="the seed does not reach the shuffle, so all runs share one luck",
    )


def _refuse_turned(attempt: Attempt) -> None:
    first, second = (ask(attempt, Case(1, 1, 60), SEED, epoch).hands[0, 0] for epoch in (0, 1))
    kept = len(neighbours(first) & neighbours(second))
    attempt.require(
        kept < len(first) // 2,
        got=f"{kept} of {len(first)} shards keep their neighbour from epoch to epoch",
        expected="a shuffled order",
        because="turning or reversing the list keeps neighbours together; shuffle it",
    )


__all__ = ["my_shards", "my_shards_in_epoch"]
