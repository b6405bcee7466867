"""Ways to read a squashfs file agree on bytes and leave nothing behind."""

import random
from pathlib import Path

import pytest

from benchmarks import ways
from benchmarks.__main__ import main
from pysquashfs import pack
from smallfiles.errors import ResourceError, UsageError
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench
from smallfiles.samples import Sample

SAMPLES = [  # a little smaller when compressed, as photographs are
    Sample(f"c{n % 3}/{n}.jpg", random.Random(n).randbytes(3000 + 999 * n) + bytes(200), n % 3)
    for n in range(12)
]
QUICK = BenchConfig(repeats=2, count=8)


@pytest.fixture
def tree(tmp_path):
    for sample in SAMPLES:
        path = tmp_path / "tree" / sample.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.data)
    return tmp_path / "tree"


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "x.sqfs"
    pack(path, [(s.key, s.data) for s in SAMPLES])
    return path


def mounts():
    return set(Path("/proc/mounts").read_text().splitlines())


def measured(image, tree, config, chosen=None):
    bench = Bench(config, ())
    ways.measure_ways(bench, image, tree, config, chosen or ways.usable_ways(image)[0])
    return bench.records


def test_ways_that_are_missing_are_named_with_the_reason(image, monkeypatch):
    monkeypatch.setattr(ways, "find_spec", lambda name: None)
    monkeypatch.setattr(ways.libsquashfs, "available", lambda: None)
    usable, notes = ways.usable_ways(image)
    assert usable[0] == "pysquashfs, pure"
    assert any("PySquashfsImage was not measured" in note for note in notes)
    assert any("libsquashfs is not installed" in note for note in notes)


def test_all_ways_at_hand_read_the_same_and_no_mount_stays(tree, image):
    before = mounts()
    records = measured(image, tree, QUICK)
    assert records[0].name == ways.PLAIN and records[1].name == "pysquashfs, pure"
    assert {record.conditions()["what"] for record in records} == {"random reads"}
    assert mounts() == before


def test_a_way_that_gives_other_bytes_is_refused(tree, image):
    (tree / SAMPLES[0].key).write_bytes(b"x")
    with pytest.raises(UsageError, match="gave other bytes than plain files"):
        measured(image, tree, BenchConfig(repeats=1, count=12), ["pysquashfs, pure"])


def test_the_verb_measures_a_folder_and_leaves_nothing(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    try:
        assert main(["squashfs", str(tree), "--repeats", "1", "--cache", "warm"]) == 0
    except ResourceError as error:
        pytest.skip(str(error))
    said = capsys.readouterr().out
    assert "pysquashfs, pure" in said and "plain files" in said
    assert list((tmp_path / "tmp").iterdir()) == []
