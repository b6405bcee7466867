"""The counters of `slowfs` are found from a mount, and packed files are read with few requests."""

import os

import numpy as np
import pytest

from smallfiles import cli, formats, measure, slowfs
from smallfiles.formats import bytefile
from smallfiles.slowfs import SlowConfig, SlowFolder, SlowStore
from smallfiles.sources import synthetic
from smallfiles.sources.record import FolderStore

REQUEST_BYTES = 128 << 10
SUFFIXES = ("files", "arrow", "h5", "tars", "sqfs")


def test_without_a_mount_the_reads_of_the_store_are_counted(folder):
    store = SlowStore(FolderStore(folder, follow_links=True), SlowConfig(latency_s=0))
    slow = SlowFolder(folder, store.config, "in-process", store, store.counts)
    with measure.requests(slow) as asked:
        store.read_into("4.jpg", memoryview(bytearray(300_000)))
    assert asked.counts == {"lookups": 1, "opens": 1, "metadata": 2, "reads": 1, "bytes": 300_000}
    assert "slowfs for this process" in str(asked)


@pytest.mark.usefixtures("fuse")
def test_counters_of_a_mount_are_found_from_its_path(folder):
    with slowfs.mounted(folder, SlowConfig(latency_s=0)) as slow:
        for storage in (slow, slow.path, slow / "a"):
            with measure.requests(storage) as asked:
                (slow / "4.jpg").read_bytes()
                (slow / "a/2.jpg").stat()
            assert asked["opens"] == 1 and asked["lookups"] >= 1 and asked["metadata"] >= 2
            assert "slowfs for all programs of this node" in str(asked)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    home = tmp_path_factory.mktemp("packed")
    synthetic.make(home / "set", "folder", count=300, classes=3)
    for suffix in SUFFIXES:
        assert cli.main(["pack", str(home / "set"), str(home / f"x.{suffix}")]) == 0
    return home


@pytest.mark.usefixtures("fuse")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_random_sample_costs_no_more_reads_than_its_bytes_and_a_packed_one_no_metadata(packed, suffix):
    with (
        slowfs.mounted(packed, SlowConfig(latency_s=0)) as slow,
        formats.open(slow / f"x.{suffix}") as reader,
    ):
        first, *rows = np.random.default_rng(0).permutation(len(reader))[:101].tolist()
        needed = sum(-(-reader.size(row) // REQUEST_BYTES) for row in rows)
        reader.read(first)
        with measure.requests(slow) as asked:
            for row in rows:
                reader.read(row)
        size = sum(map(reader.size, rows))
    assert 100 < asked["reads"] <= 1.02 * needed, asked
    assert asked["bytes"] <= 1.05 * size
    assert (asked["metadata"] >= 200) if suffix == "files" else (asked["metadata"] == 0)


def test_pieces_are_as_large_as_the_kernel_reads_ahead_and_never_smaller_than_its_default(tmp_path):
    unknown = bytefile._read_ahead_bytes(os.makedev(4000, 4000))
    assert unknown == bytefile.AHEAD_BYTES <= bytefile._read_ahead_bytes(tmp_path.stat().st_dev)
