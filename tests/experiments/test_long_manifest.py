"""Notebook 02: the long manifest is what a manifest of ImageNet would be, and written once."""

from helpers.experiments.nb02 import long_manifest
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
