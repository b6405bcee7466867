"""The slow storage of notebook 07: mounted, or slept where nothing can be mounted."""

from time import perf_counter

import pytest

from helpers.experiments.nb07 import Slow, on_slow_storage
from smallfiles.slowfs import SlowConfig, why_not

CONFIG = SlowConfig(latency_s=0.02, bandwidth_bytes_s=1e6)


@pytest.fixture
def places(tmp_path):
    packed, files = tmp_path / "packed" / "train.arrow", tmp_path / "files"
    for path in (packed, files / "a.jpg"):
        path.parent.mkdir()
        path.write_bytes(path.name.encode())
    return packed, files


def seconds(task):
    began = perf_counter()
    assert task() == b"train.arrow"
    return perf_counter() - began


def test_without_slow_storage_a_task_is_the_work_alone(places):
    place = Slow(*places)
    assert place.note == ""
    assert seconds(place.task(place.packed.read_bytes, operations=10_000, reads=10**12)) < 5


def test_where_nothing_is_mounted_a_task_sleeps_for_its_operations_and_bytes(places):
    place = Slow(*places, CONFIG)
    assert "slept" in place.note
    assert seconds(place.task(place.packed.read_bytes, operations=4, reads=100_000)) >= 0.18


@pytest.mark.skipif(bool(why_not()), reason="no FUSE here")
def test_a_mounted_folder_is_slow_by_itself(places):
    with on_slow_storage(*places, CONFIG) as place:
        assert (place.files / "a.jpg").read_bytes() == b"a.jpg"
        assert place.config is None and place.packed != places[0]
        assert seconds(place.task(place.packed.read_bytes, operations=10_000)) >= 0.02


def test_without_a_mount_the_places_are_those_of_this_disk(places, monkeypatch):
    monkeypatch.setattr("smallfiles.slowfs.mounting.mounted", refused)
    with on_slow_storage(*places, CONFIG) as place:
        assert (place.packed, place.files, place.config) == (*places, CONFIG)


def refused(*arguments, **named):
    from smallfiles.errors import ResourceError

    raise ResourceError("no mount", expected="a mount", next_step="none")
