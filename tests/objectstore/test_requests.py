"""Requests for samples that are read in a known order: all their blocks, few requests, few at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallfiles.loading.plan import EpochPlan
from smallfiles.objectstore.streaming import Extents, Requests

BLOCK, STEP = 4000, 4


def placed(count, mean, seed=0):
    """Samples of one shard, and to which stretch of three parts each belongs."""
    sizes = np.random.default_rng(seed).integers(0, 2 * mean, count)
    starts = np.cumsum(sizes + 51) - sizes
    stops = np.where(sizes > 0, -(-(starts + sizes) // BLOCK), starts // BLOCK)
    return Extents(np.zeros(count, np.int64), starts // (3 * STEP * BLOCK), starts // BLOCK, stops)


def in_order(extents, order, step=STEP):
    order = np.asarray(order, np.int64)
    return Requests(order, Extents(*(each[order] for each in extents)), step)


@given(st.integers(0, 300), st.sampled_from([10, 100, 3000, 60_000]), st.integers(0, 3), st.integers(1, 6))
def test_all_blocks_of_a_sample_come_and_each_request_is_made_and_let_go_of_once(count, mean, seed, step):
    extents = placed(count, mean, seed)
    order = np.random.default_rng(seed).permutation(count)[: count * 2 // 3].tolist()
    requests, held, left = in_order(extents, order, step), set(), []
    planned = iter(requests)
    for index in order:
        for number in requests.of(index):
            if number not in held:
                assert next(planned) == number not in left
                held.add(number)
        got = [block for n in requests.of(index) for block in range(*requests.blocks(n)[1:])]
        assert set(got) >= set(range(extents.first[index], extents.stop[index])) and len(set(got)) == len(got)
        left += requests.read(index)
        held -= set(left)
    assert not held and next(planned, None) is None


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_stretches_read_side_by_side_cost_hardly_more_than_a_shard_read_from_the_first_byte(workers):
    extents = placed(20_000, 100)
    sizes = tuple(np.bincount(extents.stretches).tolist())
    plan, asked, most = EpochPlan(20_000, streams=workers, shards=sizes, lanes=20), [], 0
    for number in range(workers):
        order, held = plan.reads(0, number).tolist(), set()
        requests = in_order(extents, order)
        asked += [requests.blocks(number) for number in requests]
        for index in order:
            held |= set(requests.of(index))
            most = max(most, len(held))
            held -= set(requests.read(index))
    blocks = int(extents.stop.max())
    assert sum(stop - first for _, first, stop in asked) <= 1.1 * (blocks + workers * STEP)
    assert len(asked) <= 1.1 * (blocks / STEP + workers)
    assert most <= 2 * 20  # at a border two
