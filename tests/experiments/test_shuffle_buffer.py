"""How well a shuffle buffer mixes ImageNet in class order: the numbers that notebook 05 gives as known."""

import random
from itertools import chain

import numpy as np
import pytest
from webdataset.filters import shuffle

SAMPLES, CLASSES, SHARD, BATCH = 1_281_167, 1_000, 1_000, 256


def classes_in_a_batch(order, samples):
    batches = np.sort((order * CLASSES // samples)[: samples // BATCH * BATCH].reshape(-1, BATCH))
    return 1 + (np.diff(batches) != 0).sum(axis=1).mean()


@pytest.mark.parametrize(
    ("samples", "buffer", "found", "give"),
    [(SAMPLES, 1_000, 10, 1), (SAMPLES, 65_536, 141, 4), (SAMPLES // 10, 4_096, 87, 4)],
)
def test_a_buffer_behind_shards_in_class_order_mixes_few_classes(samples, buffer, found, give):
    rng = random.Random(0)
    shards = [range(first, min(first + SHARD, samples)) for first in range(0, samples, SHARD)]
    rng.shuffle(shards)
    order = np.fromiter(shuffle(buffer, rng=rng)(chain.from_iterable(shards)), np.int64, samples)
    assert classes_in_a_batch(order, samples) == pytest.approx(found, abs=give)


def test_a_shuffle_of_all_images_gives_the_ideal():
    order = np.random.default_rng(0).permutation(SAMPLES)
    assert classes_in_a_batch(order, SAMPLES) == pytest.approx(226, abs=1)
