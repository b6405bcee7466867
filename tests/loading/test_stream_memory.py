"""A stream releases each file of a sample when it is delivered, masks like pictures."""

import weakref

import numpy as np

from smallfiles.loading.plan import EpochPlan
from smallfiles.loading.stream import READ_AHEAD, Window


class Field:
    """Samples of one field; which of them somebody still holds is known."""

    def __init__(self, count, fields=None):
        self.count, self.fields, self.made = count, fields or {}, []

    def __len__(self):
        return self.count

    def blob(self, name):
        return self.fields[name]

    def read_many(self, indices):
        arrays = [np.full(10, index) for index in indices]
        self.made += map(weakref.ref, arrays)
        return arrays

    def held(self):
        return sum(each() is not None for each in self.made)


def test_masks_that_were_read_ahead_are_released_like_pictures():
    mask = Field(1000)
    picture = Field(1000, {"mask": mask})
    reads, emits = EpochPlan(1000, streams=1, buffer=50).stream(0, 0)
    window = Window(picture, reads.tolist(), emits.tolist(), 50, 0)
    masks = window.blob("mask")
    for start in range(0, 1000, 10):
        batch = emits[start : start + 10].tolist()
        for blob in (window, masks):
            assert [int(each[0]) for each in blob.read_many(batch)] == batch
        assert max(picture.held(), mask.held()) <= 50 + READ_AHEAD
    assert len(mask.made) == len(picture.made) == 1000, "each was read once"
    assert picture.held() == mask.held() == 0
