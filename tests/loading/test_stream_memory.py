"""A stream releases each file of a sample when it is delivered, masks like pictures."""

import weakref

import numpy as np

from smallfiles.loading.plan import EpochPlan
from smallfiles.loading.stream import READ_AHEAD, Window


class Pairs:
    """Samples of two fields; which of their blobs somebody still holds is known."""

    def __init__(self):
        self.made = {"": [], "mask": []}

    def read_fields(self, indices, fields):
        found = [[np.full(10, index) for index in indices] for _ in fields]
        for field, arrays in zip(fields, found, strict=True):
            self.made[field] += map(weakref.ref, arrays)
        return found

    def held(self):
        return [sum(each() is not None for each in made) for made in self.made.values()]


def test_masks_that_were_read_ahead_are_released_like_pictures():
    pairs = Pairs()
    reads, emits = EpochPlan(1000, streams=1, buffer=50).stream(0, 0)
    window = Window(pairs, reads.tolist(), emits.tolist(), 50, 0)
    for start in range(0, 1000, 10):
        batch = emits[start : start + 10].tolist()
        for blobs in window.read_fields(batch, ["", "mask"]):
            assert [int(each[0]) for each in blobs] == batch
        del blobs
        assert max(pairs.held()) <= 50 + READ_AHEAD
    assert [*map(len, pairs.made.values())] == [1000, 1000], "each was read once"
    assert pairs.held() == [0, 0]
