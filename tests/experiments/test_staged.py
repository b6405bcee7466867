"""The experiments of notebook 07 at a small size: what they claim is what happened."""

import os
from pathlib import Path

import pytest

from helpers.experiments import nb07 as staged
from helpers.experiments.nb07 import places
from helpers.experiments.nb07.processes import Stager, stagers
from smallfiles import slowfs, sources
from smallfiles.errors import ResourceError
from smallfiles.machine import nodelocal
from smallfiles.pack import PackConfig, pack
from smallfiles.slowfs import SlowConfig
from smallfiles.sources import synthetic

STORAGE = SlowConfig(latency_s=0.001, servers=8, bandwidth_bytes_s=20e6)
mounts = pytest.mark.skipif(slowfs.why_not() is not None, reason="this machine lets nobody mount")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "set"
    synthetic.make(folder, "folder", count=60, seed=1)
    return sources.load(folder), folder


@pytest.fixture(scope="module")
def packed(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "train.arrow"
    return pack(images[0], out, PackConfig(verify="none")).path


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "node"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


@mounts
def test_one_process_copies_the_others_wait_and_the_storage_delivers_the_file_once(packed, place):
    found = staged.measure_together(packed, place, STORAGE, processes=3)
    assert sum(rank.copied for rank in found.ranks) == 1 and found.left_bytes == 0
    assert found.bytes <= found.delivered_bytes < 1.5 * found.bytes
    assert all(rank.ended_s >= 0.5 * found.bytes / 20e6 for rank in found.ranks)


@mounts
def test_sigterm_leaves_nothing_and_what_sigkill_leaves_the_next_stage_removes(packed, place):
    rows = {(row.moment, row.signal): row for row in staged.measure_killed(packed, place, STORAGE)}
    assert len(rows) == 4 and all(row.after_bytes == 0 for row in rows.values())
    assert rows["copying", "SIGTERM"].left_bytes == rows["using", "SIGTERM"].left_bytes == 0
    half, whole = rows["copying", "SIGKILL"], rows["using", "SIGKILL"]
    assert 0 < half.left_bytes < whole.left_bytes and half.state == whole.state == "leftover"
    assert whole.reused and not half.reused
    assert "left nothing" in rows["copying", "SIGTERM"].summary


def test_epochs_are_measured_and_the_copy_pays_on_slow_storage(images, packed, place):
    source, folder = images
    found = staged.measure_epochs(source, folder, packed, place, STORAGE, repeats=2)
    assert found.images == 60 and len(found.copy_s) == 2
    assert min(found.files_s) > min(found.staged_s) and found.crossing() is not None
    assert found.finding.startswith("Staging has paid after")


def test_without_mounts_the_same_is_measured_in_this_process(images, packed, place, monkeypatch):
    def refuse(*arguments, **more):
        raise ResourceError("it is a test", expected="a mount", next_step="Nothing")

    monkeypatch.setattr("smallfiles.slowfs.opened.mounted", refuse)
    source, folder = images
    found = staged.measure_epochs(source, folder, packed, place, STORAGE, repeats=1)
    assert found.copy_s[0] >= 0.9 * found.bytes / 20e6 and "Not mounted" in found.note
    together = staged.measure_together(packed, place, STORAGE, processes=2)
    assert together.delivered_bytes is None and "would be read" in together.traffic
    assert {row.moment for row in staged.measure_killed(packed, place, STORAGE)} == {"using"}


def test_every_name_of_node_local_storage_is_told(tmp_path):
    text = staged.named_table({"TMPDIR": str(tmp_path), "L_SCRATCH": str(tmp_path / "gone")})
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert set(lines) == {*nodelocal.VARIABLES, "/dev/shm"}
    assert "this job may fill" in lines["TMPDIR"] and "is not there" in lines["L_SCRATCH"]
    assert lines["SLURM_TMPDIR"] == "not set"


def test_without_room_a_folder_on_disk_stands_for_the_node(packed, tmp_path):
    place, note = staged.place_for(packed, 1 << 60, tmp_path)
    assert place == tmp_path and "stands for it" in note


def test_a_file_in_memory_is_memory_of_the_job():
    price = staged.price_of_memory(8 << 20, repeats=3)
    assert price is None or price.file_bytes == 8 << 20
    told = staged.Price(100_000_000, 101_000_000, True, 900_000_000).finding
    assert "of the memory of this job; 900 MB are left" in told and told.endswith("The file is memory.")
    other = staged.Price(100_000_000, 5_000_000, False, 900_000_000).finding
    assert "of this machine" in other and other.endswith("run this cell again.")


def test_memory_of_files_is_read_for_the_job_and_for_the_machine(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nShmem:   7 kB\n")
    (tmp_path / "memory.stat").write_text("anon 5\nshmem 4096\n")
    assert places._taken_by_files(tmp_path) == (4096, 7 * 1024)


def test_a_folder_on_disk_is_not_taken_for_memory(tmp_path):
    if nodelocal.node_local(tmp_path).in_memory:
        pytest.skip("temporary files are in memory here")
    assert staged.price_of_memory(1 << 20, tmp_path) is None


def test_a_process_that_fails_is_told_and_none_stays(place, tmp_path):
    with pytest.raises(ResourceError, match="ended with code"), stagers(2, tmp_path / "gone", place) as two:
        two[0].begin()
        two[0].result()
    assert all(isinstance(one, Stager) and one.process.returncode is not None for one in two)
    assert not any(Path(f"/proc/{one.process.pid}").exists() for one in two if one.process.pid != os.getpid())
