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


def equal_slices(shards, rank, ranks, worker, workers):
    length, place = len(shards) // (ranks * workers), rank * workers + worker
    return shards[place * length : (place + 1) * length]


def a_spare_one(shards, rank, ranks, worker, workers):
    return right(shards, rank, ranks, worker, workers) or shards[:1]


def by_hash(shards, rank, ranks, worker, workers):
    return [name for name in shards if hash(name) % (ranks * workers) == rank * workers + worker]


def by_chance(shards, rank, ranks, worker, workers):
    return right(random.sample(shards, len(shards)), rank, ranks, worker, workers)


def indexing(shards, rank, ranks, worker, workers):
    place = worker * ranks + rank
    return [shards[place], *shards[place + ranks * workers :: ranks * workers]]


def starving(shards, rank, ranks, worker, workers):
    return shards[rank * workers + worker :: ranks * workers]


def slices(shards, number, count, more=0):
    length = len(shards) // count
    return shards[number * length : (number + 1) * length + more]


def slices_of_slices(shards, rank, ranks, worker, workers):
    return slices(slices(shards, rank, ranks), worker, workers)


WRONG = [
    (slices_of_slices, "what is left after equal slices, first of the ranks and then"),
    (lambda s, r, n, w, m: slices(s[r::n], w, m), "left to nobody. Rounding down with // does that"),
    (lambda s, r, n, w, m: slices(s, r, n, 1)[w::m], "given to several processes"),
    (lambda s, r, n, w, m: [], "no process got a shard"),
    (lambda s, r, n, w, m: s, "every process reads the same"),
    (lambda s, r, n, w, m: s[r::n], "forgot the workers"),
    (lambda s, r, n, w, m: s[w::m], "forgot the ranks"),
    (lambda s, r, n, w, m: s[r::m][w::n], "crossed"),
    (equal_slices, "loses the tail"),
    (lambda s, r, n, w, m: s[r * m + w + 1 :: n * m], "begin at 1"),
    (lambda s, r, n, w, m: s[r + w :: n * m], "rank + worker"),
    (starving, "split over the ranks first"),
    (a_spare_one, "a spare shard is read twice"),
    (by_hash, "order of a set"),
    (by_chance, "nothing to chance"),
    (indexing, "return an empty list"),
    (lambda s, r, n, w, m: list(range(len(s)))[r::n][w::m], "not their numbers"),
    (lambda shards, rank, ranks: shards[rank::ranks], "compare its arguments"),
    (lambda s, r, n, w, m: itertools.islice(s, r, None, n), "list(…)"),
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


def in_epoch(deal):
    """An answer that deals by `deal(shards, place, seed, epoch)`."""
    return lambda shards, *given: deal(shards, given[:4], *given[4:])


def seeding(shards, rank, ranks, worker, workers, seed, epoch):
    random.seed(seed + epoch)
    return right(random.sample(shards, len(shards)), rank, ranks, worker, workers)


def dealt_from_one_deck(deal):
    return in_epoch(lambda s, place, *of: deal(shuffled(s, f"{of}"), *place))


right_in_epoch = in_epoch(lambda s, place, seed, epoch: right(shuffled(s, f"{seed} {epoch}"), *place))
WRONG_IN_EPOCH = [
    (in_epoch(lambda s, place, seed, epoch: right(s, *place)), "nothing is shuffled"),
    (in_epoch(lambda s, place, seed, epoch: shuffled(right(s, *place), seed + epoch)), "after dealing"),
    (in_epoch(lambda s, place, *of: right(shuffled(s, f"{of} {place[0]}"), *place)), "deck of its own"),
    (in_epoch(lambda s, place, seed, epoch: right(shuffled(s, seed), *place)), "the epoch does not reach"),
    (in_epoch(lambda s, place, seed, epoch: right(shuffled(s, epoch), *place)), "the seed does not reach"),
    (in_epoch(lambda s, place, *of: right(shuffled(set(s), f"{of}"), *place)), "order of a set"),
    (in_epoch(lambda s, place, *of: right(shuffled(s, of), *place)), "a seed is one number or text"),
    (dealt_from_one_deck(starving), "split over the ranks first"),
    (dealt_from_one_deck(slices_of_slices), "rounding down loses the tail"),
    (dealt_from_one_deck(lambda s, r, n, w, m: s[r::n]), "you forgot the workers"),
    (seeding, "the generator that the whole program uses"),
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


# The third task


def looping(batches, count):
    while True:
        for batch in batches:
            if count == 0:
                return
            yield batch
            count -= 1


def by_islice(batches, count):
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(batches)), count)


def whole_passes(batches, count):
    given = 0
    while given < count:
        for batch in batches:
            given += 1
            yield batch


def padded(batches, count):
    given, batch = 0, None
    for batch in itertools.islice(batches, count):
        given += 1
        yield batch
    yield from [batch] * (count - given)


WRONG_NUMBERS = [
    (lambda batches, count: itertools.islice(batches, count), "begins again"),
    (lambda batches, count: (batch for batch in batches), "stops after"),
    (lambda batches, count: list(by_islice(batches, count)), "fills the memory"),
    (lambda batches, count: itertools.islice(itertools.cycle(batches), count), "itertools.cycle"),
    (lambda batches, count: batches * count, "cannot be counted"),
    (lambda batches, count: batches[:count], "cannot be counted"),
    (whole_passes, "stops after"),
    (padded, "not with the last"),
    (lambda batches, count: iter(sorted(by_islice(batches, count))), "fills the memory"),
]
TestExactly = judged(ex05.exactly, WRONG_NUMBERS, [looping, by_islice])
