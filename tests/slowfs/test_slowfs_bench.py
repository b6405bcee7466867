"""Packing from a slow folder is measured against scripts and against what the mount serves."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.slow import CEILING, SERIAL, SlowBenchConfig, bench_slow
from smallfiles.errors import UsageError
from smallfiles.slowfs import KIND
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    out = tmp_path_factory.mktemp("slow") / "set"
    synthetic.make(out, "folder", count=96, classes=3, size=(48, 32))
    return out


@pytest.mark.usefixtures("fuse")
def test_every_method_has_a_record_with_the_storage_it_was_measured_on(images):
    config = SlowBenchConfig(repeats=2, count=64, latency_ms=1.0)
    result = bench_slow(images, config)
    names = [record.name for record in result.records]
    assert names == [SERIAL, "Jülich Arrow", "Aalto shards", "webdataset", CEILING, "arrow", "hdf5", "tar"]
    for record in result.records:
        assert record.repeats == 2 and record.filesystem == KIND and record.samples == 64
        assert record.extra["latency_s"] == 0.001
        assert record.set_samples == 96
    assert {record.conditions()["what"] for record in result.records} == {"packing at 1 ms an operation"}
    by_name = {record.name: record for record in result.records}
    assert by_name[SERIAL].extra["in_flight"] == 1 and by_name["tar"].extra["in_flight"] == 32
    assert by_name[CEILING].spread.median > 2 * by_name[SERIAL].spread.median
    assert "1 ms an operation" in result.notes[0]


@pytest.mark.usefixtures("fuse")
def test_the_command_saves_what_it_shows(images, tmp_path, capsys):
    saved = tmp_path / "slow.json"
    words = ["slow", str(images), "--latency-ms", "0.5", "--repeats", "1", "--count", "40"]
    assert main([*words, "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "packing at 0.5 ms an operation" in out and SERIAL in out
    records = json.loads(saved.read_text())["records"]
    assert len(records) == 8 and str(images) not in saved.read_text()


def test_what_is_no_folder_is_refused(images):
    with pytest.raises(UsageError, match="is no folder"):
        bench_slow(images / "nothing")
