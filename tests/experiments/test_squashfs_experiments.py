"""Ways to read a squashfs file agree on bytes and leave nothing behind."""

import random
import shutil
from pathlib import Path

import pytest

from benchmarks import ways
from benchmarks.__main__ import main
from pysquashfs import pack
from pysquashfs.libsquashfs import available
from smallfiles.errors import UsageError
from smallfiles.measure import BenchConfig, load
from smallfiles.measure import cache as page_cache
from smallfiles.measure.bench import Bench
from smallfiles.samples import Sample

SAMPLES = [  # a little smaller when compressed, as photographs are
    Sample(f"c{n % 3}/{n}.jpg", (random.Random(n).randbytes(4800) + bytes(200),), n) for n in range(12)
]
WHOLE = BenchConfig(repeats=1, count=12)


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


def test_ways_that_are_missing_are_named_with_the_reason(image, monkeypatch):
    monkeypatch.setattr(ways, "find_spec", lambda name: None)
    usable, notes = ways.usable_ways(image)
    assert usable[0] == "pysquashfs"
    assert any("PySquashfsImage was not measured" in note for note in notes)


def test_a_way_that_gives_other_bytes_is_refused(tree, image):
    (tree / SAMPLES[0].key).write_bytes(b"x")
    with pytest.raises(UsageError, match="gave other bytes than plain files"):
        ways.measure_ways(Bench(WHOLE, ()), image, tree, WHOLE, ["pysquashfs"])


def test_the_verb_measures_every_way_beside_mksquashfs_and_leaves_nothing(
    tree, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    before = mounts()
    assert (
        main(["squashfs", str(tree), "--repeats", "1", "--count", "10", "--save", str(tmp_path / "r.json")])
        == 0
    )
    assert mounts() == before and list((tmp_path / "tmp").iterdir()) == []
    said = capsys.readouterr().out
    assert "pysquashfs" in said and "plain files" in said and "failed" not in said
    found = {}
    for record in load(tmp_path / "r.json"):
        found.setdefault((record.what, record.cache), []).append(record.name)
        assert record.bytes == record.samples * 5000 and record.set_samples in (10, 12)
        assert record.extra["cpu_s"] >= 0
    both = ["pysquashfs", *[ways.LIBRARY] * (available() is not None)]
    for what in ("random reads", "random reads, gzip"):
        assert found[what, "warm"][: 1 + len(both)] == [ways.PLAIN, *both]
        if page_cache.can_be_cold(tmp_path):
            cold = found[what, "cold"]
            assert cold[: len(both)] == both and cold[-2:] == ["read_many, 1 thread", "read_many, 8 threads"]
    tools = [name for name in ("mksquashfs", "gensquashfs") if shutil.which(name)]
    assert found["packing an image", "warm"] == both + tools
