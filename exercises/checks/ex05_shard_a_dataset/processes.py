"""A cluster on paper: every process asked for its shards, as if each lived on a machine of its own.

The trap: within one Python process a set always has the same order, so a check that asks from one
process finds nothing wrong with it. Here shard names hash differently from call to call, as strings do
from process to process.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeAlias

from exercises.checks import Attempt

Hand: TypeAlias = list[str]
Hands: TypeAlias = dict[tuple[int, int], Hand]


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
        counts = ((self.shards, "shard"), (self.ranks, "rank"), (self.workers, "worker"))
        shards, ranks, workers = (f"{n} {one}{'s' * (n != 1)}" for n, one in counts)
        return f"{shards} and {ranks} of {workers}"

    @property
    def names(self) -> Hand:
        """Names of the shards, in order."""
        return [f"shard-{number:06d}.tar" for number in range(self.shards)]

    @property
    def places(self) -> list[tuple[int, int]]:
        """(rank, worker) of every process."""
        return list(itertools.product(range(self.ranks), range(self.workers)))


@dataclass(frozen=True)
class Round:
    """What every process of a case said that it reads.

    Args:
        case: The cluster.
        more: Seed and epoch, if they were asked for.
        hands: Shards by (rank, worker).
    """

    case: Case
    more: tuple[int, ...]
    hands: Hands

    def of_rank(self, rank: int) -> Hand:
        """Shards of all workers of a rank."""
        return [name for worker in range(self.case.workers) for name in self.hands[rank, worker]]

    @property
    def is_each_once(self) -> bool:
        """Whether all processes together read each shard once, and nothing else."""
        return sorted(itertools.chain(*self.hands.values())) == self.case.names

    @property
    def found(self) -> str:
        """What is wrong with that, in words."""
        read = Counter(itertools.chain(*self.hands.values()))
        again = [name for name, times in read.items() if times > 1]
        never = [name for name in self.case.names if name not in read]
        foreign = [name for name in read if name not in self.case.names]
        parts = [
            f"{len(again)} read more than once ({again[0]} {read[again[0]]} times)" if again else "",
            f"{len(never)} never read ({never[0]})" if never else "",
            f"{len(foreign)} names that are no shards ({foreign[0]!r})" if foreign else "",
        ]
        return f"of {self.case.shards} shards: {', '.join(filter(None, parts))}"


def ask(attempt: Attempt, case: Case, *more: int) -> Round:
    """Ask every process of `case`, each with hashes of its own.

    Args:
        attempt: The answer.
        case: The cluster.
        more: Seed and epoch, in the second task.
    """
    hands = {
        place: ask_one(attempt, case, place, more, salt) for salt, place in enumerate(case.places, start=100)
    }
    times = "".join(f", {name} {n}" for name, n in zip(("seed", "epoch"), more, strict=False))
    attempt.given(f"{attempt.name} in every process of {case}{times}")
    return Round(case, more, hands)


def ask_one(attempt: Attempt, case: Case, place: tuple[int, int], more: tuple[int, ...], salt: int) -> Hand:
    """Ask one process, as process number `salt`."""
    Name.salt = salt
    rank, worker = place
    numbers = (rank, case.ranks, worker, case.workers, *more)
    shown = f"a list of {case.shards} shards, {', '.join(map(str, numbers))}"
    got = attempt([Name(name) for name in case.names], *numbers, _shown=shown)
    attempt.require(
        isinstance(got, list) and all(isinstance(name, str) for name in got),
        got=got,
        expected="a list of names taken from shards",
        because=_kind(got),
    )
    return [str(name) for name in got]


def _kind(got: Any) -> str:
    if isinstance(got, str):
        return "a text is one name; put it into a list"
    if isinstance(got, list):
        return "a reader opens files by name: return names out of shards, not their numbers"
    return "the task asks for a list; list(…) makes one of a generator, a tuple or an array"


def neighbours(hand: Hand) -> set[frozenset[str]]:
    """Pairs of shards that stand side by side, the first and the last included."""
    return {frozenset(pair) for pair in zip(hand, hand[1:] + hand[:1], strict=True)}
