"""Classes that were packed one after the other are mixed in streams, or the user is warned."""

import itertools
import re
import warnings

import loading_sets as sets
import numpy as np
import pyarrow as pa
import pytest

from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.samples import Sample, Schema

COUNT, BATCH = 8 * 16 * 64, 64
GRID = list(itertools.product((1, 2, 8), (1, 4, 16)))


def packed(out, count, classes, order=None, **options):
    """Tiny samples in the order of their classes, or another."""
    rows = range(count) if order is None else order.tolist()
    samples = (Sample(f"{n:06}.jpg", (b"x",), n) for n in rows)
    labels = pa.table({"label": np.arange(count) * classes // count})
    return sets.write_many(samples, Schema(count, count, 1, labels), out, **options)


def opened(path, rank=0, world=1, workers=1, **more):
    """A loader that makes nothing before it is asked for batches."""
    settings = {"mode": "threads", "workers": workers, "order": "stream", "batch": BATCH} | more
    return make_loader(path, LoaderConfig(**settings, rank=rank, world_size=world))


def classes_per_batch(loader, labels):
    return np.mean([len(np.unique(labels[b])) for b in loader.plan.batches(0) if len(b) == BATCH])


@pytest.mark.parametrize("shards", [1, 50])
def test_batches_hold_the_classes_of_a_random_order_on_any_number_of_ranks_and_workers(tmp_path, shards):
    path = packed(tmp_path / "x.tars", COUNT, 12, max_count=-(-COUNT // shards))
    labels, at_random = np.arange(COUNT) * 12 // COUNT, 12 * (1 - (11 / 12) ** BATCH)
    for world, workers in GRID:
        found = [classes_per_batch(opened(path, rank, world, workers), labels) for rank in range(world)]
        assert np.mean(found) >= 0.95 * at_random, (world, workers)


def test_a_buffer_that_cannot_mix_is_a_warning_of_the_first_rank_with_numbers_and_the_cure(tmp_path):
    path = packed(tmp_path / "x.tars", 20_000, 1000, max_count=1000)
    with pytest.warns(UserWarning, match="Pack with --shuffle SEED, or hold more than 64 samples") as caught:
        loader = opened(path, buffer=64)
    numbers = re.search(r"holds ([\d.]+) classes in stream order, and ([\d.]+)", str(caught[0].message))
    got, expected = map(float, numbers.groups())
    assert got == pytest.approx(classes_per_batch(loader, np.arange(20_000) // 20), rel=0.15)
    assert expected == pytest.approx(1000 * (1 - 0.999**BATCH), rel=0.05)


@pytest.mark.parametrize(
    ("classes", "settings"),
    [
        (1000, {"rank": 1, "world": 2}),
        (1000, {"shuffle": False}),
        (1000, {"order": "random"}),
        (12, {"buffer": 1024}),
    ],
)
def test_there_is_no_warning_if_classes_mix_or_shuffling_is_off(tmp_path, classes, settings):
    path = packed(tmp_path / "x.tars", 20_000, classes, max_count=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path, **{"buffer": 64, **settings})


def test_a_set_that_was_shuffled_while_it_was_packed_mixes_in_any_buffer(tmp_path):
    path = packed(tmp_path / "x.tars", 20_000, 1000, np.random.default_rng(0).permutation(20_000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path, buffer=2)
