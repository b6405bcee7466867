"""Measuring loaders: what is asked for, what is measured, what is said of what is missing."""

import dataclasses
import json
import multiprocessing
import os
import shlex
from functools import partial
from pathlib import Path

import pytest
from programs import imported

import benchmarks.loaders
from benchmarks import COMPARE, INSTALL, missing
from benchmarks.__main__ import OTHERS
from benchmarks.loaders import PEERS, material
from benchmarks.loaders.peer import Peer, Setting
from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.measure import LoadBenchConfig, load, loading, ratio
from smallfiles.measure.loading import bench_loading
from smallfiles.measure.table import STAGES
from smallfiles.measure.workers import WorkerPool
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic

COUNT = 20
OF_THE_CORE = (
    "Jülich",
    "torch",
    "webd",
    "Aalto",
    "cortx",
    "Hugging",
    "Lance",
    "Parquet",
    "ImageFolder through",
)
SMALL = LoadBenchConfig(repeats=1, count=COUNT, workers=(1,), modes=("threads",), batch=8, size=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("loading")
    synthetic.make(root / "data", "folder", count=COUNT, classes=2, size=(96, 70))
    source = sources.load(root / "data")
    pack(source, root / "x.arrow")
    pack(source, root / "raw.arrow", PackConfig(resize=48, pixels=True))
    return root


@pytest.fixture(scope="module", autouse=True)
def off_one_process():
    """What measures comes off a process that imported everything; a start of its own takes seconds."""
    with (
        imported("smallfiles.measure.loading", environment=os.environ),
        pytest.MonkeyPatch.context() as patch,
    ):
        for module in (loading, material):
            patch.setattr(module, "WorkerPool", partial(WorkerPool, "forkserver"))
        yield


@pytest.fixture(scope="module")
def result(folder):
    config = dataclasses.replace(SMALL, modes=("processes", "threads", "ring"))
    return bench_loading([folder / "x.arrow", folder / "raw.arrow"], config)


def test_each_kind_of_pictures_is_measured_in_each_mode(result):
    epochs = [record for record in result.records if record.what != STAGES]
    assert [(record.what, record.name) for record in epochs] == [
        (f"epoch of {kind}, 1 workers", f"arrow, {mode}")
        for kind in ("JPEG", "raw scaled to 48 ahead")
        for mode in ("processes", "threads", "ring")
    ]
    for record in epochs:
        assert record.samples == COUNT and record.repeats == 1 and min(record.rates_per_s) > 0
        assert record.extra["first_batch_s"] > 0 and record.extra["cpu_s"] >= 0  # in ticks of 10 ms
        assert 1e7 < record.extra["memory_bytes"] < 1e10
        assert 0 <= record.extra["wait_p50_s"] <= record.extra["wait_p99_s"]
    assert ratio(epochs[1], epochs[0]).median > 0 and not result.failed
    with pytest.raises(UsageError, match="same conditions"):
        ratio(epochs[3], epochs[0])


def test_the_stages_of_a_batch_are_told_for_each_file(result):
    stages = [record for record in result.records if record.what == STAGES]
    assert [record.name for record in stages] == ["arrow, JPEG", "arrow, raw scaled to 48 ahead"]
    for record in stages:
        assert all(record.extra[f"{name}_s"] >= 0 for name in ("read", "augment", "collate", "device"))
        assert record.extra["decode_s"] > 0 and record.extra["transfer_s"] > 0


def test_nothing_is_left_running_or_lying_about(result, folder):
    assert not multiprocessing.active_children()
    assert not [path for path in folder.iterdir() if "bench" in path.name]
    assert not [path for path in Path("/dev/shm").iterdir() if str(os.getpid()) in path.name]


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith(OF_THE_CORE)])
def test_loaders_of_others_give_every_sample(folder, tmp_path, name):
    peer, reader = PEERS[name], formats.open(folder / "x.arrow")
    if missing(peer.modules) or ("mount" in name and not os.access("/dev/fuse", os.W_OK)):
        pytest.skip(missing(peer.modules) or "/dev/fuse is not open to this user")
    for made in dict.fromkeys([material.FILES, peer.material]):
        material.MATERIAL[made](reader, tmp_path / made)
    with peer.start(Setting(tmp_path, COUNT, 1, 8, 2, 32)) as epoch:
        assert sum(epoch()) == sum(epoch()) == COUNT


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith(("DALI", "SPDL", "FFCV"))])
def test_engines_of_others_give_every_sample(folder, name):
    if missing(PEERS[name].modules):
        pytest.skip(f"{PEERS[name].modules[0]} is not installed")
    kind = "raw.arrow" if PEERS[name].stored == "raw" else "x.arrow"
    config = dataclasses.replace(SMALL, only=(name,))
    result = bench_loading([folder / kind], config, others=OTHERS["load"])
    (record,) = [r for r in result.records if r.what != STAGES]
    assert record.name == name and record.samples >= COUNT
    assert not [path for path in folder.iterdir() if "bench" in path.name]


def test_what_is_not_installed_is_named_with_the_line_that_installs_it(folder, monkeypatch):
    absent = Peer("Absent, antialias", material.FILES, None, ("no_such_package",))
    broken = Peer("Broken, antialias", material.FILES, None, ("ffcv.no_such_half",))
    monkeypatch.setattr(benchmarks.loaders, "PEERS", {absent.name: absent, broken.name: broken})
    found = bench_loading([folder / "x.arrow"], SMALL, others=OTHERS["load"])
    assert {each.name: each.why for each in found.failed} == {
        absent.name: f"no_such_package is not installed: {COMPARE}",
        broken.name: f"ffcv is not installed: {INSTALL['ffcv']}",
    }
    assert found.records and not multiprocessing.active_children()


def test_files_of_different_sets_are_refused(folder, tmp_path):
    source = sources.load(folder / "data")
    part = sources.Source(source.manifest.select(range(5)), source.store, source.kind)
    pack(part, tmp_path / "y.h5")
    with pytest.raises(UsageError, match=r"y\.h5 has 5 samples"):
        bench_loading([folder / "x.arrow", tmp_path / "y.h5"], SMALL)


def test_the_command_line_measures_and_keeps(result, folder, tmp_path, capsys, monkeypatch):
    asked = []

    def measure(paths, config, others):
        asked.append((paths, config))
        return result

    monkeypatch.setattr("smallfiles.measure.loading.bench_loading", measure)
    words = shlex.split(SMALL.to_cli([str(folder / "x.arrow")]))[1:]
    assert main([*words, "--save", str(tmp_path / "r.json"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert asked == [([folder / "x.arrow"], SMALL)]
    assert load(tmp_path / "r.json") == list(result.records)
    assert told["samples"] == sum(record.samples * record.repeats for record in result.records)
    assert main(words) == 0
    assert "where a batch's time goes" in capsys.readouterr().out
    assert main(["bench", "load", "x.arrow", "--workers", "two"]) == 2
    assert "numbers, such as 2" in capsys.readouterr().err


def test_the_command_says_how_many_imitated_accelerators_are_fed(folder, tmp_path, capsys):
    saved = tmp_path / "r.json"
    words = ["bench", "load", str(folder / "x.arrow"), "--step-ms", "3", "--batch", "4", "--size", "32"]
    words += ["--repeats", "1", "--mode", "threads", "--workers", "1", "--save", str(saved)]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "emulated by sleeping 3 ms per step of 4 samples" in told.err and "computes" in told.out
    record = json.loads(saved.read_text())["records"][0]
    assert record["what"] == "epoch of JPEG for steps of 3 ms, 1 workers"
    assert 0 < record["extra"]["utilisation"] <= 1 and record["extra"]["accelerators"] >= 0
