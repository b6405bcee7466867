"""Ours beside others in one run: what fails costs a line, a loss is shown as plainly as a win."""

import contextlib
import dataclasses
import json
import os
import tarfile
from functools import partial
from pathlib import Path

import pytest

from benchmarks import first_batch, missing, packing, peers, reading
from benchmarks.loaders import material
from smallfiles import formats, objectstore, sources
from smallfiles.measure import BenchConfig, Failed, Record, Result, load, save
from smallfiles.measure.bench import Target
from smallfiles.measure.methods import listed
from smallfiles.measure.workers import WorkerPool
from smallfiles.objectstore.server import in_environment
from smallfiles.pack import pack
from smallfiles.sources import synthetic

COUNT = 12
LITDATA = """
import os, signal
def optimize(*words, **more):
    pass
class StreamingDataset:
    def __init__(self, *words):
        pass
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("peers") / "data"
    synthetic.make(root, "folder", count=COUNT, classes=2, size=(32, 32))
    return root


def test_a_store_that_takes_its_process_with_it_costs_the_others_nothing(folder, tmp_path, monkeypatch):
    (tmp_path / "litdata.py").write_text(LITDATA)
    monkeypatch.syspath_prepend(tmp_path)
    absent = reading.PeerSet("files", reading.STORES["plain files"].open, ("no_such_package",))
    chosen = {name: reading.STORES[name] for name in ("plain files", "LitData")}
    monkeypatch.setattr(reading, "STORES", {**chosen, "Absent": absent})
    monkeypatch.setattr(reading, "WorkerPool", partial(WorkerPool, "fork"))
    source = sources.load(folder)
    pack(source, tmp_path / "x.arrow")
    files, _ = listed(source)
    size = sum(Path(path).stat().st_size for path in files)
    target = Target(tmp_path / "x.arrow", "arrow", "arrow", COUNT, size)
    result = reading.bench_raw_reads(files, {"arrow": target.path}, target, BenchConfig(repeats=2))
    assert [each.name for each in result.records] == ["arrow", "plain files"]
    assert all(each.repeats == 2 and each.bytes % target.bytes == 0 for each in result.records)
    failed = {each.name: each.why for each in result.failed}
    assert failed["LitData"] == "its process was killed by SIGKILL"
    assert failed["Absent"].startswith("no_such_package is not installed: make bench-peers, or python")
    monkeypatch.setattr(reading, "STORES", {})
    wrong = reading.bench_raw_reads(
        [*files[1:], files[1]], {"arrow": target.path}, target, BenchConfig(repeats=1)
    )
    assert not wrong.records and wrong.failed[0].why == "other bytes came than were packed"


def test_aaltos_shards_have_every_sample_in_another_order_and_a_list_of_places(folder, tmp_path):
    paths, labels = listed(sources.load(folder))
    packing.aalto_shards(paths, labels, tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "0.tar") as tar:
        names = [name for name in tar.getnames() if name.endswith(".img")]
        found = {name: tar.extractfile(name).read() for name in names}
        places = {member.name: member.offset for member in tar.getmembers()}
    told = json.loads((tmp_path / "out" / "FileInfo.json").read_text())
    assert sorted(found.values()) == sorted(Path(path).read_bytes() for path in paths)
    assert names != sorted(names) and set(told) == set(paths)
    assert {Path(each["targetFile"]).name for each in told.values()} == {"0.tar"} and places


@pytest.mark.parametrize(
    "name", ["Lance", "Parquet", "Parquet, small row groups", "plain files through ratarmount"]
)
def test_a_store_of_others_gives_each_sample_by_its_number(folder, tmp_path, name):
    store, (files, _) = reading.STORES[name], listed(sources.load(folder))
    if missing(store.modules) or ("mount" in name and not os.access("/dev/fuse", os.W_OK)):
        pytest.skip(missing(store.modules) or "/dev/fuse is not open to this user")
    pack(sources.load(folder), tmp_path / "x.arrow")
    with formats.open(tmp_path / "x.arrow") as reader:
        for made in (material.FILES, store.material):
            material.MATERIAL[made](reader, tmp_path / made)
    opened = store.open(tmp_path)
    with opened if hasattr(opened, "__enter__") else contextlib.nullcontext(opened) as read:
        assert [bytes(read(at)) for at in range(COUNT)] == [Path(path).read_bytes() for path in files]


def test_requests_until_the_first_batch_are_counted_for_each_client(folder, tmp_path, monkeypatch):
    chosen = {name: first_batch.CLIENTS[name] for name in ("ours, tar shards", "Parquet, in order")}
    monkeypatch.setattr(first_batch, "CLIENTS", {**chosen, "Absent": ("x", None, ("no_such_package",))})
    monkeypatch.setattr(first_batch, "WorkerPool", partial(WorkerPool, "fork"))
    monkeypatch.setattr(first_batch, "BATCH", 5)
    pack(sources.load(folder), tmp_path / "x.arrow")
    size = sum(path.stat().st_size for path in folder.glob("*/*"))
    target = Target(tmp_path / "x.arrow", "arrow", "arrow", COUNT, size, "JPEG")
    found = first_batch.bench_first_batch(target, BenchConfig(repeats=1))
    assert [each.name for each in found.records] == [*chosen] and [each.name for each in found.failed] == [
        "Absent"
    ]
    for each in found.records:
        assert each.samples == COUNT and each.extra["bytes_epoch"] > size
        assert all(
            0 <= each.extra[f"{kind}_first_batch"] <= each.extra[f"{kind}_epoch"]
            for kind in first_batch.KINDS
        )
        assert each.extra["GET_first_batch"] > 0
    assert sorted(path.name for path in tmp_path.iterdir() if "bench" in path.name) == []


def test_a_relay_counts_each_request_by_its_kind(tmp_path):
    (tmp_path / "course").mkdir()
    with objectstore.serving(tmp_path), first_batch.counting(os.environ["AWS_ENDPOINT_URL"]) as (url, log):
        with in_environment({**os.environ, "AWS_ENDPOINT_URL": url}):
            store = objectstore.Store(objectstore.StoreUrl("course"))
            store.put("a", b"12345")
            assert [each.name for each in store.entries()] == ["a"]
            assert store.get("a") == store.get("a") and store.head("a").bytes == 5
        counts = first_batch.counted(log)
    size = counts.pop("bytes")
    assert counts == {"PUT": 1, "LIST": 1, "GET": 2, "HEAD": 1} and size > 10


MACHINE = {"cpu": "x", "cpus_usable": 2, "memory_bytes": 8 << 30, "system": "y", "kernel": "6", "python": "3"}


def record(name, *rates, **changes):
    found = ("random reads", name, name, rates, 5, 500, 0.5, "tmpfs", "warm", "all", 5, 500)
    return dataclasses.replace(Record(*found, machine=MACHINE), **changes)


def test_the_table_says_who_is_ahead_and_the_figure_lies_beside_it(tmp_path):
    reads = record("arrow", 10.0, 10.2), record("plain files", 50.0, 51.0), record("LitData", 30.0, 31.0)
    ours = {
        "utilisation": 1.0,
        "accelerators": 3.0,
        "cpu_s": 0.02,
        "memory_bytes": 70_000_000,
        "load": [1.0, 9.0],
    }
    theirs = {"utilisation": 0.5, "accelerators": 0.0}
    epochs = [
        record(f"{name}, {how}", *rates, what="epoch of JPEG, 2 workers", format=name, extra=fed)
        for name, how, rates, fed in (
            ("arrow", "threads", (9.0, 9.1), ours),
            ("DALI", "antialias", (3.0, 3.1), theirs),
        )
    ]
    failed = Failed("random reads", "FFCV", "ffcv is not installed: build it")
    result = Result((*reads, *epochs), ("by the way",), (failed,))
    save(result.records, tmp_path / "r.json", result.failed)
    peers.publish(tmp_path / "r.json", result)
    text = (tmp_path / "r.md").read_text()
    assert "| random reads | arrow | 10 (10 to 10) | LitData | 30 (30 to 31) | 0.33 |" in text
    assert "| **arrow, threads** | 9 (9 to 9) | 1 | 100% | 3 | 4.00 | 70 |" in text
    assert "| DALI, antialias | 3 (3 to 3) | 0.34 | 50% | 0 |  |  |" in text
    assert "of 2 cores: epoch of JPEG, 2 workers 1.0 to 9.0. Where" in text
    assert "- Not measured: FFCV: ffcv is not installed: build it" in text and "- by the way" in text
    assert (tmp_path / "r.png").stat().st_size and len(load(tmp_path / "r.json")) == 5
