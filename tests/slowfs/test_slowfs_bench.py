"""Packing from a slow folder is measured against scripts and against what the mount serves."""

import pytest

from benchmarks.__main__ import main
from benchmarks.slow import CEILING, SERIAL
from smallfiles.measure.record import load
from smallfiles.slowfs import KIND
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    out = tmp_path_factory.mktemp("slow") / "set"
    synthetic.make(out, "folder", count=96, classes=3, size=(48, 32))
    return out


@pytest.mark.usefixtures("fuse")
def test_the_command_saves_a_record_of_every_method_with_its_storage_and_shows_them(images, tmp_path, capsys):
    words = ["slow", str(images), "--latency-ms", "1", "--repeats", "2", "--count", "64"]
    assert main([*words, "--save", str(tmp_path / "slow.json")]) == 0
    out = capsys.readouterr().out
    assert "packing at 1 ms an operation" in out and SERIAL in out
    assert str(images) not in (tmp_path / "slow.json").read_text()
    records = load(tmp_path / "slow.json")
    names = [record.name for record in records]
    assert names == [SERIAL, "Jülich Arrow", "Aalto shards", "webdataset", CEILING, "arrow", "hdf5", "tar"]
    for record in records:
        assert record.repeats == 2 and record.filesystem == KIND and record.samples == 64
        assert record.extra["latency_s"] == 0.001
        assert record.set_samples == 96
    assert {record.conditions()["what"] for record in records} == {"packing at 1 ms an operation"}
    by_name = {record.name: record for record in records}
    assert by_name[SERIAL].extra["in_flight"] == 1 and by_name["tar"].extra["in_flight"] == 32
    assert by_name[SERIAL].spread.maximum <= 1 / (2 * 0.001)  # a look-up and an open for each sample
