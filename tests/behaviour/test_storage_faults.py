"""Two clients of a distributed file system, and faults: the table in storage/local/README.md."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import moosefs
import numpy as np
import pytest
import torch

import smallfiles.formats
from smallfiles import cli, ring
from smallfiles.errors import ResourceError
from smallfiles.sources import synthetic
from smallfiles.training import checkpoint

COUNT = 60
BIN = ("--suffix", ".bin")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if (reason := moosefs.why_not()) is not None:
        pytest.skip(reason)
    found = moosefs.Lab(tmp_path_factory.mktemp("lab"), 2, **moosefs.IMPATIENT)
    yield found
    found.close()


def written(folder, seed=0):
    """Write 60 files of 64 KiB, and return what is in them."""
    rng = np.random.default_rng(seed)
    files = {
        f"{'cat' if number % 2 else 'dog'}/{number:03d}.bin": rng.bytes(1 << 16) for number in range(COUNT)
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return files


@pytest.fixture(scope="module")
def files(lab):
    """Plain files, and `x.arrow`, which the first client has written."""
    found = written(lab.clients[0] / "set")
    assert pack(lab.clients[0] / "set", lab.clients[0] / "x.arrow") == 0
    return found


def pack(source, out, *words):
    return cli.main(["pack", str(source), str(out), *BIN, *map(str, words)])


def contents(path):
    with smallfiles.formats.open(path) as reader:
        return {reader.key(index): bytes(reader.read(index)) for index in range(len(reader))}


def started(*words):
    command = [sys.executable, "-m", "smallfiles", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def killed_at(lab, monkeypatch):
    """Kill a program at the n-th read of a whole file, and start it again `after` so many seconds."""
    timers = []

    def when(number, name, after=None):
        readv, count = os.readv, itertools.count(1)

        def counted(*args):
            if next(count) == number:
                lab.run("server", "kill", name)
                if after is not None:
                    timers.append(threading.Timer(after, lab.run, ["server", "start", name]))
                    timers[-1].start()
            return readv(*args)

        lab.forget_pages()
        monkeypatch.setattr(os, "readv", counted)

    yield when
    for timer in timers:
        timer.join()


@pytest.mark.parametrize("name", ["node2", "master"])
def test_pack_waits_for_a_client_or_the_metadata_server(lab, files, killed_at, tmp_path, capfd, name):
    killed_at(10, name, after=0.5)
    assert pack(lab.clients[1] / "set", tmp_path / "x.arrow", "--on-error", "skip") == 0
    assert "answers again" in capfd.readouterr().err
    assert contents(tmp_path / "x.arrow") == files


def test_a_client_that_is_killed_under_an_output_stops_the_run(
    lab, files, killed_at, tmp_path, capfd, monkeypatch
):
    shutil.copytree(lab.clients[0] / "set", tmp_path / "set")
    out = lab.clients[1] / "killed.arrow"
    killed_at(10, "node2")
    assert pack(tmp_path / "set", out, "--storage-timeout-s", "1") == 1
    said = capfd.readouterr().err
    assert "killed.arrow" in said.splitlines()[-1] and "Transport endpoint is not connected" in said
    monkeypatch.undo()
    lab.run("server", "start", "node2")
    assert not out.exists() and pack(tmp_path / "set", out) == 0
    assert contents(lab.clients[0] / out.name) == files


@pytest.mark.parametrize("suffix", ["arrow", "h5", "tars", "sqfs", "files"])
@pytest.mark.parametrize("limit", ["-L2Mi", "-I2"], ids=["bytes", "inodes"])
def test_a_quota_that_is_reached_in_the_middle_leaves_no_output(lab, files, capfd, suffix, limit):
    folder = lab.limited(f"quota{limit} {suffix}", limit)
    out = folder / f"x.{suffix}"
    assert pack(lab.clients[1] / "set", out) == 1
    assert "Disk quota exceeded" in capfd.readouterr().err and not out.exists()
    assert lab.inside("mfsdelquota", "-A", folder).returncode == 0
    assert pack(lab.clients[1] / "set", lab.clients[1] / folder.name / out.name) == 0
    assert contents(out) == files


def test_a_checkpoint_survives_a_quota_that_its_successor_exceeds(lab):
    folder = lab.limited("checkpoints", "-L1Mi")
    state = lambda model: checkpoint.State(model, {}, {"epoch": 0, "batch": 0}, [])  # noqa: E731
    small, large = ({"weights": torch.full((size,), 1.0)} for size in (1000, 1 << 19))
    checkpoint.save(folder / "run", state(small))
    with pytest.raises(ResourceError, match=r"checkpoint .* cannot be written"):
        checkpoint.save(folder / "run", state(large))
    found = checkpoint.load(lab.clients[1] / "checkpoints/run")
    assert torch.equal(found.model["weights"], small["weights"])


def test_a_set_that_the_other_client_replaces_is_read_to_its_end_and_then_is_the_new_one(
    lab, files, tmp_path
):
    ours, theirs = (client / "replaced.arrow" for client in lab.clients)
    new = written(tmp_path / "new", seed=1)
    assert pack(lab.clients[0] / "set", ours) == 0
    with smallfiles.formats.open(ours) as reader:
        first = bytes(reader.read(0))
        for path in theirs.parent.glob("replaced.arrow*"):
            path.unlink()
        assert pack(tmp_path / "new", theirs) == 0
        lab.forget_pages()
        keys = [reader.key(index) for index in range(COUNT)]
        assert {key: bytes(reader.read(index)) for index, key in enumerate(keys)} == files
        assert files[keys[0]] == first
    assert contents(ours) == new


def test_two_clients_do_not_write_one_output(lab, files, killed_at, monkeypatch, capfd):
    out, told = "both.arrow", []
    readv, count = os.readv, itertools.count(1)

    def counted(*args):
        if next(count) == 10:
            with started("pack", lab.clients[1] / "set", lab.clients[1] / out, *BIN) as other:
                told.append((other.wait(60), other.stdout.read()))
        return readv(*args)

    monkeypatch.setattr(os, "readv", counted)
    assert pack(lab.clients[0] / "set", lab.clients[0] / out) == 0
    [(code, said)] = told
    assert code == 1 and "another run is packing" in said
    assert contents(lab.clients[1] / out) == files


@pytest.mark.parametrize("suffix", ["arrow", "tars"])
def test_parts_of_two_clients_of_which_one_is_killed_merge_to_every_sample(lab, files, suffix):
    out = f"parts.{suffix}"
    words = ["--part", "2/2"]
    first = started("pack", lab.clients[0] / "set", lab.clients[0] / out, *BIN, "--part", "1/2")
    second = started("pack", lab.clients[1] / "set", lab.clients[1] / out, *BIN, *words)
    second.kill()
    second.communicate()
    first.communicate()
    assert first.returncode == 0
    assert pack(lab.clients[0] / "set", lab.clients[0] / out, *words) == 0
    assert pack(lab.clients[0] / "set", lab.clients[1] / out, "--merge") == 0
    assert contents(lab.clients[0] / out) == files


def test_what_one_client_annotates_is_seen_by_the_other(lab, files, tmp_path):
    ours, theirs = (client / "annotated.arrow" for client in lab.clients)
    assert pack(lab.clients[0] / "set", ours) == 0
    rows = "".join(f"{name},{number}\n" for number, name in enumerate(files))
    (tmp_path / "scores.csv").write_text(f"filename,score\n{rows}")
    with smallfiles.formats.open(theirs):
        assert cli.main(["annotate", str(ours), str(tmp_path / "scores.csv"), "--key", "filename"]) == 0
    with smallfiles.formats.open(theirs) as reader:
        assert "score" in reader.fields
    assert cli.main(["verify", str(theirs)]) == 0


def test_stage_from_two_clients_waits_for_a_data_server(lab, files, tmp_path):
    lab.forget_pages()
    lab.kill(1)
    both = [started("stage", client / "x.arrow", "--to", tmp_path / client.name) for client in lab.clients]
    try:
        for process in both:
            line = next(line for line in process.stdout if "does not answer" in line)
            assert "trying again" in line
    finally:
        lab.start(1)
    for process, client in zip(both, lab.clients, strict=True):
        process.communicate()
        assert process.returncode == 0
        assert contents(tmp_path / client.name / "x.arrow") == files


@pytest.mark.slow  # it starts three programs
def test_a_ring_delivers_every_sample_although_data_servers_are_killed(lab, tmp_path):
    (where := tmp_path / "rings").mkdir()
    images, packed = tmp_path / "images", [client / "images.arrow" for client in lab.clients]
    synthetic.make(images, "folder", count=40, classes=2, size=(40, 32))
    assert cli.main(["pack", str(images), str(packed[0])]) == 0
    lab.forget_pages()
    words = ("--where", where, "--batch", 2, "--size", 32, "--slots", 2, "--producers", 1, "--epochs", 1)
    filler = started("ring", "fill", packed[1], *words)
    keys = []
    with ring.attach("train", where=where, wait_s=60) as loader:
        for number, batch in enumerate(loader):
            keys += batch["index"].tolist()
            if number == 0:
                lab.forget_pages()
                for server in (1, 2):
                    lab.kill(server)
                back = threading.Timer(1, lambda: [lab.start(server) for server in (1, 2)])
                back.start()
    back.join()
    filler.communicate()
    assert filler.returncode == 0 and sorted(keys) == list(range(40))


def test_the_table_of_faults_names_these_tests_and_no_others():
    home = Path(__file__).parents[2]
    named = re.findall(r"^\| .* \| `(test_\w+)` \|$", (home / "storage/local/README.md").read_text(), re.M)
    files = (*home.glob("tests/behaviour/test_storage_*.py"), home / "tests/slurm/test_local_storage.py")
    tests = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    ours = set(re.findall(r"^def (test_\w+)\(lab", Path(__file__).read_text(), re.M))
    assert ours <= set(named) <= tests and len(named) == len(set(named)) > len(ours)
