"""A real distributed file system beside a real Slurm: each node has a client of its own, which counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_slurm import started

sys.path.insert(0, str(Path(__file__).parents[1] / "behaviour"))
import moosefs

from smallfiles import cli
from smallfiles.machine.filesystems import filesystem
from smallfiles.sources import synthetic

COUNT = 120
_COUNTED = ("fuse_ops.lookup.master", "fuse_ops.open", "master.packets_sent")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if (reason := moosefs.why_not()) is not None:
        pytest.skip(reason)
    found = moosefs.Lab(tmp_path_factory.mktemp("storage"), 2)
    yield found
    found.close()
    assert not found.home.exists() and str(found.home) not in Path("/proc/self/mounts").read_text()


def counts_while(lab, client, work):
    """How often a client asked its servers during `work()`, by kind of request."""
    before = lab.counted(client)
    work()
    after = lab.counted(client)
    return [after[name] - before[name] for name in _COUNTED]


def test_an_epoch_of_plain_files_asks_the_metadata_server_for_each_and_packed_ones_do_not(lab):
    folder, packed = lab.clients[0] / "a set", lab.clients[0] / "x.arrow"
    synthetic.make(folder, "folder", count=COUNT, classes=3, size=(40, 32))
    assert cli.main(["pack", str(folder), str(packed)]) == 0
    there = {
        path: lab.clients[1] / path.name for path in (folder, packed)
    }  # the other client has cached nothing
    files = counts_while(lab, 2, lambda: [path.read_bytes() for path in there[folder].rglob("*.jpg")])
    epoch = counts_while(lab, 2, lambda: cli.main(["verify", str(there[packed])]))
    assert files[1] >= COUNT and files[2] >= 2 * COUNT
    assert epoch[1] < 10 and epoch[2] < COUNT / 2, (files, epoch)


def test_the_storage_is_known_as_shared(lab):
    assert filesystem(lab.clients[0]).shared


def test_two_nodes_of_a_job_read_through_two_clients(lab, repository, need_tool, tmp_path):
    for name in ("slurmctld", "slurmd", "munged"):
        os.environ["PATH"] += ":/usr/sbin"
        need_tool(name, "slurm-wlm, munge")
    (lab.clients[0] / "seen").write_bytes(b"1")
    with started(repository, tmp_path) as cluster:
        told = lab.run("attach", SMALLFILES_CLUSTER=cluster.environment["SMALLFILES_CLUSTER"])
        if "node n2" not in told:
            pytest.skip("mount: the nodes have no mounts of their own here")
        words = [
            "srun",
            "-N2",
            "-n2",
            "sh",
            "-c",
            f"echo $SLURMD_NODENAME > {lab.home}/shared/$SLURMD_NODENAME",
        ]
        asked = counts_while(
            lab, 2, lambda: subprocess.run(words, env=cluster.environment, check=True, timeout=120)
        )
        assert asked[2] > 0
        assert [(lab.clients[0] / name).read_text() for name in ("n1", "n2")] == ["n1\n", "n2\n"]


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
