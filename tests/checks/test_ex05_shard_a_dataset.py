"""Dealing shards: each known wrong answer gets its own diagnosis, every right way passes."""

import itertools
import random
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exercises.checks import ex05_shard_a_dataset as ex05
from exercises.checks.ex05_shard_a_dataset.processes import Case, Round


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)


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


def by_set_order(shards, rank, ranks, worker, workers):
    return right(list(set(shards)), rank, ranks, worker, workers)


def by_hash(shards, rank, ranks, worker, workers):
    return [name for name in shards if hash(name) % (ranks * workers) == rank * workers + worker]


def by_crc(shards, rank, ranks, worker, workers):
    place, count = rank * workers + worker, ranks * workers
    return [name for name in shards if zlib.crc32(name.encode()) % count == place]


def by_chance(shards, rank, ranks, worker, workers):
    return right(random.sample(shards, len(shards)), rank, ranks, worker, workers)


def refusing(shards, rank, ranks, worker, workers):
    if len(shards) < ranks * workers:
        raise ValueError("not enough shards")
    return right(shards, rank, ranks, worker, workers)


def indexing(shards, rank, ranks, worker, workers):
    place = worker * ranks + rank
    return [shards[place], *shards[place + ranks * workers :: ranks * workers]]


def sorting_in_place(shards, rank, ranks, worker, workers):
    shards.reverse()
    return right(shards, rank, ranks, worker, workers)


WRONG = {
    "everything": (lambda s, rank, ranks, worker, workers: s, "every process reads the same"),
    "forgets workers": (lambda s, rank, ranks, worker, workers: s[rank::ranks], "forgot the workers"),
    "forgets workers, in slices": (
        lambda s, rank, ranks, worker, workers: np.array_split(s, ranks)[rank].tolist(),
        "forgot the workers",
    ),
    "forgets ranks": (lambda s, rank, ranks, worker, workers: s[worker::workers], "forgot the ranks"),
    "crossed": (lambda s, rank, ranks, worker, workers: s[rank::workers][worker::ranks], "crossed"),
    "crossed otherwise": (lambda s, rank, ranks, worker, workers: s[worker::ranks][rank::workers], "crossed"),
    "drops the tail": (slices(round_up=False), "loses the tail"),
    "overlapping slices": (slices(round_up=False, extra=1), "slices overlap"),
    "rounds up": (slices(round_up=True), "rounded up"),
    "counts from one": (
        lambda s, rank, ranks, worker, workers: s[rank * workers + worker + 1 :: ranks * workers],
        "begin at 1",
    ),
    "rank plus worker": (
        lambda s, rank, ranks, worker, workers: s[rank + worker :: ranks * workers],
        "rank + worker",
    ),
    "rank times ranks": (
        lambda s, rank, ranks, worker, workers: s[rank * ranks + worker :: ranks * workers],
        "crossed",
    ),
    "ranks starve": (
        lambda s, rank, ranks, worker, workers: s[rank * workers + worker :: ranks * workers],
        "split over the ranks first",
    ),
    "uneven by checksum": (by_crc, "with less to read waits"),
    "a spare shard": (a_spare_one, "a spare shard is read twice"),
    "set order": (by_set_order, "order of a set"),
    "hash": (by_hash, "order of a set"),
    "chance": (by_chance, "nothing to chance"),
    "raises for the empty": (refusing, "return an empty list"),
    "indexes": (indexing, "return an empty list"),
    "numbers instead of names": (
        lambda s, rank, ranks, worker, workers: list(range(len(s)))[rank::ranks][worker::workers],
        "not their numbers",
    ),
    "one name": (lambda s, rank, ranks, worker, workers: s[0], "put it into a list"),
    "an iterator": (
        lambda s, rank, ranks, worker, workers: itertools.islice(s, rank, None, ranks),
        "list(…)",
    ),
    "changes the list": (sorting_in_place, "work on a copy"),
    "prints": (lambda s, rank, ranks, worker, workers: print(s), "replace print"),
    "only the first": (
        lambda s, rank, ranks, worker, workers: s[:1] if rank + worker == 0 else [],
        "by rank",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_way_to_deal_gets_its_diagnosis(name):
    answer, diagnosis = WRONG[name]
    verdict = ex05.my_shards(answer)
    assert verdict.state == "not yet"
    assert diagnosis in verdict.because, verdict


def by_global_worker(shards, rank, ranks, worker, workers):
    return shards[worker * ranks + rank :: ranks * workers]


def by_even_slices(shards, rank, ranks, worker, workers):
    mine = np.array_split(np.array(shards, dtype=object), ranks)[rank]
    return np.array_split(mine, workers)[worker].tolist()


RIGHT = [right, by_global_worker, by_even_slices, lambda *given: right(sorted(set(given[0])), *given[1:])]


@pytest.mark.parametrize("answer", RIGHT)
def test_every_right_way_to_deal_passes(answer):
    verdict = ex05.my_shards(answer)
    assert verdict, verdict


def test_the_stub_is_not_started():
    def my_shards(shards: list[str], rank: int, ranks: int, worker: int, workers: int) -> list[str]:
        """The shards of one worker."""
        raise NotImplementedError

    verdict = ex05.my_shards(my_shards)
    assert verdict.state == "not started" and "Replace the stub" in str(verdict)


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


def unseeded(shards, rank, ranks, worker, workers, seed, epoch):
    return right(random.sample(shards, len(shards)), rank, ranks, worker, workers)


def unseeded_after_dealing(shards, rank, ranks, worker, workers, seed, epoch):
    mine = right(shards, rank, ranks, worker, workers)
    return random.sample(mine, len(mine))


def without_epoch(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, seed), rank, ranks, worker, workers)


def without_seed(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, epoch), rank, ranks, worker, workers)


def turned(shards, rank, ranks, worker, workers, seed, epoch):
    start = (seed + epoch) % max(len(shards), 1)
    return right(shards[start:] + shards[:start], rank, ranks, worker, workers)


def reversed_in_turn(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shards[:: -1 if epoch % 2 else 1], rank, ranks, worker, workers)


def workers_forgotten(shards, rank, ranks, worker, workers, seed, epoch):
    return shuffled(shards, f"{seed} {epoch}")[rank::ranks]


def set_shuffled(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(set(shards), f"{seed} {epoch}"), rank, ranks, worker, workers)


def seeded_by_a_pair(shards, rank, ranks, worker, workers, seed, epoch):
    return right(shuffled(shards, (seed, epoch)), rank, ranks, worker, workers)


def starving(shards, rank, ranks, worker, workers, seed, epoch):
    return shuffled(shards, f"{seed} {epoch}")[rank * workers + worker :: ranks * workers]


WRONG_IN_EPOCH = {
    "no shuffle": (lambda s, r, n, w, m, seed, epoch: right(s, r, n, w, m), "nothing is shuffled"),
    "shuffles after dealing": (after_dealing, "after dealing"),
    "a deck for each rank": (own_deck, "deck of its own"),
    "unseeded": (unseeded, "asked twice"),
    "unseeded, after dealing": (unseeded_after_dealing, "asked twice"),
    "the same in all epochs": (without_epoch, "the epoch does not reach"),
    "without the seed": (without_seed, "the seed does not reach"),
    "turned": (turned, "keeps neighbours together"),
    "reversed": (reversed_in_turn, "keeps neighbours together"),
    "forgets workers": (workers_forgotten, "forgot the workers"),
    "set order": (set_shuffled, "order of a set"),
    "a pair as seed": (seeded_by_a_pair, "a seed is one number or text"),
    "ranks starve": (starving, "split over the ranks first"),
}


@pytest.mark.parametrize("name", WRONG_IN_EPOCH)
def test_a_wrong_way_to_shuffle_gets_its_diagnosis(name):
    answer, diagnosis = WRONG_IN_EPOCH[name]
    verdict = ex05.my_shards_in_epoch(answer)
    assert verdict.state == "not yet"
    assert diagnosis in verdict.because, verdict


def by_numpy(shards, rank, ranks, worker, workers, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(len(shards))
    return [shards[number] for number in order[rank::ranks][worker::workers]]


def by_sum_of_seed_and_epoch(shards, rank, ranks, worker, workers, seed, epoch):
    return by_even_slices(shuffled(shards, seed + epoch), rank, ranks, worker, workers)


@pytest.mark.parametrize("answer", [right_in_epoch, by_numpy, by_sum_of_seed_and_epoch])
def test_every_right_way_to_shuffle_passes(answer):
    verdict = ex05.my_shards_in_epoch(answer)
    assert verdict, verdict


def test_strict_mode_raises(monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    with pytest.raises(Exception, match="forgot the ranks"):
        ex05.my_shards(lambda s, rank, ranks, worker, workers: s[worker::workers])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 40), st.randoms(use_true_random=False))
def test_one_shard_moved_doubled_or_lost_is_always_noticed(ranks, workers, shards, chance):
    case = Case(ranks, workers, shards)
    hands = {(r, w): right(case.names, r, ranks, w, workers) for r, w in case.places}
    assert Round(case, (), hands).is_each_once
    place = chance.choice(case.places)
    hands[place] = hands[place][1:] if hands[place] and chance.random() < 0.5 else [*hands[place], "x.tar"]
    assert not Round(case, (), hands).is_each_once
