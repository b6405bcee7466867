"""What went wrong when processes dealt shards to themselves: by who reads the same as whom, and by what
known formulas would have given.

The trap: several mistakes give one result in small cases, so the grid begins with one (2 ranks of 3
workers, 16 shards) in which they all differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from exercises.checks import Attempt
from exercises.checks.ex05_shard_a_dataset.processes import Case, Hand, Hands, Round, ask_one

Formula: TypeAlias = Callable[[Hand, int, int, int, int], Hand]

OF_THIS_PROCESS = (
    "the result hangs on hash() or on the order of a set, and texts hash differently in each process; keep "
    "to the order of the list"
)
CHANCE = "asked twice the same it answers differently: dealing leaves nothing to chance"
SEEDLESS = "asked twice the same it answers differently: shuffle with random.Random(…) of seed and epoch"
OWN_DECK = (
    "the processes do not agree on one order: with rank or worker in the seed each shuffles a deck of its "
    "own; shuffle by seed and epoch only, then deal"
)


def _slice(extra: int = 0, *, round_up: bool = False) -> Formula:
    """Slices of equal length, one for each process."""

    def formula(shards: Hand, rank: int, ranks: int, worker: int, workers: int) -> Hand:
        count, place = ranks * workers, rank * workers + worker
        length = -(-len(shards) // count) if round_up else len(shards) // count
        return shards[place * length : (place + 1) * length + extra]

    return formula


def _stride(start: Callable[[int, int, int, int], int]) -> Formula:
    """Every shard whose number leaves one remainder."""

    def formula(shards: Hand, rank: int, ranks: int, worker: int, workers: int) -> Hand:
        return shards[start(rank, ranks, worker, workers) :: ranks * workers]

    return formula


_CROSSED = (
    "you crossed ranks and workers: a rank has as many processes as workers, so rank * workers + worker"
)
_FROM_ZERO = "ranks and workers count from 0, as SLURM_PROCID and worker ids do; yours begin at 1"
_FORMULAS: tuple[tuple[Formula, str], ...] = (
    (lambda shards, rank, ranks, worker, workers: shards[rank::workers][worker::ranks], _CROSSED),
    (lambda shards, rank, ranks, worker, workers: shards[worker::ranks][rank::workers], _CROSSED),
    (
        _slice(),
        "rounding down loses the tail: what is left after equal slices is nobody's, and with fewer shards "
        "than processes that is everything",
    ),
    (_slice(1), "the slices overlap: the last shard of one is the first of the next"),
    (_stride(lambda rank, ranks, worker, workers: rank * workers + worker + 1), _FROM_ZERO),
    (
        lambda shards, rank, ranks, worker, workers: shards[rank + 1 :: ranks][worker + 1 :: workers],
        _FROM_ZERO,
    ),
    (
        _stride(lambda rank, ranks, worker, workers: rank + worker),
        "rank + worker is the same number for different processes, such as 1 + 0 and 0 + 1",
    ),
)


def of_the_sum(attempt: Attempt, dealt: Round) -> str:
    """Why some shards came twice or never."""
    if dealt.is_each_once:
        return ""
    gave = attempt.gave
    because = of_reasons_outside(attempt, dealt) or _by_likeness(dealt) or _by_formula(dealt)
    attempt.gave = gave
    if because:
        return because
    if dealt.more:
        return OWN_DECK
    return "each process must leave to the others what is theirs: split by rank, then by worker"


def of_reasons_outside(attempt: Attempt, dealt: Round) -> str:
    """Whether an answer hangs on more than its arguments: chance, or the hash of this process."""
    for place in dealt.hands:
        once, again, elsewhere = (ask_one(attempt, dealt.case, place, dealt.more, salt) for salt in (1, 1, 2))
        if once != again:
            return SEEDLESS if dealt.more else CHANCE
        if once != elsewhere:
            return OF_THIS_PROCESS
    return ""


def _by_likeness(dealt: Round) -> str:
    """Who reads the same as whom."""
    case, hands = dealt.case, dealt.hands
    workers_alike = case.workers > 1 and all(hands[r, w] == hands[r, 0] for r, w in case.places)
    ranks_alike = case.ranks > 1 and all(hands[r, w] == hands[0, w] for r, w in case.places)
    if workers_alike and ranks_alike:
        return "every process reads the same: neither rank nor worker decides what is left to others"
    if workers_alike:
        return "you forgot the workers: all of a rank read the same shards, so samples come once for each"
    if ranks_alike:
        return "you forgot the ranks: all GPUs train on the same samples, so more GPUs gain nothing"
    return _spare(dealt)


def _spare(dealt: Round) -> str:
    """Whether processes that should have had nothing took a shard that is somebody else's."""
    owned = sum(len(set(hand)) for hand in dealt.hands.values())
    everyone = all(dealt.hands.values()) and dealt.case.shards < len(dealt.hands) == owned
    if everyone and not any(name not in dealt.case.names for hand in dealt.hands.values() for name in hand):
        return "a process without a shard of its own returns an empty list; a spare shard is read twice"
    return ""


def _by_formula(dealt: Round) -> str:
    if dealt.more:
        return ""
    return next((because for f, because in _FORMULAS if _hands(dealt.case, f) == dealt.hands), "")


def _hands(case: Case, formula: Formula) -> Hands:
    return {(r, w): formula(case.names, r, case.ranks, w, case.workers) for r, w in case.places}


def of_the_balance(dealt: Round) -> str:
    """Why some processes have more to read than others."""
    lengths = [len(hand) for hand in dealt.hands.values()]
    rounded_up, in_turn = (
        [len(hand) for hand in _hands(dealt.case, formula).values()]
        for formula in (_slice(round_up=True), _stride(lambda r, ranks, w, workers: r * workers + w))
    )
    if lengths == in_turn:
        return (
            "your count runs through all workers of one rank first, so late ranks get less, wait in the "
            "gradient exchange and may hang; split over the ranks first, then each share over its workers"
        )
    if lengths == rounded_up:
        return "slices rounded up leave too little for the last process, which then waits; deal in turn"
    return "a rank with less to read waits for the others at each step, or hangs; deal in turn"


def of_stillness(hands: Sequence[Hand]) -> str:
    """Why two epochs have one order."""
    if all(hand == sorted(hand) for hand in hands):
        return "nothing is shuffled: shuffle a copy of the list by seed and epoch, then deal"
    return "the epoch does not reach the seed of the shuffle (the mistake of a forgotten set_epoch)"
