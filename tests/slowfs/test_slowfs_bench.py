"""Packing from a slow folder is measured against scripts and against what the mount serves."""

import json

import pytest

from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.measure import BenchConfig
from smallfiles.measure.slow import CEILING, SERIAL, bench_slow
from smallfiles.slowfs import KIND, SlowConfig
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    out = tmp_path_factory.mktemp("slow") / "set"
    synthetic.make(out, "folder", count=96, classes=3, size=(48, 32))
    return out


@pytest.mark.usefixtures("fuse")
def test_every_method_has_a_record_with_the_storage_it_was_measured_on(images):
    result = bench_slow(
        images, BenchConfig(repeats=2, count=64), SlowConfig(0.001, servers=64), others="benchmarks.packing"
    )
    names = [record.name for record in result.records]
    assert names == [SERIAL, "Jülich Arrow", "webdataset", CEILING, "arrow", "hdf5", "tar"]
    for record in result.records:
        assert record.repeats == 2 and record.filesystem == KIND and record.samples == 64
        assert (record.extra["latency_s"], record.extra["servers"]) == (0.001, 64)
        assert record.set_samples == 96
    assert {record.conditions()["what"] for record in result.records} == {
        "packing at 1 ms an operation, 64 at once"
    }
    by_name = {record.name: record for record in result.records}
    assert by_name[SERIAL].extra["in_flight"] == 1 and by_name["tar"].extra["in_flight"] == 32
    assert by_name[CEILING].spread.median > 2 * by_name[SERIAL].spread.median
    assert "1 ms an operation" in result.notes[0]


@pytest.mark.usefixtures("fuse")
def test_the_command_saves_what_it_shows(images, tmp_path, capsys):
    saved = tmp_path / "slow.json"
    words = ["bench", "slow", str(images), "--latency-ms", "0.5", "--repeats", "1", "--count", "40"]
    assert main([*words, "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "packing at 0.5 ms an operation" in out and SERIAL in out
    records = json.loads(saved.read_text())["records"]
    assert len(records) == 5 and str(images) not in saved.read_text()


def test_what_is_no_folder_is_refused(images):
    with pytest.raises(UsageError, match="is no folder"):
        bench_slow(images / "nothing")
