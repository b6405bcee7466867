"""Exercise 05: which shards does this worker of this rank read, in this epoch, and when does a rank end?

Answers are tried over a grid of ranks, workers and shards, fewer shards than processes included, and
judged by what all processes together read. The trap it teaches: every process decides alone, so what
it decides may follow from its arguments only. Within one Python process a set always has the same order,
so shard names hash differently here from call to call, as strings do from process to process. Notebook 05
sends participants here.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from exercises.checks import Attempt, check, diagnose

Hand: TypeAlias = list[str]
Hands: TypeAlias = dict[tuple[int, int], Hand]
Formula: TypeAlias = Callable[[Hand, int, int, int, int], Hand]

# Ranks, workers of each, shards. In the first case all known mistakes differ.
GRID = ((2, 3, 16), (2, 3, 4), *itertools.product((1, 2, 3, 8), (1, 2, 5), (1, 2, 3, 7, 20, 60)))
EPOCH_GRID = ((2, 3, 16), (1, 1, 60), (2, 2, 60), (3, 2, 7), (2, 5, 3), (8, 5, 60))
SEED = 5
_NONE = "with fewer shards than processes some get none; return an empty list for them"
_CROSSED = "you crossed ranks and workers: a rank has as many processes as workers: rank * workers + worker"
_ALIKE = {
    (True, True): "every process reads the same: neither rank nor worker decides what is left to others",
    (True, False): "you forgot the workers: all of a rank read the same, so samples come once for each",
    (False, True): "you forgot the ranks: all GPUs train on the same samples, so more GPUs gain nothing",
}
_HASHED = "this depends on the order of a set, or on hash(), which differs in each process; use the list's"
_CHANCE = "the same call gave two different answers: leave nothing to chance but random.Random(seed …)"
_OWN_DECK = (
    "each process shuffles a deck of its own, as with rank or worker in the seed; use seed and epoch only"
)
_GLOBAL = (
    "your function changes the generator that the whole program uses, and with it the random crops of the "
)
_GLOBAL += 'training: make a generator of its own, random.Random(f"{seed} {epoch}")'
_LOST = "no shard is read twice, but some are left to nobody. Rounding down with // does that: deal in turn"
_AGAIN = "some shards are given to several processes: each process must leave to the others what is theirs"
_NOTHING = "no process got a shard: return the shards of this process"
_LATE = "late ranks get less, and others wait: split over the ranks first, then each share over its workers"


def _in_turn(shards: Hand, rank: int, ranks: int, worker: int, workers: int) -> Hand:
    return shards[rank * workers + worker :: ranks * workers]


def _slice(shards: Hand, rank: int, ranks: int, worker: int, workers: int) -> Hand:
    place, length = rank * workers + worker, len(shards) // (ranks * workers)
    return shards[place * length : (place + 1) * length]


def _blocks(shards: Hand, rank: int, ranks: int, worker: int, workers: int) -> Hand:
    of_rank = shards[rank * (len(shards) // ranks) :][: len(shards) // ranks]
    return of_rank[worker * (len(of_rank) // workers) :][: len(of_rank) // workers]


_ROUNDED = "rounding down loses the tail: no process reads what is left after equal slices"
_FROM_1 = "ranks and workers count from 0, as SLURM_PROCID and worker ids do; yours begin at 1"
_SUM = "rank + worker is the same number for different processes, such as 1 + 0 and 0 + 1"
# What would have given these shards, and the sentence that helps.
FORMULAS: tuple[tuple[Formula, str], ...] = (
    (lambda shards, rank, ranks, worker, workers: shards[rank::workers][worker::ranks], _CROSSED),
    (_slice, _ROUNDED),
    (_blocks, f"{_ROUNDED}, first of the ranks and then of the workers"),
    (lambda shards, rank, *others: _in_turn(shards[1:], rank, *others), _FROM_1),
    (lambda shards, rank, ranks, worker, workers: shards[rank + worker :: ranks * workers], _SUM),
)


class Name(str):
    """The name of a shard, with the hash that it has in process number `salt`."""

    salt = 0
    __slots__ = ()
    __eq__ = str.__eq__

    def __hash__(self) -> int:
        return hash((Name.salt, str(self)))


@dataclass(frozen=True)
class Case:
    """How many ranks there are, workers of each, and shards."""

    ranks: int
    workers: int
    shards: int

    def __str__(self) -> str:
        return f"{self.shards} shards and {self.ranks} ranks of {self.workers} workers"

    @property
    def names(self) -> Hand:
        """Names of the shards, in order."""
        return [f"shard-{number:06d}.tar" for number in range(self.shards)]

    @property
    def places(self) -> list[tuple[int, int]]:
        """(rank, worker) of every process."""
        return list(itertools.product(range(self.ranks), range(self.workers)))

    def dealt(self, formula: Formula) -> Hands:
        """What a formula would give."""
        return {(r, w): formula(self.names, r, self.ranks, w, self.workers) for r, w in self.places}

    def faults(self, hands: Hands) -> str:
        """What is wrong with all hands together, in words; empty if each shard is read once."""
        read = Counter(itertools.chain(*hands.values()))
        never, foreign = set(self.names) - set(read), set(read) - set(self.names)
        again = [name for name, times in read.items() if times > 1]
        parts = ((again, "read more than once"), (never, "never read"), (foreign, "that are no shards"))
        return ", ".join(f"{len(some)} {what} ({min(some)})" for some, what in parts if some)


def _ask(attempt: Attempt, case: Case, *more: int) -> Hands:
    """Ask every process of a case, each with hashes of its own; the second task adds seed and epoch."""
    hands = {place: _ask_one(attempt, case, place, more, salt) for salt, place in enumerate(case.places, 100)}
    times = "".join(f", {name} {n}" for name, n in zip(("seed", "epoch"), more, strict=False))
    attempt.given(f"{attempt.name} in every process of {case}{times}")
    return hands


def _ask_one(attempt: Attempt, case: Case, place: tuple[int, int], more: tuple[int, ...], salt: int) -> Hand:
    Name.salt = salt
    numbers = (place[0], case.ranks, place[1], case.workers, *more)
    shown = f"a list of {case.shards} shards, {', '.join(map(str, numbers))}"
    got = attempt([Name(name) for name in case.names], *numbers, _shown=shown)
    because = "the task asks for a list; list(…) makes one of a generator, a tuple or an array"
    if isinstance(got, list):
        because = "a reader opens files by name: return names out of shards, not their numbers"
    names = isinstance(got, list) and all(isinstance(name, str) for name in got)
    attempt.require(names, got, "a list of names taken from shards", because)
    return [str(name) for name in got]


def _judge(attempt: Attempt, case: Case, *more: int) -> Hands:
    """Refuse shards that are read twice or never, and processes that read more than others."""
    hands = _ask(attempt, case, *more)
    faults, gave = case.faults(hands), attempt.gave
    if faults:
        because = _outside(attempt, case, hands, more)
        because = because or (_why_shuffled(attempt, case, hands, *more) if more else _why(case, hands))
        attempt.given(gave)
        raise attempt.wrong(f"of {case.shards} shards: {faults}", "each with exactly one process", because)
    of_rank = [sum(len(hands[r, w]) for w in range(case.workers)) for r in range(case.ranks)]
    workers = [[len(hands[r, w]) for w in range(case.workers)] for r in range(case.ranks)]
    because = "a rank or worker with less to read waits for the others at each step, or hangs; deal in turn"
    if [*map(len, hands.values())] == [*map(len, case.dealt(_in_turn).values())]:
        because = _LATE
    for counts in (of_rank, *workers):
        even = max(counts) - min(counts) <= 1
        attempt.require(even, f"{min(counts)} to {max(counts)} shards", "one shard apart at most", because)
    return hands


def _outside(attempt: Attempt, case: Case, hands: Hands, more: tuple[int, ...]) -> str:
    """Whether an answer hangs on more than its arguments: chance, or the hash of this process."""
    for place in hands:
        once, again, elsewhere = (_ask_one(attempt, case, place, more, salt) for salt in (1, 1, 2))
        if not once == again == elsewhere:
            return _CHANCE if once != again else _HASHED
    return ""


def _why(case: Case, hands: Hands) -> str:
    """By who reads the same as whom, by what known formulas would have given, or by what is wrong."""
    if not any(hands.values()):
        return _NOTHING
    workers_alike = case.workers > 1 and all(hands[r, w] == hands[r, 0] for r, w in case.places)
    ranks_alike = case.ranks > 1 and all(hands[r, w] == hands[0, w] for r, w in case.places)
    if workers_alike or ranks_alike:
        return _ALIKE[workers_alike, ranks_alike]
    if all(hands.values()) and case.shards < len(hands):
        return "a process without a shard of its own returns an empty list; a spare shard is read twice"
    read = [name for hand in hands.values() for name in hand]
    otherwise = _LOST if len(set(read)) == len(read) else _AGAIN
    return next((because for formula, because in FORMULAS if case.dealt(formula) == hands), otherwise)


def _why_shuffled(attempt: Attempt, case: Case, hands: Hands, seed: int, epoch: int) -> str:
    """Explain what is wrong with the deal, or that the processes do not deal from one deck.

    How often shards are read does not depend on the seed where all processes deal from one deck.
    """
    times = [
        sorted(Counter(itertools.chain(*_ask(attempt, case, seed + n, epoch).values())).values())
        for n in range(4)
    ]
    if any(counts != times[0] for counts in times):
        return _OWN_DECK
    deck = _ask_one(attempt, Case(1, 1, case.shards), (0, 0), (seed, epoch), 0)
    names = dict(zip(deck, case.names, strict=False)) if sorted(deck) == case.names else {}
    return _why(case, {place: [names.get(name, name) for name in hand] for place, hand in hands.items()})


@check(
    buys="Sixty-four GPUs now read the set once between them, and none trains on another's images.",
    errors={IndexError: _NONE, ValueError: _NONE},
)
def my_shards(attempt: Attempt) -> None:
    """`my_shards(shards, rank, ranks, worker, workers)` deals every shard to one process."""
    for numbers in GRID:
        _judge(attempt, Case(*numbers))


_TYPE = 'a seed is one number or text, such as random.Random(f"{seed} {epoch}")'


@check(
    buys="Each epoch has an order of its own, and a run resumed in epoch 7 finds that of epoch 7.",
    errors={TypeError: _TYPE, IndexError: _NONE},
)
def my_shards_in_epoch(attempt: Attempt) -> None:
    """`my_shards_in_epoch(shards, rank, ranks, worker, workers, seed, epoch)` shuffles, then deals."""
    for numbers, epoch in itertools.product(EPOCH_GRID, (0, 1)):
        _judge(attempt, Case(*numbers), SEED, epoch)
    one, four = Case(1, 1, 60), Case(2, 2, 60)
    because = _outside(attempt, one, _ask(attempt, one, SEED, 1), (SEED, 1))
    attempt.require(not because, "another order when asked again", "the same order", because)
    first, second, other = (_ask(attempt, four, seed, e) for seed, e in ((SEED, 0), (SEED, 1), (SEED + 1, 1)))
    attempt.given(f"{attempt.name} for {four}, epochs 0 and 1")
    still = "the epoch does not reach the seed of the shuffle (the mistake of a forgotten set_epoch)"
    if all(hand == sorted(hand) for hand in first.values()):
        still = "nothing is shuffled: shuffle a copy of the list by seed and epoch, then deal"
    kept = all(sorted(first[place]) == sorted(second[place]) for place in first)
    after = "you shuffle after dealing: shuffle the whole list first, then deal it out"
    for holds, got, expected, because in (
        (first != second, "the same shards in both epochs", "another order in each", still),
        (not kept, "each process keeps its shards", "shards that change hands", after),
        (other != second, f"that of seed {SEED}", "another order", "the seed does not reach the shuffle"),
    ):
        attempt.require(holds, got, expected, because)
    _expect_untouched(attempt, four)


def _expect_untouched(attempt: Attempt, case: Case) -> None:
    """Refuse an answer that seeds a global generator; the order that it returns is right."""
    before = _global_states()
    _ask(attempt, case, SEED, 0)
    touched = [name for name, state in _global_states().items() if state != before[name]]
    expected = "global generators as they were"
    attempt.require(not touched, f"another state of {', '.join(touched)}", expected, _GLOBAL)


def _global_states() -> dict[str, bytes]:
    return {
        "random": pickle.dumps(random.getstate()),
        "np.random": pickle.dumps(np.random.get_state()),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


# --- Task 3: as many batches on each rank ---


class Loader:
    """The batches of a rank, numbered; notes how many were read, in how many passes.

    Args:
        size: How many a pass has.
    """

    def __init__(self, size: int) -> None:
        self.size, self.read, self.passes = size, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for number in range(self.size):
            self.read += 1
            yield number

    def __deepcopy__(self, memo: dict[int, Any]) -> Loader:
        return self


_NO_LIST = "batches come while you loop over them, as from a DataLoader: they cannot be counted or added"


@check(
    buys="Ranks with unequal shards end together: the last step of an epoch waits for nobody.",
    errors={TypeError: _NO_LIST, AttributeError: _NO_LIST},
)
def exactly(attempt: Attempt) -> None:
    """`exactly(batches, count)` gives so many batches, whatever a rank has."""
    for size, count in ((3, 3), (5, 3), (3, 8), (1, 4), (4, 8), (2, 0)):
        loader = Loader(size)
        got = attempt(loader, count, _shown=f"{size} batches, {count}")
        with attempt.guarded():
            given = iter(got)
            found = list(itertools.islice(given, 1))
            ahead = loader.read
            found += itertools.islice(given, count + size)
        wanted = [number % size for number in range(count)]
        because = diagnose(
            found,
            ([*range(min(size, count))], "a rank with too few batches begins again, or others wait for it"),
            ([*range(size)], "a rank with too many batches stops after `count`, or waits for the others"),
            ([*range(size), *[size - 1] * (count - size)], "begin again with the first, not with the last"),
            otherwise="give the batches in their order, from the first on, `count` in all",
        )
        attempt.require(found == wanted, f"batches {found}", f"batches {wanted}", because)
        because = "a list of batches fills the memory with images; yield one at a time"
        attempt.require(ahead <= 2, f"{ahead} batches read for the first one", "one", because)
        because = "itertools.cycle, or a list, keeps all batches of the first pass in memory; read them again"
        needed = -(-count // size)
        attempt.require(loader.passes >= needed, f"{loader.passes} pass", f"{needed} passes", because)
