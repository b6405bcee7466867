"""Dealing shards: each known wrong answer gets its own diagnosis, every right way passes."""

import itertools
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from telling import judged

from exercises.checks import ex05_shard_a_dataset as ex05
from exercises.checks.ex05_shard_a_dataset import Case


def right(shards, rank, ranks, worker, workers):
    return shards[rank::ranks][worker::workers]


def slices(round_up, extra=0):
    def answer(shards, rank, ranks, worker, workers):
        count, place = ranks * workers, rank * workers + worker
        length = -(-len(shards) // count) if round_up else len(shards) // count
        return shards[place * length : (place + 1) * length + extra]

    return answer


def a_spare_one(shards, rank, ranks, worker, workers):
    return right(shards, rank, ranks, worker, workers) or shards[:1]


def by_hash(shards, rank, ranks, worker, workers):
    return [name for name in shards if hash(name) % (ranks * workers) == rank * workers + worker]


def by_chance(shards, rank, ranks, worker, workers):
    return right(random.sample(shards, len(shards)), rank, ranks, worker, workers)


def indexing(shards, rank, ranks, worker, workers):
    place = worker * ranks + rank
    return [shards[place], *shards[place + ranks * workers :: ranks * workers]]


WRONG = [
    (lambda s, rank, ranks, worker, workers: s, "every process reads the same"),
    (lambda s, rank, ranks, worker, workers: s[rank::ranks], "forgot the workers"),
    (lambda s, rank, ranks, worker, workers: s[worker::workers], "forgot the ranks"),
    (lambda s, rank, ranks, worker, workers: s[rank::workers][worker::ranks], "crossed"),
    (slices(round_up=False), "loses the tail"),
    (lambda s, rank, ranks, worker, workers: s[rank * workers + worker + 1 :: ranks * workers], "begin at 1"),
    (lambda s, rank, ranks, worker, workers: s[rank + worker :: ranks * workers], "rank + worker"),
    (
        lambda s, rank, ranks, worker, workers: s[rank * workers + worker :: ranks * workers],
        "split over the ranks first",
    ),
    (a_spare_one, "a spare shard is read twice"),
    (by_hash, "order of a set"),
    (by_chance, "nothing to chance"),
    (indexing, "return an empty list"),
    (
        lambda s, rank, ranks, worker, workers: list(range(len(s)))[rank::ranks][worker::workers],
        "not their numbers",
    ),
    (lambda s, rank, ranks, worker, workers: itertools.islice(s, rank, None, ranks), "list(…)"),
]


def by_global_worker(shards, rank, ranks, worker, workers):
    return shards[worker * ranks + rank :: ranks * workers]


def by_even_slices(shards, rank, ranks, worker, workers):
    mine = np.array_split(np.array(shards, dtype=object), ranks)[rank]
    return np.array_split(mine, workers)[worker].tolist()


RIGHT = [right, by_global_worker, by_even_slices, lambda *given: right(sorted(set(given[0])), *given[1:])]


TestMyShards = judged(ex05.my_shards, WRONG, RIGHT)


# The second task


def shuffled(shards, text):
    deck = list(shards)
    random.Random(text).shuffle(deck)
    return deck


def right_in_epoch(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, f"{seed} {epoch}"), rank, ranks, worker, workers)


def after_dealing(shards, rank, ranks, worker, workers, seed, epoch):
    return shuffled(right(shards, rank, ranks, worker, workers), f"{seed} {epoch}")


def own_deck(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, f"{seed} {epoch} {rank}"), rank, ranks, worker, workers)


def without_epoch(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, seed), rank, ranks, worker, workers)


def without_seed(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, epoch), rank, ranks, worker, workers)


def set_shuffled(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(set(shards), f"{seed} {epoch}"), rank, ranks, worker, workers)


def seeded_by_a_pair(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, (seed, epoch)), rank, ranks, worker, workers)


def starving(shards, rank, ranks, worker, workers, seed, epoch):
    return shuffled(shards, f"{seed} {epoch}")[rank * workers + worker :: ranks * workers]


WRONG_IN_EPOCH = [
    (lambda s, r, n, w, m, seed, epoch: right(s, r, n, w, m), "nothing is shuffled"),
    (after_dealing, "after dealing"),
    (own_deck, "deck of its own"),
    (without_epoch, "the epoch does not reach"),
    (without_seed, "the seed does not reach"),
    (set_shuffled, "order of a set"),
    (seeded_by_a_pair, "a seed is one number or text"),
    (starving, "split over the ranks first"),
]


def by_numpy(shards, rank, ranks, worker, workers, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(len(shards))
    return [shards[number] for number in order[rank::ranks][worker::workers]]


def by_sum_of_seed_and_epoch(shards, rank, ranks, worker, workers, seed, epoch):
    return by_even_slices(shuffled(shards, seed + epoch), rank, ranks, worker, workers)


RIGHT_IN_EPOCH = [right_in_epoch, by_numpy, by_sum_of_seed_and_epoch]
TestMyShardsInEpoch = judged(ex05.my_shards_in_epoch, WRONG_IN_EPOCH, RIGHT_IN_EPOCH)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 40), st.randoms(use_true_random=False))
def test_one_shard_moved_doubled_or_lost_is_always_noticed(ranks, workers, shards, chance):
    case = Case(ranks, workers, shards)
    hands = {(r, w): right(case.names, r, ranks, w, workers) for r, w in case.places}
    assert not case.faults(hands)
    place = chance.choice(case.places)
    hands[place] = hands[place][1:] if hands[place] and chance.random() < 0.5 else [*hands[place], "x.tar"]
    assert case.faults(hands)
