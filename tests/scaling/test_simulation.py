"""Forecasts agree with what can be computed by hand, and say what is full."""

import dataclasses
import json

import pytest

from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.scaling import BROADCAST, WAYS, Storage, Way, Work, saturation, simulate, ways_of

FAST = Storage(
    metadata_ops_s=1e12, latency_s=0, targets=1000, target_bytes_s=1e15, request_s=0, node_bytes_s=1e15
)
WORK = Work(samples=1_000_000, sample_bytes=100_000, batch=100, gpus=2, workers=4, step_s=0.1, decode_s=1e-6)


def test_with_endless_storage_an_epoch_is_its_steps():
    for nodes in (1, 10, 100):
        found = simulate(WORK, FAST, WAYS["files"], nodes)
        assert found.epoch_s == pytest.approx(1_000_000 / (100 * 2 * nodes) * 0.1, rel=0.01)
        assert (found.waiting, found.limit) == (pytest.approx(0, abs=0.01), "GPUs")


@pytest.mark.parametrize("nodes", [20, 200])
@pytest.mark.parametrize(
    ("way", "more", "samples_s", "part"),
    [
        ("files", {"metadata_ops_s": 2000}, 1000, "metadata"),
        ("packed", {"stripes": 4, "target_bytes_s": 25e6}, 1000, "targets"),
        ("shards", {"targets": 2, "request_s": 0.01}, 2000, "targets"),
    ],
)
def test_where_one_part_is_full_the_epoch_takes_what_that_part_can_serve(way, more, samples_s, part, nodes):
    found = simulate(WORK, dataclasses.replace(FAST, **more), WAYS[way], nodes)
    assert found.epoch_s == pytest.approx(1_000_000 / samples_s, rel=0.1)
    assert found.limit == part
    assert found.waiting > 0.8
    assert found.use[part] > 0.85
    full_at = saturation(WORK, dataclasses.replace(FAST, **more), WAYS[way])[part]
    assert full_at == pytest.approx(samples_s / WORK.node_samples_s)


@pytest.mark.parametrize(
    ("ops_s", "stripes", "files_s", "packed_s"),
    [(100_000, 24, 37, 38), (20_000, 24, 129, 38), (5_000, 24, 514, 38), (5_000, 1, 514, 841)],
)
def test_the_share_of_metadata_operations_decides_for_files_and_the_stripes_for_one_packed_file(
    ops_s, stripes, files_s, packed_s
):
    storage = Storage(metadata_ops_s=ops_s, stripes=stripes)
    found = [simulate(Work(), storage, WAYS[way], 100).epoch_s for way in ("files", "packed")]
    assert found == pytest.approx([files_s, packed_s], rel=0.02)  # as notebook 11 tells


def test_a_slow_network_and_slow_workers_are_named():
    network = simulate(WORK, dataclasses.replace(FAST, node_bytes_s=50e6), WAYS["packed"], 4)
    assert network.limit == "network"
    assert network.epoch_s == pytest.approx(1_000_000 * 100_000 / (4 * 50e6), rel=0.05)
    workers = simulate(dataclasses.replace(WORK, decode_s=0.01), FAST, WAYS["packed"], 4)
    assert workers.limit == "workers"
    assert workers.epoch_s == pytest.approx(1_000_000 * 0.01 / (4 * 2 * 4), rel=0.05)


def test_a_round_trip_costs_each_worker_and_no_server():
    far = dataclasses.replace(FAST, latency_s=0.005)
    found = simulate(WORK, far, Way(operations=2, requests=1), 1)
    assert found.epoch_s == pytest.approx(1_000_000 * 2 * 0.005 / (2 * 4), rel=0.05)
    assert found.limit == "workers"


@pytest.mark.parametrize("nodes", [1, 2, 8, 9, 50, 72, 200, 600, 1024, 2048])
def test_a_broadcast_reads_once_and_grows_with_the_depth_of_the_tree(nodes):
    """Each full level costs eight sends of a block, one after another; the last one as many as are left."""
    storage = dataclasses.replace(FAST, targets=10, stripes=10, target_bytes_s=1e9, node_bytes_s=12e9)
    found = simulate(WORK, storage, BROADCAST["broadcast"], nodes)
    depth, left = 0, float(nodes)
    while left > 8:
        depth, left = depth + 1, left / 8 - 1
    expected = 100e9 / 10e9 + (8 * depth + left) * 100e9 / 12e9
    assert found.first_epoch_s - found.epoch_s == pytest.approx(expected, rel=0.1)
    assert found.shared_bytes == 100e9
    separate = simulate(WORK, storage, WAYS["staged"], nodes)
    assert separate.shared_bytes == nodes * 100e9 and separate.waiting < 0.05
    assert separate.first_epoch_s - separate.epoch_s == pytest.approx(max(nodes / 10e9, 1 / 12e9) * 100e9)
    assert (found.first_epoch_s < separate.first_epoch_s) is (nodes >= 8)


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
def test_workers_that_wait_for_nobody_get_what_a_division_says(threads):
    """Each adds its share until the server is full; a queue serves in the order of arrival."""
    server = dataclasses.replace(FAST, metadata_ops_s=4 / 0.006, metadata_threads=4)
    work = Work(samples=1_000 * threads, batch=1, gpus=1, workers=threads, step_s=0, decode_s=2e-4)
    found = [
        each.samples / simulate(each, server, Way(operations=2, requests=0), 1).epoch_s
        for each in (dataclasses.replace(work, prefetch=ahead) for ahead in (1_000, 2))
    ]
    assert found[0] == pytest.approx(min(threads / 0.0122, 4 / 0.012), rel=0.05)
    if 1 < threads <= 4:  # in order, with two ahead, a slow batch holds up the others
        assert 0.75 * found[0] < found[1] < 0.95 * found[0]


@pytest.mark.parametrize(("nodes", "waiting"), [(9, 0.0), (10, 0.0), (11, 0.09)])
def test_workers_that_fetch_ahead_hide_the_queue_of_a_server_until_it_is_full(nodes, waiting):
    """A question of notebook 11: 5,000 images per second and node, 2 operations each, 100,000 per second."""
    work = Work(samples=5_000_000, step_s=256 / 5_000, decode_s=1e-4)
    endless = Storage(request_s=0, target_bytes_s=1e15, node_bytes_s=1e15)
    assert simulate(work, endless, WAYS["files"], nodes).waiting == pytest.approx(waiting, abs=0.01)


def test_what_a_page_cache_keeps_is_not_asked_for_again():
    full = dataclasses.replace(FAST, stripes=1, target_bytes_s=10e6)
    cached = dataclasses.replace(full, cache_bytes=75e9)  # of 100 GB
    plain, kept = simulate(WORK, full, WAYS["packed"], 1), simulate(WORK, cached, WAYS["packed"], 1)
    assert kept.first_epoch_s == plain.epoch_s == plain.first_epoch_s
    assert kept.epoch_s == pytest.approx(plain.epoch_s / 4, rel=0.05)
    assert kept.epoch_s == pytest.approx(simulate(WORK, cached, WAYS["packed"], 1, epochs=90).epoch_s)


@pytest.mark.parametrize("epochs", [1, 2, 10, 100])
@pytest.mark.parametrize(("nodes", "cache_bytes"), [(8, 100e9), (64, 100e9), (64, 30e9)])
def test_a_page_cache_holds_what_its_own_node_has_read(nodes, cache_bytes, epochs):
    full = dataclasses.replace(FAST, stripes=1, target_bytes_s=1e6)  # so slow that reading is all there is
    cached = dataclasses.replace(full, cache_bytes=cache_bytes)
    found = simulate(WORK, cached, WAYS["packed"], nodes, epochs)
    seen, missed = 1 / nodes, []
    for _ in range(epochs - 1):
        missed.append(1 - min(seen, cache_bytes / 100e9))
        seen += (1 - seen) / nodes
    mean = sum(missed) / len(missed) if missed else 1
    assert found.epoch_s == pytest.approx(mean * found.first_epoch_s, rel=0.05)
    assert found.limit == "targets"
    assert found.use["targets"] <= 1.001


def test_ten_thousand_nodes_are_simulated_and_equal_arguments_give_equal_forecasts():
    long = Work(samples=10_000 * 4 * 64 * 1000, workers=2)
    assert simulate(long, Storage(), WAYS["files"], 10_000).waiting > 0.99
    assert simulate(long, Storage(), WAYS["files"], 200) == simulate(long, Storage(), WAYS["files"], 200)


@pytest.mark.parametrize(("sample_bytes", "fewer"), [(10_000, 100), (100_000, 10), (10_000_000, 0.1)])
def test_a_read_from_a_shard_brings_as_many_samples_as_fit(sample_bytes, fewer):
    """What a target does for a sample is a request, from a shard a part of one; its bytes are the same."""
    work = dataclasses.replace(WORK, sample_bytes=sample_bytes)
    slow = dataclasses.replace(FAST, request_s=1.0, stripes=FAST.targets, target_bytes_s=1e15)
    full = {name: saturation(work, slow, way)["targets"] for name, way in ways_of(sample_bytes).items()}
    assert full["shards"] == pytest.approx(fewer * full["packed"])


def test_the_command_tells_each_way_and_what_to_change_first(capsys):
    assert main(["simulate", "--nodes", "1", "1000", "--step-ms", "100"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name}: nodes" in out for name in WAYS)
    assert "full if no GPU waited: metadata at 20 nodes, targets at 14 nodes" in out
    assert "change first, where the limit is targets: spread" in out
    assert main(["simulate", "--way", "packed", "--nodes", "8", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert (record["way"], record["nodes"]) == ("packed", 8)
    assert record["epoch_s"] == simulate(Work(), Storage(), WAYS["packed"], 8).epoch_s


def test_no_nodes_and_no_storage_are_refused_in_a_sentence():
    with pytest.raises(UsageError, match="nodes is 0; expected 1 or more"):
        simulate(Work(), Storage(), WAYS["files"], 0)
    with pytest.raises(UsageError, match="--targets is 0; expected 1 or more"):
        Storage(targets=0)
