"""Node-local storage: what is found, what a job may fill, which place is chosen and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from staging_tools import MIB, packed

from smallfiles import machine
from smallfiles.errors import ResourceError
from smallfiles.machine import nodelocal
from smallfiles.staging import StageConfig, placement

GIB = 1 << 30


def test_every_name_is_looked_at_in_order_and_each_path_once(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    env = {"TMPDIR": str(two), "SLURM_TMPDIR": str(one), "L_SCRATCH": str(one), "LOCAL_SCRATCH": "/gone"}
    assert nodelocal.named_directories(env) == [
        ("SLURM_TMPDIR", one),
        ("LOCAL_SCRATCH", Path("/gone")),
        ("TMPDIR", two),
        ("", Path("/dev/shm")),
    ]
    shm = nodelocal.node_local(Path("/dev/shm"))
    assert shm.in_memory and shm.free_bytes <= shm.filesystem.free_bytes
    env = {"SMALLFILES_NODE_LOCAL": "/x", "SLURM_TMPDIR": "/y"}
    assert nodelocal.named_directories(env)[0][1] == Path("/x")


def test_a_shared_missing_or_relative_directory_is_told(tmp_path, monkeypatch):
    assert nodelocal.problem_of(tmp_path) is None
    assert nodelocal.problem_of(Path("here")) == "is not an absolute path"
    real = machine.filesystem(tmp_path)
    lustre = replace(real, kind="lustre", shared=True)
    monkeypatch.setattr(nodelocal, "filesystem", lambda path: lustre)
    assert nodelocal.problem_of(tmp_path) == "is on lustre, which other nodes share"


def fake_machine(root, version, limit, used, cache, available):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available >> 10} kB\n")
    kind, options = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,memory")
    (root / "proc/self/mountinfo").write_text(f"1 2 0:3 / /sys/fs/cgroup rw - {kind} cgroup {options}\n")
    line = "0::/job" if version == 2 else "4:memory:/job"
    (root / "proc/self/cgroup").write_text(f"{line}\n")
    group = root / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    names = ("memory.max", "memory.current", "")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    (group / names[0]).write_text(f"{limit}\n")
    (group / names[1]).write_text(f"{used}\n")
    stat = f"file 7\n{names[2]}inactive_file {cache}\n{names[2]}active_file 1000\nshmem 5\n"
    (group / "memory.stat").write_text(stat)
    return root


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_job_may_fill_is_its_limit_less_what_it_uses_except_cache(version, tmp_path):
    root = fake_machine(tmp_path / "a", version, str(8 * GIB), 6 * GIB, GIB, 100 * GIB)
    assert nodelocal.memory_headroom_bytes(root) == 3 * GIB + 1000
    root = fake_machine(tmp_path / "b", version, str(8 * GIB), 9 * GIB, 0, 100 * GIB)
    assert nodelocal.memory_headroom_bytes(root) == 0
    root = fake_machine(tmp_path / "c", version, "max" if version == 2 else str(2**63 - 4096), 0, 0, 5 * GIB)
    assert nodelocal.memory_headroom_bytes(root) == 5 * GIB


def local(path, variable, *, mount="/scratch", kind="xfs", free=50 * GIB):
    found = machine.FileSystem(kind, False, 4096, 100 * GIB, free, None, None, Path(mount))
    return nodelocal.NodeLocal(Path(path), variable, found, free, kind == "tmpfs")


def test_the_sites_own_first_then_memory_and_a_system_disk_last(tmp_path, monkeypatch):
    known = {
        "/tmp": local("/tmp", "TMPDIR", mount="/"),
        "/dev/shm": local("/dev/shm", "", mount="/dev/shm", kind="tmpfs"),
        "/nvme/job": local("/nvme/job", "VSC_SCRATCH_NODE"),
        "/site": local("/site", "SMALLFILES_NODE_LOCAL"),
    }
    named = [(place.variable, place.path) for place in known.values()]
    monkeypatch.setattr(nodelocal, "named_directories", lambda: named)
    monkeypatch.setattr(nodelocal, "problem_of", lambda path: None)
    monkeypatch.setattr(nodelocal, "node_local", lambda path, variable: known[str(path)])
    monkeypatch.setattr(placement, "_same_storage", lambda path, source: str(path) == "/nvme/job")
    found, passed = placement.candidates("auto", tmp_path)
    assert [str(place.path) for place in found] == ["/site", "/dev/shm", "/tmp"]
    assert passed == [f"VSC_SCRATCH_NODE=/nvme/job is on the same storage as {tmp_path.name}"]
    output = placement.find_output(packed(tmp_path / "x.arrow", 1000))
    assert "chose TMPDIR=/tmp (xfs): 53.7 GB stay free" in placement.why(found[2], output, [], reused=False)
    assert "the system disk, shared by all users" in placement.why(found[2], output, [], reused=True)
    assert "passed over: VSC" in placement.why(found[1], output, passed, reused=False)
    job_disk = local("/scratch/12", "TMPDIR", mount="/scratch")
    assert not placement.is_system_disk(job_disk) and placement.is_system_disk(known["/tmp"])


def test_workers_are_left_their_memory(monkeypatch):
    monkeypatch.setattr(machine, "usable_cpus", lambda: 8)
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: 64 * GIB)
    memory, disk = local("/dev/shm", "", kind="tmpfs"), local("/scratch", "L_SCRATCH")
    assert placement.leave_bytes(memory, StageConfig()) == 5 * GIB
    assert placement.leave_bytes(disk, StageConfig()) == 256 * MIB
    assert placement.leave_bytes(memory, StageConfig(leave_bytes=7)) == 7
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: 2 * GIB)
    assert placement.leave_bytes(memory, StageConfig()) == GIB // 2


def test_room_is_compared_with_the_copy_and_what_workers_need(tmp_path, monkeypatch):
    output = placement.find_output(packed(tmp_path / "x.arrow", 10 * MIB))
    place = local("/dev/shm", "", kind="tmpfs", free=15 * MIB)
    monkeypatch.setattr(nodelocal, "node_local", lambda *words: place)
    placement.check_room(place, output, StageConfig(leave_bytes=4 * MIB))
    with pytest.raises(ResourceError, match=r"6\.3 MB in addition for workers"):
        placement.check_room(place, output, StageConfig(leave_bytes=6 * MIB))


def test_a_place_that_cannot_serve_is_refused_by_name(tmp_path):
    (tmp_path / "file").touch()
    for name, problem in (("gone", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(ResourceError, match=f"{name} {problem}"):
            placement.candidates(tmp_path / name, tmp_path)
