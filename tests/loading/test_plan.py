"""Every sample exactly once an epoch, for any ranks, workers and shards."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from smallfiles.errors import UsageError
from smallfiles.loading.dataset import split_numbers
from smallfiles.loading.plan import Earlier, EpochPlan, spread, stream_fields, through_buffer
from smallfiles.loading.schedule import EPOCH_BIT, EpochBatches, _check_possible


def all_ranks(plan, epoch):
    return [replace(plan, rank=rank).batches(epoch) for rank in range(plan.world_size)]


def counted(plan, ranks):
    parts = [batch for batches in ranks for batch in batches]
    together = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return np.bincount(together, minlength=plan.samples)


def shards_of(samples, count):
    """Uneven shards, some of them empty."""
    cuts = np.sort(np.random.default_rng(count).integers(0, samples + 1, max(0, count - 1)))
    return tuple(np.diff([0, *cuts, samples]).tolist()) if count else ()


GRID = list(
    itertools.product(
        (0, 1, 5, 157), (1, 2, 3, 8), (0, 1, 2, 5), (1, 7, 64), (0, 1, 3, 9), ((0, 1), (3, 1), (0, 4))
    )
)


def test_a_grid_of_ranks_streams_and_shards_gives_every_sample_once():
    for samples, world, streams, batch, shards, (run, lanes) in GRID:
        dealt = {"streams": streams, "shards": shards_of(samples, shards), "run": run, "lanes": lanes}
        plan = EpochPlan(samples, batch, 3, world_size=world, buffer=10, **dealt)
        ranks = all_ranks(plan, 1)
        assert (counted(plan, ranks) == 1).all(), plan
        assert tuple(map(len, ranks)) == plan.batches_per_rank(), plan
        assert sum(plan.samples_per_rank()) == plan.samples
    assert len(GRID) > 2000


dealt = st.sampled_from([{"run": 0}, {"run": 3}, {"lanes": 4}])
grids = st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 12))


@given(
    st.integers(0, 120),
    st.lists(grids, max_size=3),
    grids,
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
    dealt,
)
def test_an_epoch_that_goes_on_on_other_ranks_gives_every_sample_once(
    samples, stops, last, streamed, shuffle, shards, ranges
):
    sizes, seen, earlier = shards_of(samples, shards) if streamed else (), np.zeros(samples, int), ()
    plan = EpochPlan(samples, seed=4, shuffle=shuffle, shards=sizes, buffer=7, **ranges)
    for world, batch, streams, batches in (*stops, (*last[:3], 10**6)):
        streams *= streamed
        grid = replace(plan, world_size=world, batch=batch, streams=streams).rest(earlier)
        ranks = [own[:batches] for own in all_ranks(grid, 3)]
        seen += counted(grid, ranks)
        earlier = (*earlier, Earlier(world, batch, streams, batches))
        assert tuple(map(len, all_ranks(grid, 3))) == grid.batches_per_rank()
    assert (seen == 1).all()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("streams", [0, 2])
def test_an_epoch_may_go_on_on_other_ranks_as_often_as_a_cluster_wants(streams):
    """What is left is computed from what was left before: it took twice as long with each resumption."""
    plan, seen = (
        EpochPlan(1000, batch=3, streams=streams, shards=(400, 600) if streams else ()),
        np.zeros(1000),
    )
    earlier = tuple(Earlier(1 + number % 2, 3, streams, 2) for number in range(40))
    for number, (ranks, _, _, batches) in enumerate((*earlier, Earlier(1, 3, streams, 10**6))):
        own = all_ranks(replace(plan, world_size=ranks).rest(earlier[:number]), 0)
        seen += counted(plan, [each[:batches] for each in own])
    assert (seen == 1).all()


def test_on_other_ranks_the_global_order_is_the_same():
    whole = EpochPlan(96, batch=24, seed=1).batches(2)
    four = EpochPlan(96, batch=6, seed=1, world_size=4)
    rest = EpochPlan(96, batch=8, seed=1, world_size=3).rest((Earlier(2, 12, 0, 1),))
    for plan, batches in ((four, whole), (rest, whole[1:])):
        for number, batch in enumerate(batches):
            assert sorted(batch) == sorted(np.concatenate([own[number] for own in all_ranks(plan, 2)]))


@given(
    st.integers(0, 300),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 4),
    st.integers(0, 6),
    st.booleans(),
    st.integers(0, 5),
    dealt,
)
def test_only_the_last_batch_of_a_rank_is_smaller_and_dropping_makes_all_full(
    samples, batch, world, streams, shards, shuffle, epoch, ranges
):
    more = {"streams": streams, "shards": shards_of(samples, shards), "shuffle": shuffle, "buffer": 7}
    plan = EpochPlan(samples, batch, world_size=world, **more, **ranges)
    for batches in all_ranks(plan, epoch):
        assert all(len(each) == batch for each in batches[:-1])
        assert all(1 <= len(each) <= batch for each in batches[-1:])
    dropping = replace(plan, drop_last=True)
    ranks = all_ranks(dropping, epoch)
    found = counted(dropping, ranks)
    assert (found <= 1).all()
    assert found.sum() == sum(dropping.samples_per_rank())
    assert {len(each) for batches in ranks for each in batches} <= {batch}
    assert len(set(map(len, ranks))) == 1


def test_the_order_is_a_function_of_seed_and_epoch():
    plan = EpochPlan(1000, seed=5)
    assert (plan.indices(3) == EpochPlan(1000, seed=5).indices(3)).all()
    assert (plan.indices(3) != plan.indices(4)).any()
    assert (plan.indices(3) != EpochPlan(1000, seed=6).indices(3)).any()
    assert (EpochPlan(1000, seed=0).indices(1) != EpochPlan(1000, seed=1).indices(0)).any()


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({}, "17020de8d9404bda"),
        ({"rank": 1, "world_size": 3, "drop_last": True, "batch": 32}, "20e764bbd821b6cd"),
        ({"parts": ((600, 600), (400, 130))}, "4e0f590b8f4bad7a"),
        ({"parts": ((600, 600), (400, 130)), "streams": 2, "run": 7}, "067f43528ce3adcd"),
        ({"streams": 2, "shards": (0, 300, 700), "run": 20, "buffer": 30}, "81afa6794094d71e"),
        ({"streams": 2, "shards": (50,) * 20, "lanes": 4, "buffer": 30}, "25b8e52d616259a4"),
        ({"streams": 2, "shards": (50,) * 20, "lanes": 2, "buffer": 30}, "45a2d0bbb6596bef"),
    ],
)
def test_the_order_stays_what_it_was_so_that_older_checkpoints_go_on(fields, order):
    plan = EpochPlan(1000, seed=2, **fields)
    drawn = plan.drawn(3)
    assert len({*drawn.tolist()}) == len(drawn) == plan.epoch_samples
    found = np.concatenate([drawn, *plan.batches(3)]).astype("<i8")
    assert xxhash.xxh3_64_hexdigest(found.tobytes()) == order


def test_shards_come_in_another_order_in_each_epoch():
    plan = EpochPlan(1000, streams=1, shards=(100,) * 10, buffer=1)
    orders = [tuple(plan.indices(epoch)[::100] // 100) for epoch in range(4)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(10)) for order in orders)


def test_without_shuffling_the_stored_order_stays():
    for streams, ranges in ((0, {}), (1, {}), (1, {"run": 3}), (1, {"lanes": 2})):
        plan = EpochPlan(100, batch=10, shuffle=False, streams=streams, shards=(40, 60), **ranges)
        assert (plan.indices(7) == np.arange(100)).all()


@given(st.integers(0, 300), st.integers(1, 40), st.integers(0, 3))
def test_a_buffer_hands_out_no_sample_long_before_it_is_read(count, size, seed):
    reads = np.arange(count)
    emits = through_buffer(reads, size, np.random.default_rng(seed))
    assert sorted(emits) == list(range(count))
    assert all(sample < place + size for place, sample in enumerate(emits))


@pytest.mark.parametrize("size", [2, 30, 100])
def test_a_buffer_holds_as_many_samples_as_it_may(size):
    """A sample may leave `size` - 1 places before the one at which it was read, and long after it."""
    early, late = [], []
    for seed in range(20):
        ahead = through_buffer(np.arange(1000), size, np.random.default_rng(seed)) - np.arange(1000)
        early.append(ahead.max())
        late.append(-ahead.min())
    assert max(early) == size - 1
    assert size < np.median(late) < 20 * size


@pytest.mark.parametrize("count", [50, 1000])
def test_a_buffer_shuffles_small_sets_too(count):
    emits = through_buffer(np.arange(count), 100, np.random.default_rng(0))
    assert np.count_nonzero(np.diff(emits) == 1) < count / 10


@pytest.mark.parametrize(
    ("fields", "jumps"), [({}, 5), ({"run": 20}, 25), ({"shards": ()}, 17), ({"lanes": 4, "buffer": 1}, 5)]
)
def test_a_stream_is_read_in_ranges(fields, jumps):
    """Of shards, of parts of shards, of a file without shards; a buffer of one reads one after the other."""
    plan = EpochPlan(1000, **{"streams": 2, "shards": (100,) * 10, "buffer": 30, "batch": 10, **fields})
    reads, emits = plan.stream(0, 1)
    assert sorted(reads) == sorted(emits)
    assert jumps // 2 < np.count_nonzero(np.diff(reads) != 1) <= jumps


def test_each_stream_of_each_rank_is_shuffled_differently():
    plan = EpochPlan(1200, streams=2, shards=(50,) * 24, world_size=2, buffer=20, batch=10)
    orders = [replace(plan, rank=rank).stream(0, number) for rank in range(2) for number in range(2)]
    places = {tuple(map(reads.tolist().index, emits)) for reads, emits in orders}
    assert len(places) == 4


def test_ranges_are_dealt_in_an_order_that_ranks_and_streams_do_not_change():
    one = EpochPlan(1000, streams=1, shards=(300, 700), run=8, seed=4)
    many = replace(one, world_size=3, streams=4)
    parts = [replace(many, rank=rank).reads(5, stream) for rank in range(3) for stream in range(4)]
    assert np.concatenate(parts).tolist() == one.reads(5, 0).tolist() != one.reads(6, 0).tolist()


def test_ranges_read_side_by_side_are_each_read_in_order_and_few_at_a_time():
    plan = EpochPlan(1000, streams=1, shards=(50,) * 20, lanes=4)
    order = plan.reads(0, 0)
    owners = order // 50
    at = [np.flatnonzero(owners == shard) for shard in range(20)]
    assert all((np.diff(order[places]) == 1).all() for places in at)
    opened = [sum(places[0] <= place <= places[-1] for places in at) for place in range(1000)]
    assert max(opened) == 4 == np.median(opened)
    ends = np.sort([places[-1] for places in at])[:-4]  # all lanes end the epoch together
    assert np.median(np.diff(ends)) > 4, "the next ranges are fetched one by one, not four at once"


@given(st.integers(0, 400), st.integers(0, 3))
def test_few_numbers_that_follow_each_other_come_from_both_halves(count, seed):
    order = spread(count, np.random.default_rng(seed))
    assert sorted(order) == list(range(count))
    half = 1 << max(count - 1, 0).bit_length() >> 1
    if count == 2 * half:
        assert (np.diff(order < half) != 0).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": -1}, "samples is -1"),
        ({"batch": 0}, "batch is 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": -1}, "rank -1 of 1"),
        ({"shards": (3, 4), "streams": 1}, "shards hold 7 samples and the data set 100"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        EpochPlan(**({"samples": 100} | fields))


def test_what_a_batch_number_means_is_the_same_for_all_ranks_and_fits_into_a_checkpoint():
    plan = EpochPlan(10, batch=3, world_size=2, streams=1, shards=(4, 6), run=2)
    kept = plan.depends_on()
    assert kept != replace(plan, run=3).depends_on()
    assert kept == replace(plan, rank=1).depends_on() == json.loads(json.dumps(kept))
    assert kept["shards"].startswith("2 of sizes ")
    assert kept != replace(plan, shards=(6, 4)).depends_on()
    assert kept != EpochPlan(10, batch=4, world_size=2).depends_on()


class Stored:
    """A packed set of which only its sizes are known."""

    def __init__(self, count, each, **more):
        self.count, self.each = count, each
        self.__dict__.update(more)

    def __len__(self):
        return self.count

    def info(self):
        return {"bytes": self.count * self.each}


@pytest.mark.parametrize(
    ("reader", "buffer", "expected"),
    [
        (Stored(32 * 3072, 1000), 2, {"run": 32}),
        (Stored(32 * 3072 - 1, 1000), 2, {"run": 31}),  # 3072 ranges
        (Stored(10**6, 1 << 20), 2, {"run": 4}),  # 4 MiB
        (Stored(10**6, 1 << 23), 2, {"run": 1}),
        (Stored(10**6, 1), 2, {"run": 32}),
        (Stored(10, 1000), 2, {"run": 1}),
        (Stored(0, 0), 2, {"run": 1}),
        (Stored(10**6, 1 << 20), 1, {}),
        (Stored(9, 1, shard_sizes=lambda: (4, 5), following=list), 2, {"shards": (4, 5), "lanes": 20}),
    ],
)
def test_a_stream_reads_short_ranges_unless_it_keeps_the_order_or_the_store_is_remote(
    reader, buffer, expected
):
    assert stream_fields(reader, buffer) == {"shards": (), "buffer": buffer} | expected


def test_a_batch_sampler_is_its_own_sampler_and_an_empty_batch_is_of_the_first_epoch():
    batches = EpochBatches(EpochPlan(10, batch=4))
    assert batches.sampler is batches and split_numbers([], 10) == ([], 0)
    assert split_numbers([3 | 2 << EPOCH_BIT], 10) == ([3], 2) and split_numbers([-1], 10) == ([9], 0)


@pytest.mark.parametrize("field", ["world_size", "streams", "parts"])
@pytest.mark.parametrize(("samples", "most"), [(10, 4096), (5000, 5000)])
def test_a_state_of_more_ranks_streams_or_parts_than_a_set_can_have_is_refused(field, samples, most):
    most = most if field == "world_size" else 4096

    def check(number):
        earlier = Earlier(1, 1, 0, 0)
        if field == "parts":
            return _check_possible([earlier] * number, samples)
        return _check_possible([earlier._replace(**{field: number})], samples)

    check(most)
    with pytest.raises(UsageError, match="the state says that"):
        check(most + 1)
