"""What small files cost: counted right, timed right, and said only where it shows."""

import os
import pickle

import numpy as np
import pytest

from helpers.experiments.nb01 import (
    InFlight,
    Ladder,
    ModelServer,
    Operations,
    count_tree,
    folder_of,
    measure_in_flight,
    measure_ladder,
    seconds_to_read,
    slow_finding,
    time_operations,
)
from helpers.experiments.nb01.ladder import Rung, size_text
from helpers.experiments.nb01.operations import micro_text
from smallfiles import machine
from smallfiles.errors import ResourceError, SourceError, UsageError
from smallfiles.slowfs import SlowConfig, SlowStore
from smallfiles.sources.folder import FolderStore


@pytest.fixture
def tree(tmp_path):
    for name, size in (("a/1", 1), ("a/2", 5000), ("b/c/3", 0), ("4", 4096)):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    return tmp_path / "tree"


@pytest.fixture
def on_a_shared_filesystem(monkeypatch):
    import dataclasses

    real = machine.filesystem
    monkeypatch.setattr(
        machine, "filesystem", lambda path: dataclasses.replace(real(path), kind="lustre", shared=True)
    )


class TestCounting:
    def test_files_and_folders_are_counted_as_a_quota_does(self, tree):
        count = count_tree(tree)
        assert (count.files, count.folders, count.inodes, count.bytes) == (4, 4, 8, 9097)
        assert count.complete and count.median_bytes == 2048.5

    def test_space_is_counted_in_whole_blocks(self, tree):
        count = count_tree(tree)
        assert count.rounded_up(4096) == 4096 * (1 + 2 + 0 + 1)
        assert count.taken_share(1) == 1
        assert count.taken_share(1 << 20) == pytest.approx(3 * (1 << 20) / 9097)

    def test_allocated_bytes_are_those_of_the_file_system(self, tree):
        asked = sum(path.stat().st_blocks * 512 for path in tree.rglob("*") if path.is_file())
        assert count_tree(tree).allocated_bytes == asked

    def test_two_names_of_one_inode_are_one(self, tree):
        os.link(tree / "4", tree / "5")
        assert count_tree(tree).files == 4

    def test_links_are_counted_and_not_followed(self, tree):
        (tree / "loop").symlink_to(tree)
        (tree / "gone").symlink_to("nowhere")
        count = count_tree(tree)
        assert (count.files, count.folders) == (6, 4)

    def test_an_empty_folder_is_one_inode(self, tmp_path):
        count = count_tree(tmp_path)
        assert (count.inodes, count.bytes, count.median_bytes, count.taken_share(4096)) == (1, 0, 0.0, 0)

    def test_counting_ends_at_the_cap_and_says_so(self, tree, on_a_shared_filesystem, monkeypatch):
        monkeypatch.setattr("smallfiles.measure.neighbour.OPERATIONS", 3)
        count = count_tree(tree)
        assert not count.complete and count.inodes <= 4
        assert count_tree(tree, cap=False).complete

    def test_what_is_no_folder_is_named(self, tree):
        with pytest.raises(SourceError, match="4 cannot be listed"):
            count_tree(tree / "4")

    def test_an_archive_has_no_small_files_to_count(self):
        class Archive:
            def describe(self):
                return "tar train.tar"

        class Found:
            store = Archive()

        with pytest.raises(UsageError, match=r"lie in tar train.tar.*COURSE_DATA"):
            folder_of(Found())


class TestOperations:
    def test_every_operation_of_every_file_is_timed(self, tree):
        times = time_operations(tree, ["a/1", "a/2", "b/c/3"], rounds=4)
        assert {name: len(values) for name, values in times.warm.items()} == {
            "stat": 12,
            "open": 12,
            "read": 12,
            "close": 12,
        }
        assert all((values > 0).all() and (values < 1).all() for values in times.warm.values())
        assert times.mean_bytes == pytest.approx(5001 / 3)

    def test_reads_in_memory_are_not_called_cold(self, tree, monkeypatch):
        monkeypatch.setattr("smallfiles.measure.cache.can_be_cold", lambda path: False)
        times = time_operations(tree, ["a/1"], rounds=1)
        assert not len(times.cold_read) and "tmpfs" in times.notes[0]
        assert [name for name, _ in times.rows()] == ["stat", "open", "read, warm", "close"]
        assert "cold" not in times.finding

    def test_a_shared_file_system_is_asked_little(self, tree, on_a_shared_filesystem, monkeypatch):
        monkeypatch.setattr("smallfiles.measure.neighbour.OPERATIONS", 30)
        times = time_operations(tree, ["a/1", "a/2", "4"], rounds=5)
        assert len(times.warm["open"]) == 5 and "30 operations" in times.notes[0]

    def test_a_missing_file_and_no_file_are_sentences(self, tree):
        with pytest.raises(SourceError, match="nothing cannot be read"):
            time_operations(tree, ["nothing"])
        with pytest.raises(UsageError, match="no files"):
            time_operations(tree, [])

    def test_a_cold_read_is_called_slower_only_when_it_is(self):
        warm = {name: np.full(8, 1e-5) for name in ("stat", "open", "read", "close")}
        slower = Operations(warm, np.full(8, 2e-4), 1e5, "ext4")
        assert slower.cold_factor == pytest.approx(20) and "20 times as long" in slower.finding
        equal = Operations(warm, np.full(8, 1e-5), 1e5, "ext4")
        assert equal.cold_factor is None and "no clear difference" in equal.finding

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (2.14e-6, "2.1 µs"),
            (9.96e-6, "10 µs"),
            (1.5e-4, "150 µs"),
            (9.999e-4, "1.0 ms"),
            (0.0041, "4.1 ms"),
            (2, "2.0 s"),
        ],
    )
    def test_times_are_said_as_people_say_them(self, seconds, text):
        assert micro_text(seconds) == text


def rung(size, layout, cache, *rates):
    return Rung(size, layout, cache, rates)


class TestLadder:
    def test_each_size_is_read_in_both_layouts(self, tmp_path):
        ladder = measure_ladder(tmp_path / "x", sizes_bytes=(1000, 300_000), rounds=2)
        assert [r.size_bytes for r in ladder.line("many files", "warm")] == [1000, 300_000]
        assert {len(r.bytes_per_s) for r in ladder.rungs} == {2}
        assert len(ladder.rungs) == 4 * len(ladder.caches)
        many = b"".join((tmp_path / "x/1000" / f"{n}.bin").read_bytes() for n in range(128))
        assert many == (tmp_path / "x/1000/one").read_bytes()

    def test_memory_has_no_cold_curve(self, tmp_path, monkeypatch):
        monkeypatch.setattr("smallfiles.measure.cache.can_be_cold", lambda path: False)
        ladder = measure_ladder(tmp_path / "x", sizes_bytes=(1000,), rounds=1)
        assert ladder.caches == ["warm"] and "tmpfs" in ladder.notes[0]

    def test_a_shared_file_system_gets_fewer_files(self, tmp_path, on_a_shared_filesystem, monkeypatch):
        monkeypatch.setattr("smallfiles.measure.neighbour.OPERATIONS", 100)
        ladder = measure_ladder(tmp_path / "x", sizes_bytes=(1000,), rounds=1)
        assert len(list((tmp_path / "x/1000").glob("*.bin"))) <= 100 // 3 and "lustre" in ladder.notes[0]

    def test_a_full_disk_is_a_sentence(self, tmp_path):
        (tmp_path / "x").write_text("in the way")
        with pytest.raises(ResourceError, match="cannot be written"):
            measure_ladder(tmp_path / "x", sizes_bytes=(1000,), rounds=1)

    def test_findings_follow_the_numbers(self):
        ladder = Ladder(
            (
                rung(1_000, "many files", "warm", 10, 11, 10),
                rung(64_000, "many files", "warm", 100, 100, 100),
                rung(1_000, "one file", "warm", 50, 55, 50),
                rung(64_000, "one file", "warm", 110, 100, 105),
            ),
            "ext4",
        )
        assert ladder.finding == "Files of 64 kB are read 10 times (warm) as fast as files of 1 kB"
        assert "1 kB come out of one large file 5.0 times as fast (warm)" in ladder.gain_finding
        assert ladder.even_bytes("warm") == 64_000
        assert ladder.even_finding == "Many files reach half the speed of one from 64 kB on (warm)"
        assert "one file, warm: 1 kB 50 B/s" in ladder.alt_text

    def test_no_effect_is_said(self):
        ladder = Ladder(
            tuple(
                rung(s, lay, "warm", 9, 10, 11) for lay in ("many files", "one file") for s in (1000, 4000)
            ),
            "tmpfs",
        )
        assert ladder.finding == "No clear difference between files of 1 kB and files of 4 kB"
        assert "not clearly faster (warm)" in ladder.gain_finding

    def test_opening_that_always_counts_most_is_said(self):
        ladder = Ladder((rung(1000, "many files", "warm", 1), rung(1000, "one file", "warm", 9)), "lustre")
        assert ladder.even_bytes("warm") is None and "At no size" in ladder.even_finding

    def test_round_sizes_are_short(self):
        assert [size_text(n) for n in (1_000, 64_000, 1_500_000)] == ["1 kB", "64 kB", "1.5 MB"]


class TestModelServer:
    def test_one_open_waits(self, tree):
        server = ModelServer(FolderStore(tree), wait_s=0.01, opens_per_s=10_000)
        assert 0.04 <= seconds_to_read(server, ["a/1"] * 4, 5000, in_flight=1) < 0.4

    def test_waiting_together_is_quicker_until_the_server_is_the_limit(self, tree):
        server = ModelServer(FolderStore(tree), wait_s=0.02, opens_per_s=400)
        one = seconds_to_read(server, ["a/2"] * 40, 5000, in_flight=1)
        many = seconds_to_read(server, ["a/2"] * 40, 5000, in_flight=40)
        assert one >= 0.8 and many >= 0.099 and many < one / 2

    def test_the_bytes_are_those_of_the_store(self, tree):
        (tree / "a/1").write_bytes(b"x")
        buffer = bytearray(4)
        server = ModelServer(FolderStore(tree), wait_s=0)
        assert server.read_into("a/1", memoryview(buffer)) == 1 and buffer[:1] == b"x"
        assert server.size("a/2") == 5000

    def test_it_says_that_it_is_a_model_and_can_be_sent_to_a_worker(self, tree):
        server = pickle.loads(pickle.dumps(ModelServer(FolderStore(tree), 0.003, 500)))
        assert server.describe().startswith("model server (3 ms, 500 opens/s) over folder")

    @pytest.mark.parametrize(("wait_s", "rate"), [(-1, 100), (0.1, 0)])
    def test_impossible_servers_are_refused(self, tree, wait_s, rate):
        with pytest.raises(UsageError, match="wait of"):
            ModelServer(FolderStore(tree), wait_s, rate)


class TestInFlight:
    def test_every_number_in_flight_is_measured(self, tree):
        found = measure_in_flight(
            FolderStore(tree), ["a/1", "a/2", "4"], 5000, name="local", folder=tree, counts=(2, 8), rounds=2
        )
        assert list(found.rates_per_s) == [1, 2, 8]
        assert all(len(rates) == 2 and min(rates) > 0 for rates in found.rates_per_s.values())

    def test_a_cold_run_forgets_the_files_first(self, tree, monkeypatch):
        dropped = []
        monkeypatch.setattr(
            "smallfiles.measure.cache.drop", lambda files, clean=False: dropped.append((files, clean))
        )
        measure_in_flight(
            FolderStore(tree), ["a/1"], 5000, name="x", folder=tree, counts=(1,), rounds=2, cold=True
        )
        assert dropped == [([tree / "a/1"], False)] + [([tree / "a/1"], True)] * 3

    def test_a_shared_file_system_gets_few_at_once(self, tree, on_a_shared_filesystem):
        found = measure_in_flight(FolderStore(tree), ["a/1"], 5000, name="x", folder=tree, rounds=1)
        assert max(found.rates_per_s) == 4 and "4 in flight" in found.notes[0]

    def test_a_file_that_cannot_be_read_is_named(self, tree):
        with pytest.raises(SourceError, match="nothing is missing"):
            seconds_to_read(FolderStore(tree), ["a/1", "nothing"], 5000, in_flight=2)

    def test_findings_follow_the_numbers(self):
        found = InFlight("server", {1: (10, 10, 10), 8: (80, 79, 82), 64: (81, 80, 82)})
        assert (found.enough, found.best) == (8, 64)
        assert found.finding == "server: 8 opens in flight are 8.0 times as fast as one"
        assert InFlight("local", {1: (10, 11), 2: (9, 10)}).finding.endswith("gain nothing clear")
        assert "64 in flight 81" in found.alt_text

    def test_slow_storage_is_compared_with_what_its_numbers_promise(self):
        storage, asked = SlowConfig(0.002, servers=8), {"lookup": 201, "open": 200}
        reached = slow_finding(InFlight("slow", {1: (250.0,), 8: (1900.0,)}), storage, asked)
        assert "Each file took 2.0 operations" in reached and "or 2,000 files" in reached
        assert "8 at once, 2 ms each, are 4,000 operations a second" in reached
        assert "Measured: 1,900 files a second; 8 in flight" in reached and "ended it first" not in reached
        capped = slow_finding(InFlight("slow", {1: (250.0,), 4: (900.0,)}), storage, asked)
        assert "Something else ended it first" in capped
        boundless = slow_finding(InFlight("slow", {1: (250.0,)}), SlowConfig(0.002), asked)
        assert "at once" not in boundless and "ended" not in boundless

    def test_a_slow_store_gains_from_files_in_flight(self, tree):
        store = SlowStore(FolderStore(tree), SlowConfig(0.005))
        paths = ["a/1", "a/2", "4"] * 8
        found = measure_in_flight(store, paths, 5000, name="slow storage", folder=tree, counts=(8,), rounds=1)
        assert found.gain.median > 3 and store.counts()["open"] == 3 * len(paths)
