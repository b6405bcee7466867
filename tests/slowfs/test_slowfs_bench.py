"""Packing from a slow folder is measured against scripts and against what the mount serves."""

import re

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


@pytest.mark.slow
@pytest.mark.usefixtures("fuse")
def test_advice_is_measured_beside_epochs_of_plain_files_and_of_a_packed_file(images, tmp_path, capsys):
    words = ["advice", str(images), "--latency-ms", "20", "--repeats", "1"]
    assert main([*words, "--save", str(tmp_path / "advice.json")]) == 0
    assert "note: advised: packed" in capsys.readouterr().err
    files, packed = load(tmp_path / "advice.json")
    assert files.extra["opens_per_1000"] >= 1000 and packed.extra["opens_per_1000"] < 100
    assert files.extra["forecast_per_s"] < packed.extra["forecast_per_s"]


@pytest.mark.slow
@pytest.mark.usefixtures("fuse")
def test_growth_counts_what_a_sample_costs_in_sets_of_several_sizes(tmp_path, capsys):
    assert main(["growth", str(tmp_path), "--counts", "1000,4000", "--repeats", "1"]) == 0
    said = capsys.readouterr().err
    for name in ("arrow", "tar"):
        assert f"note: {name}, 1,000 / 4,000 samples: packing takes" in said
    (calls,) = re.findall(r"arrow.* and ([\d.]+) / ([\d.]+) system calls per sample", said)
    assert float(calls[1]) <= 1.1 * float(calls[0])
    assert not list(tmp_path.iterdir())
