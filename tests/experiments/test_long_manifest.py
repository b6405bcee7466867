"""Notebook 02: the long manifest is what a manifest of ImageNet would be, and written once."""

from helpers.experiments.nb02 import copied_by_workers, list_bytes, long_manifest
from smallfiles.manifest import Manifest


def test_it_has_as_many_rows_as_asked_for_in_a_thousand_classes(tmp_path):
    path = long_manifest(tmp_path, 1_500)
    found = Manifest.load(path)
    assert len(found) == 1_500 and set(found.targets.to_pylist()) == set(range(1_000))
    assert 40 < sum(map(len, found.paths.to_pylist())) / len(found) < 60


def test_it_is_written_once(tmp_path):
    written = long_manifest(tmp_path, 10).stat().st_mtime_ns
    assert long_manifest(tmp_path, 10).stat().st_mtime_ns == written
    assert len(Manifest.load(long_manifest(tmp_path, 20))) == 20


def test_a_list_is_as_large_as_its_objects_and_an_object_counts_once():
    one, two = ("a" * 50, 7), ("b" * 50, 7)
    both = list_bytes([one, two])
    assert both > 2 * sum(map(len, (one[0], two[0])))
    assert list_bytes([one, one]) < both


def test_each_worker_reads_its_share_and_says_how_its_cost_grew():
    reads = []

    class Counting:
        def __getitem__(self, index):
            reads.append(index)
            assert len(set(reads)) == len(reads)

    found = copied_by_workers(Counting(), 80, (5, 20), lambda: float(len(reads)), workers=4)
    assert found == {5: [5.0] * 4, 20: [20.0] * 4}
    assert reads == []  # the workers are processes of their own
