"""The experiments of notebook 08: four ways to one batch, workers, stalls, a filler beside the notebook."""

import os
import time

import numpy as np
import pytest
import torch

from helpers.experiments.nb08 import pictures, pinning, stages, stalls, workers
from helpers.experiments.nb08.clock import STAGES, Clock, one_thread
from helpers.experiments.nb08.filler import filling
from helpers.experiments.nb08.stages import Followed, Following
from helpers.experiments.nb08.stalls import ENOUGH, TOO_SLOW, Run, Stalling, Stalls
from helpers.experiments.nb08.ways import WAYS, Material, as_floats
from helpers.experiments.nb08.workers import Throughput
from smallfiles import formats, ring
from smallfiles.images import CentreCrop, RandomResizedCrop
from smallfiles.loading import RawBatches
from smallfiles.pack import PackConfig, pack
from smallfiles.ring import RingConfig
from smallfiles.ring.config import SHARED_MEMORY
from smallfiles.sources import load, synthetic


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feeding") / "folder"
    synthetic.make(folder, "folder", count=24, classes=3)
    return load(folder)


@pytest.fixture(scope="module")
def packed(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "train.arrow"
    pack(source, path, PackConfig())
    return path


class TestWays:
    def test_all_ways_make_the_same_views(self, source, packed):
        material = Material(source, formats.open(packed))
        batches = [as_floats(way(material, [3, 0, 11], Clock())).numpy() for way in WAYS.values()]
        assert all(batch.shape == (3, 3, 224, 224) for batch in batches)
        for batch in batches[1:]:
            per_picture = [
                np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(batches[0], batch, strict=True)
            ]
            assert min(per_picture) > 0.9
        assert np.abs(batches[2] - batches[3]).max() < 0.03  # cutting before or after decoding: one unit

    def test_a_way_tells_its_time_by_stage(self, source, packed):
        for way in WAYS.values():
            clock = Clock()
            began = time.perf_counter()
            way(Material(source, formats.open(packed)), [1, 2], clock)
            assert set(clock.seconds) == set(STAGES)
            assert clock.seconds["decode"] > 0 and clock.seconds["transfer"] == 0
            assert sum(clock.seconds.values()) <= time.perf_counter() - began + 1e-3

    def test_the_first_two_send_four_times_the_bytes(self, source, packed):
        found = stages.follow(source, packed, batch=4, rounds=2)
        assert [way.way for way in found.ways] == list(WAYS)
        sizes = [way.batch_bytes for way in found.ways]
        assert sizes[0] == sizes[1] == 4 * sizes[2] == 4 * sizes[3] == 4 * 4 * 224 * 224 * 3
        assert found.ways[0].difference == 0 and all(len(way.runs) == 2 for way in found.ways)
        assert all(way.median_s("transfer") > 0 for way in found.ways)
        assert found.finding in found.alt_text

    def test_the_number_of_threads_is_put_back(self):
        before = torch.get_num_threads()
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before


class TestSentences:
    def following(self, *totals):
        ways = []
        for name, total in zip(WAYS, totals, strict=True):
            run = dict.fromkeys(STAGES, 0.0) | {"decode": 0.01, "augment": total - 0.01}
            ways.append(Followed(name, (run,), 100, 0.0))
        return Following(tuple(ways), 16)

    def test_the_finding_names_the_factor_and_what_is_left(self):
        found = self.following(0.1, 0.08, 0.04, 0.02)
        assert "100 or 20 ms (5.0 times)" in found.finding
        assert "*cut, scale*: +40 ms saved, most of it in **augment**" in found.gained

    def test_no_factor_is_claimed_where_there_is_none(self):
        assert "as long here" in self.following(0.02, 0.02, 0.02, 0.02).finding

    def test_workers_that_do_not_help_are_said_not_to(self):
        runs = {(mode, count): (90.0, 100.0, 110.0) for mode in workers.MODES for count in (1, 2, 4)}
        found = Throughput((95.0, 100.0, 105.0), runs, 2, 16)
        assert "No number of workers is clearly faster" in found.finding
        assert "4 processes give 100% of what 2 give" in found.gain_beyond
        many = Throughput((95.0,), runs, 64, 16)
        assert "not too many" in many.gain_beyond

    def test_a_machine_that_others_keep_busy_is_said_to_be(self):
        runs = {(mode, count): (100.0,) for mode in workers.MODES for count in (1, 4)}
        assert "7 other processes" in Throughput((100.0,), runs, 2, 16, others=7.2).gain_beyond
        assert "other processes" not in Throughput((100.0,), runs, 2, 16, others=0.3).gain_beyond

    def test_the_best_number_of_workers_is_named(self):
        runs = {(mode, count): (100.0 * count,) for mode in workers.MODES for count in (1, 2)}
        runs["threads", 2] = (300.0,)
        assert Throughput((100.0,), runs, 2, 16).finding.startswith("2 threads on 2 CPUs: 3.0 times")

    @pytest.mark.parametrize(
        ("few", "many", "words"), [(0.4, 0.05, "40% of its time"), (0.1, 0.09, "No buffer")]
    )
    def test_stalls_are_told_as_they_were(self, few, many, words):
        found = Stalls(
            tuple(
                Run(name, supply, share)
                for supply in (ENOUGH, TOO_SLOW)
                for name, share in (("2 batches ahead", few), ("ring of 16 slots", many))
            )
        )
        assert words in found.finding and found.finding in found.alt_text


class TestPictures:
    def test_large_pictures_are_four_times_as_wide(self, packed):
        reader = formats.open(packed)
        (large,) = pictures.enlarged(reader, 1)
        found = pictures.reduce([large], validation=True, rounds=1)
        small = CentreCrop()(bytes(reader.read(0)), np.random.default_rng(0))
        assert small.shape == (224, 224, 3)
        assert max(found.pixels) >= 1600 and found.difference < 10
        assert f"{found.pixels[0]} x {found.pixels[1]}" in found.sentence

    def test_the_cost_of_each_transform_is_told_a_round(self, packed):
        files = [bytes(formats.open(packed).read(0))]
        found = pictures.cost_of({"one": RandomResizedCrop(64), "two": CentreCrop()}, files, rounds=3)
        assert [len(times) for times in found.values()] == [3, 3]


def test_every_worker_count_is_measured_and_no_worker_is_left(packed):
    before = _children()
    found = workers.measure_workers(packed, counts=(1, 3), rounds=1)
    assert set(found.runs) == {(mode, count) for mode in workers.MODES for count in (1, 3)}
    assert [count for count, _ in found.line("threads")] == [0, 1, 3]
    assert all(rate > 0 for runs in (found.main, *found.runs.values()) for rate in runs)
    assert _children() <= before


def test_pinning_is_told_or_said_to_be_pointless_here():
    text = pinning.summary(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    assert ("GB/s" in text) == torch.cuda.is_available()


class TestStalls:
    def test_a_storage_that_stands_still_delays_a_batch_until_it_goes_on(self, packed):
        maker = RawBatches(formats.open(packed))
        now = time.monotonic()
        slow = Stalling(maker, 0.0, stalls.PERIOD_S, now - stalls.PERIOD_S + 0.2)  # still for 0.2 s more
        first = slow.make([0, 1], 0)
        assert time.monotonic() - now >= 0.19
        assert np.array_equal(first.arrays["data"], maker.make([0, 1], 0).arrays["data"])
        assert slow.layout(2) == maker.layout(2) and slow.fixed == maker.fixed

    def test_a_ring_waits_least_where_the_supply_suffices(self, packed, monkeypatch):
        monkeypatch.setattr(stalls, "EVALUATION_S", 0.2)
        found = stalls.measure_stalls(packed)
        assert found.buffers == ["2 batches ahead", "16 batches ahead", "ring of 16 slots"]
        assert all(0 <= run.waiting_share < 1 for run in found.runs)
        assert found.share("2 batches ahead", TOO_SLOW) > 0.3
        rings = [run for run in found.runs if run.levels]
        assert len(rings) == 2 and all(level <= found.slots for run in rings for _, level in run.levels)
        assert rings[0].still and not rings[1].still


def test_a_filler_beside_the_notebook_ends_with_its_block(packed):
    name = f"feeding-{os.getpid()}"
    config = RingConfig(name=name, slots=2, producers=1, epochs=1)
    with (
        filling(config, packed, "--batch", "8", "--size", "32") as program,
        ring.attach(name, rank=None, wait_s=60) as batches,
    ):
        assert sum(len(batch["index"]) for batch in batches) == 24
    assert program.poll() is not None
    assert name not in ring.names(SHARED_MEMORY)


def test_the_block_begins_when_the_ring_is_there_and_says_what_a_filler_said(packed, tmp_path):
    config = RingConfig(name=f"waited-{os.getpid()}", slots=2, producers=1, epochs=1)
    with filling(config, packed, "--batch", "8", "--size", "32"):
        assert config.name in ring.names(SHARED_MEMORY)
    with (
        pytest.raises(ring.RingError, match=r"ended before it began[^$]*missing\.arrow"),
        filling(config, tmp_path / "missing.arrow"),
    ):
        pass


def _children():
    task = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with open(task) as file:
        return set(file.read().split())
