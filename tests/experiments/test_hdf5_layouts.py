"""Layouts of HDF5 measured: equal bytes from each, and what a random read costs in bytes."""

from functools import partial

import h5py
import numpy as np
import pytest

from helpers.experiments import nb04 as bench
from helpers.experiments.nb04 import layouts, rates
from smallfiles import sources
from smallfiles.errors import DamagedFileError
from smallfiles.formats import hdf5
from smallfiles.samples import Sample
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def samples():
    chosen = np.random.default_rng(0)
    sizes = [0, 70_001, 1, *chosen.integers(20_000, 90_000, 40).tolist(), 3]
    return [Sample(str(n), chosen.bytes(size), n % 7) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("layout", layouts.READ, ids=lambda layout: layout.name)
def test_every_layout_gives_back_what_it_was_given(layout, samples, tmp_path):
    layout.write(samples, tmp_path / "x.h5")
    with layout.open(tmp_path / "x.h5") as read:
        assert [bytes(read(n)) for n in range(len(samples))] == [sample.data for sample in samples]


CONTIGUOUS = [layout for layout in layouts.WRITTEN if "chunks" not in layout.name]


@pytest.mark.parametrize("layout", CONTIGUOUS, ids=lambda layout: layout.name)
def test_our_reader_reads_what_every_writer_without_chunks_wrote(layout, samples, tmp_path):
    layout.write(samples, tmp_path / "x.h5")
    reader = hdf5.open(tmp_path / "x.h5")
    assert [(bytes(s.data), s.target) for s in reader] == [(s.data, s.target) for s in samples]


def test_both_conversions_give_the_same_array():
    data = bytes(range(256))
    assert (bench.by_list(data) == bench.by_buffer(data)).all()
    assert bench.by_list(data).dtype == bench.by_buffer(data).dtype == np.uint8


def test_contiguous_storage_reads_what_it_delivers_and_chunks_read_more(samples, tmp_path):
    order = list(range(3, 40, 3))
    found = {}
    for layout in layouts.READ:
        layout.write(samples, tmp_path / "x.h5")
        found[layout.name] = rates.read_per_delivered(layout, tmp_path / "x.h5", order)
        (tmp_path / "x.h5").unlink()
    assert found["blob"] == pytest.approx(1, abs=0.02)
    assert found["blob by our pread"] == found["blob by our mmap"] == found["vlen by our reader"] == 1
    assert found["vlen"] == pytest.approx(1, abs=0.1)
    assert found["blob in 1 MiB chunks"] > 1.5
    assert found["blob in gzip chunks"] > 1.5  # random bytes do not shrink


def test_records_hold_all_rounds_and_can_be_drawn_together(samples, tmp_path, monkeypatch):
    from helpers import figures as plots

    monkeypatch.setattr(rates, "RUN_S", 0.001)
    for records in (
        bench.bench_writes(samples[:12], tmp_path, repeats=2),
        bench.bench_random_reads(samples, tmp_path, repeats=2),
    ):
        assert {record.repeats for record in records} == {2}
        plots.check_comparable(records)
    assert all(record.extra["read_per_delivered"] >= 1 for record in records)
    assert not list(tmp_path.iterdir())


def test_a_layout_that_gives_other_bytes_is_refused(samples, tmp_path):
    layouts.write_blob(samples, tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["train/data"][5] ^= 1
    right = [rates.xxhash.xxh3_64_intdigest(sample.data) for sample in samples]
    layout = next(one for one in layouts.READ if one.name == "blob")
    with pytest.raises(DamagedFileError, match=r"sample 1 of .* other bytes"):
        rates._read_once(layout, tmp_path / "x.h5", range(len(samples)), right)


def test_samples_are_loaded_up_to_a_limit(tmp_path):
    synthetic.make(tmp_path / "data", "folder", count=20, classes=2)
    source = sources.load(tmp_path / "data")
    everything = bench.load(source)
    assert [sample.key for sample in everything] == source.manifest.paths.to_pylist()
    assert everything[3].data == (tmp_path / "data" / everything[3].key).read_bytes()
    size = sum(len(sample.data) for sample in everything[:5])
    assert bench.load(source, most_bytes=size) == everything[:5]


def test_writing_again_replaces_the_file(samples, tmp_path):
    for write in (layouts.write_blob, layouts.write_vlen, partial(layouts.write_blob, chunk_bytes=1 << 16)):
        write(samples[:3], tmp_path / "x.h5")
        write(samples[:5], tmp_path / "x.h5")
        with h5py.File(tmp_path / "x.h5") as file:
            assert len(file["train"]["targets" if "targets" in file["train"] else "labels"]) == 5
