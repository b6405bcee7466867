"""The experiments on shards: measures against closed forms and by hand, sentences against measurements."""

import math
import os
import random
from collections import Counter

import numpy as np
import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st

from helpers.experiments.nb05 import dealing, lookup, mixing, rates, shrinking
from helpers.experiments.nb05.place import fresh_folder
from helpers.figures import as_svg
from helpers.figures import shards as draw
from smallfiles import sources
from smallfiles.errors import ResourceError, UsageError
from smallfiles.formats import tar
from smallfiles.manifest import Manifest
from smallfiles.pack import PackConfig, pack
from smallfiles.samples import Sample
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards") / "data"
    synthetic.make(folder, "folder", count=24, classes=4, size=(64, 48))
    return sources.load(folder)


@pytest.fixture(scope="module")
def shards(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "x.tars"
    pack(source, out, PackConfig(options=tar.Options(max_count=6)))
    return sorted(out.glob("*.tar"))


class TestMixing:
    def test_classes_in_a_batch_are_counted_over_whole_batches(self):
        assert mixing.classes_in_a_batch([1, 1, 1, 2, 3, 3, 9], 3) == 1.5  # 1, then 2 and 3; 9 is left over

    def test_pairs_that_met_again_are_counted(self):
        order = np.arange(12)
        assert mixing.met_again(order, order, 4) == 1
        assert mixing.met_again(order, order.reshape(3, 4).T.ravel(), 3) == 0
        swapped = np.array([0, 1, 2, 4, 3, 5, 6, 7, 8, 9, 10, 11])  # two of three batches swap one sample
        assert mixing.met_again(order, swapped, 4) == (3 + 3 + 6) / 18

    def test_an_ideal_shuffle_agrees_with_the_closed_form(self):
        config = mixing.MixConfig(samples=20_000, classes=100, batch=50, buffers=(1,), repeats=2)
        ideal = mixing.measure_mixing(config).ideal
        assert np.mean(ideal.classes) == pytest.approx(100 * (1 - 0.99**50), rel=0.02)
        assert np.mean(ideal.met_again) == pytest.approx(49 / 19_999, rel=0.1)

    @given(st.integers(1, 60), st.integers(1, 20), st.sampled_from([1, 2, 7, 1000]), st.integers(0, 5))
    def test_every_sample_arrives_once_whatever_the_shards_and_the_buffer(self, count, shard, buffer, seed):
        arrived = mixing.arrival(np.arange(count), shard, buffer, seed=(seed, 0))
        assert sorted(arrived) == list(range(count))

    def test_equal_seeds_give_equal_orders_and_epochs_differ(self):
        first, again, other = (
            mixing.arrival(np.arange(500), 50, 20, seed=seed).tolist() for seed in ((0, 0), (0, 0), (0, 1))
        )
        assert first == again != other

    def test_the_sentences_follow_the_measurement(self):
        config = mixing.MixConfig(samples=4_000, classes=20, shard_samples=5, batch=40, buffers=(1, 4_000))
        result = mixing.measure_mixing(config)
        assert "with no buffer; in class order that takes a buffer of 4,000" in result.finding
        assert result.finding in result.alt_text and "ideal: 17 classes" in result.alt_text
        assert "With a buffer of 4,000" in result.advice(1e6, workers=2) and "**8.0 GB**" in result.advice(
            1e6, 2
        )
        short = mixing.Mixing(config, result.ideal, tuple(m for m in result.mixes if m.buffer == 1))
        assert "with no buffer (ideal: 17)" in short.finding and "takes" not in short.finding
        assert as_svg(draw.mixing(result)).startswith("<?xml")

    def test_too_few_samples_are_refused(self):
        with pytest.raises(UsageError, match="two batches"):
            mixing.MixConfig(samples=300)


class TestRates:
    def test_a_pause_before_each_open_shows_and_all_shards_are_read(self, source, tmp_path):
        result = rates.measure_rates(source, tmp_path, sizes=(1, 12), repeats=2)
        assert [(r.images, r.shards) for r in result.line(slow=True)] == [(1, 24), (12, 2)]
        single, large = result.line(slow=True)
        assert 24 / max(single.rates_per_s) >= 24 * rates.SLOW_OPEN_S
        assert large.spread.median > 2 * single.spread.median
        assert "12 images a shard are" in result.finding and result.finding in result.alt_text
        assert as_svg(draw.rates(result)).startswith("<?xml")

    def test_no_gain_is_said_where_spreads_overlap(self):
        def rate(images, open_s, *runs):
            return rates.ShardRate(images, 24 // images, open_s, runs)

        made = rates.ShardRates(
            (
                rate(1, 0.0, 90, 100, 110),
                rate(4, 0.0, 95, 101, 111),
                rate(1, 0.002, 10, 10, 10),
                rate(4, 0.002, 30, 30, 30),
            ),
            "ext4",
        )
        assert "4 images a shard are 3.0 times as fast as one" in made.finding
        assert made.finding.endswith("As measured here: no clear gain from larger shards")

    def test_it_can_run_twice_in_one_folder(self, source, tmp_path):
        for _ in range(2):
            rates.measure_rates(source, tmp_path, sizes=(1, 24), repeats=1)
            lookup.measure_lookup(_packed(source, tmp_path), tmp_path, repeats=1)

    def test_streamed_samples_are_those_of_webdataset(self, shards):
        ours = [(s["__key__"], s["jpg"], s["cls"]) for s in rates.streamed(shards)]
        theirs = wds.WebDataset([str(path) for path in shards], shardshuffle=False)
        assert ours == [(s["__key__"], s["jpg"], s["cls"]) for s in theirs]


def _packed(source, tmp_path):
    out = fresh_folder(tmp_path) / "x.tars"
    pack(source, out, PackConfig(options=tar.Options(max_count=6)))
    return out


def test_lookup_tells_what_it_measured(source, tmp_path):
    found = lookup.measure_lookup(_packed(source, tmp_path), tmp_path, repeats=3)
    assert found.samples == 24 and len(found.indexed_s) == len(found.walked_s) == len(found.read_s) == 3
    slow = lookup.Lookup(100, (0.001,), (0.03,), (0.02,))
    assert "1.0 ms with the indexes and in 30.0 ms without: **30.0 times** as long, and more" in slow.sentence
    assert "5,000 a second" in slow.sentence


class TestDealing:
    BOTH = {"node": wds.split_by_node, "worker": wds.split_by_worker}  # noqa: RUF012 - never changed

    def test_both_splits_give_each_sample_once(self, shards):
        dealt = dealing.deal("both", shards, 24, ranks=2, workers=2, **self.BOTH)
        assert (dealt.missing, dealt.repeated, dealt.idle, dealt.by_rank) == (0, 0, 0, (12, 12))
        assert dealt.finding == "24 of 24 samples came, 0 of them again. All ranks have equally many."

    def test_a_forgotten_split_repeats_samples(self, shards):
        for forgotten in self.BOTH:
            dealt = dealing.deal("one", shards, 24, ranks=2, workers=2, **(self.BOTH | {forgotten: None}))
            assert (dealt.missing, dealt.repeated, set(dealt.keys.values())) == (0, 24, {2})

    def test_fewer_shards_than_workers_leave_one_idle_and_ranks_uneven(self, shards, monkeypatch):
        monkeypatch.setenv("RANK", "7")
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        dealt = dealing.deal("few", shards[:3], 18, ranks=2, workers=2, **self.BOTH)
        assert (dealt.idle, dealt.by_rank) == (1, (12, 6))
        assert "**6 samples more**" in dealt.finding
        assert os.environ["RANK"] == "7" and "WORLD_SIZE" not in os.environ

    def test_the_table_shows_what_is_missing(self):
        dealt = dealing.Dealt("half", 2, 1, 4, 10, Counter(a=1, b=3), (3, 1), 0)
        row = dealing.table([dealt]).splitlines()[-1].split()
        assert row == ["half", "2", "1", "4", "4", "2", "8", "0", "1", "to", "3"]


class TestShrinking:
    def test_text_shrinks_noise_does_not_and_sizes_are_the_files(self, tmp_path):
        dice = random.Random(0)
        sets = {
            "text": [Sample(f"{n}.json", b'{"caption": "a red disc"}' * 40, n) for n in range(50)],
            "noise": [Sample(f"{n}.jpg", dice.randbytes(4_000), n) for n in range(50)],
        }
        rows = shrinking.measure_shrinking(sets, tmp_path, repeats=2)
        assert [(row.what, row.compression) for row in rows] == [
            (what, kind) for what in sets for kind in (None, "gzip", "zstd")
        ]
        files = {
            path.stat().st_size for path in tmp_path.rglob("shrunk-*") if not path.name.endswith(".index")
        }
        assert {row.file_bytes for row in rows} <= files
        assert rows[0].times_smaller == 1 and rows[1].times_smaller > 10 and rows[4].times_smaller < 1.5
        assert rows[0].payload_bytes == 50 * 40 * 25

    def test_when_compression_pays_is_bytes_saved_by_seconds_lost(self):
        def shrunk(compression, file_bytes, read_s):
            return shrinking.Shrunk("x", compression, 9_000, file_bytes, 10_000, (read_s,), (0.01,))

        slower, faster, larger = (
            shrunk("gzip", 5_000, 0.02),
            shrunk("zstd", 5_000, 0.005),
            shrunk("gzip", 11_000, 0.02),
        )
        assert slower.pays_below_bytes_per_s == pytest.approx(500_000)
        assert faster.pays_below_bytes_per_s == math.inf and larger.pays_below_bytes_per_s == 0
        shown = shrinking.table([shrunk(None, 10_000, 0.01), slower, faster, larger]).splitlines()
        assert shown[3].endswith("below 500 kB/s") and shown[4].endswith("at any speed")
        assert shown[5].endswith("never") and shown[2].endswith("ms")
        said = shrinking.verdict([slower, faster], 1e6)
        assert "saves time with **zstd for x**, and costs time with gzip for x" in said
        assert "none of them" in shrinking.verdict([larger])

    def test_each_caption_becomes_a_small_json_file(self):
        manifest = Manifest.from_columns(["a.jpg", "b.jpg"], [["one", "two"], ["three"]])
        found = shrinking.caption_samples(manifest)
        assert [sample.key for sample in found] == ["a.jpg-0.json", "a.jpg-1.json", "b.jpg-0.json"]
        assert found[1].data == b'{"image": "a.jpg", "caption": "two"}'


def test_a_place_that_cannot_be_made_is_a_sentence(tmp_path):
    assert fresh_folder(tmp_path) != fresh_folder(tmp_path)
    with pytest.raises(ResourceError, match="no folder can be made"):
        fresh_folder(tmp_path / "nowhere")
