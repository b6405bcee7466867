"""A real distributed file system beside a real Slurm: each node has a client of its own, which counts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from local_slurm import started

sys.path.insert(0, str(Path(__file__).parents[1] / "behaviour"))
import moosefs

from smallfiles import cli, formats, measure
from smallfiles.machine.filesystems import filesystem
from smallfiles.measure.methods import Task, packed
from smallfiles.measure.workers import WorkerState
from smallfiles.sources import synthetic

COUNT = 120


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if (reason := moosefs.why_not()) is not None:
        pytest.skip(reason)
    found = moosefs.Lab(tmp_path_factory.mktemp("storage"), 2)
    yield found
    found.close()
    assert not found.home.exists() and str(found.home) not in Path("/proc/self/mounts").read_text()


def test_advise_and_a_measurement_of_packing_say_what_a_sample_asks_of_the_storage(lab, capsys, tmp_path):
    folder = lab.clients[0] / "advised"
    synthetic.make(folder, "folder", count=COUNT, classes=3, size=(40, 32))
    assert cli.main(["advise", str(lab.clients[1] / "advised"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["measured"]["requests"]
    lookups, opens = (
        int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:look-ups|opens)", said)
    )
    assert lookups >= 1000 and opens >= 1000 and "counted by the MooseFS client" in said
    task = Task("concatenation", None, lab.clients[1] / "advised", tmp_path / "x", COUNT, "")
    counted = packed(task, WorkerState())["extra"]
    assert counted["metadata_per_1000"] >= 2000 and "MooseFS" in counted["requests_counted_by"]


def test_an_epoch_of_plain_files_asks_the_metadata_server_for_each_and_packed_ones_do_not(lab):
    folder, packed = lab.clients[0] / "a set", lab.clients[0] / "x.arrow"
    synthetic.make(folder, "folder", count=COUNT, classes=3, size=(40, 32))
    assert cli.main(["pack", str(folder), str(packed)]) == 0
    there = {
        path: lab.clients[1] / path.name for path in (folder, packed)
    }  # the other client has cached nothing
    names = [path.relative_to(folder) for path in folder.rglob("*.jpg")]  # a listing may bring names with it
    with measure.requests(there[folder]) as files:
        for name in names:
            (there[folder] / name).read_bytes()
    with measure.requests(there[packed]) as epoch:
        cli.main(["verify", str(there[packed])])
    assert files["opens"] >= COUNT and files["lookups"] >= COUNT and files["metadata"] >= 2 * COUNT, files
    assert epoch["opens"] < 10 and epoch["metadata"] < COUNT / 2, epoch
    assert "MooseFS client for all programs" in str(files)


@pytest.mark.parametrize("suffix", ["files", "arrow", "h5", "tars", "sqfs"])
def test_a_random_sample_costs_no_more_reads_than_its_bytes_and_a_packed_one_no_metadata(lab, suffix):
    home = lab.clients[0] / "random"
    if not home.exists():
        synthetic.make(home / "set", "folder", count=300, classes=3)
    assert cli.main(["pack", str(home / "set"), str(home / f"x.{suffix}")]) == 0
    lab.forget_pages()
    with formats.open(lab.clients[1] / "random" / f"x.{suffix}") as reader:
        first, *rows = np.random.default_rng(0).permutation(len(reader))[:101].tolist()
        reader.read(first)
        with measure.requests(lab.clients[1]) as asked:
            for row in rows:
                reader.read(row)
        needed = sum(-(-reader.size(row) // (128 << 10)) for row in rows)
    assert 100 < asked["reads"] <= 1.02 * needed + 1, asked
    assert (asked["metadata"] >= 200) if suffix == "files" else (asked["metadata"] < 10), asked


def test_the_storage_is_known_as_shared(lab):
    assert filesystem(lab.clients[0]).shared and filesystem(lab.clients[0]).kind == "fuse.mfs"


def test_the_quota_of_a_folder_is_shown_and_an_output_that_exceeds_it_is_told_first(lab, tmp_path):
    synthetic.make(tmp_path / "set", "folder", count=60, classes=3, size=(40, 32))
    folder, smallfiles = lab.limited("a quota", "-I", "40"), (sys.executable, "-m", "smallfiles")
    told = lab.inside(*smallfiles, "doctor", folder / "new", "--json")
    quota = next(one for one in json.loads(told.stdout)["findings"] if one["name"].startswith("quota"))
    assert quota["value"] == "0 of 40 files used (folder, mfsgetquota)" and "Few more" in quota["advice"]
    done = lab.inside(*smallfiles, "pack", tmp_path / "set", folder / "x.files")
    assert done.returncode == 1 and "room for 40 of the 61 files that are needed" in done.stderr
    assert "Disk quota exceeded" in done.stderr and not (folder / "x.files").exists()
    assert lab.inside(*smallfiles, "pack", tmp_path / "set", folder / "x.arrow").returncode == 0


def test_two_nodes_of_a_job_read_through_two_clients(lab, repository, need_tool, tmp_path):
    for name in ("slurmctld", "slurmd", "munged"):
        os.environ["PATH"] += ":/usr/sbin"
        need_tool(name, "slurm-wlm, munge")
    synthetic.make(tmp_path / "set", "folder", count=COUNT, classes=3, size=(40, 32))
    assert cli.main(["pack", str(tmp_path / "set"), str(lab.clients[0] / "shared.arrow")]) == 0
    with started(repository, tmp_path) as cluster:
        told = lab.run("attach", SMALLFILES_CLUSTER=cluster.environment["SMALLFILES_CLUSTER"])
        if "node n2" not in told:
            pytest.skip("mount: the nodes have no mounts of their own here")
        lab.forget_pages()
        words = [sys.executable, "-m", "smallfiles", "verify", f"{lab.home}/shared/shared.arrow"]
        with measure.requests(lab.clients[0]) as first, measure.requests(lab.clients[1]) as second:
            cluster.run("srun", "-N2", "-n2", *words)
        for asked in (first, second):
            assert asked["opens"] >= 1 and asked["reads"] >= 1, (first, second)
        with measure.requests(lab.clients[0]) as first, measure.requests(lab.clients[1]) as second:
            cluster.run("srun", "-w", "n2", "-N1", "-n1", *words)
        assert second["opens"] >= 1 and first["opens"] == 0, (first, second)


def test_a_folder_with_other_files_is_not_emptied(tmp_path):
    if (reason := moosefs.why_not()) is not None:
        pytest.skip(reason)
    (tmp_path / "mine").write_text("1")
    command = [moosefs.SCRIPTS / "up"]
    environment = {**os.environ, "SMALLFILES_STORAGE": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "holds other files" in done.stderr
    assert (tmp_path / "mine").exists()


def test_the_metadata_server_comes_back_with_its_files(lab):
    (lab.clients[0] / "kept").write_bytes(b"kept")
    lab.run("server", "kill", "master")
    assert "master: not running" in lab.run("status")
    lab.run("server", "start", "master")
    assert (lab.clients[1] / "kept").read_bytes() == b"kept"
