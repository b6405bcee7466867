"""Node-local storage: what is found, what a job may fill, which place is chosen and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from staging_tools import MIB, packed

from smallfiles import machine
from smallfiles.errors import ResourceError, UsageError
from smallfiles.machine import nodelocal
from smallfiles.staging import StageConfig, copying, placement

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
        "/tmp": local("/tmp", "TMPDIR", mount="/", free=50_000),
        "/dev/shm": local("/dev/shm", "", mount="/dev/shm", kind="tmpfs", free=10),
        "/nvme/job": local("/nvme/job", "VSC_SCRATCH_NODE"),
        "/local": local("/local", "L_SCRATCH"),
        "/site": local("/site", "SMALLFILES_NODE_LOCAL"),
    }
    named = [(place.variable, place.path) for place in known.values()]
    monkeypatch.setattr(nodelocal, "named_directories", lambda: named)
    monkeypatch.setattr(nodelocal, "problem_of", lambda path: None)
    monkeypatch.setattr(nodelocal, "node_local", lambda path, variable: known[str(path)])
    monkeypatch.setattr(placement, "_same_storage", lambda path, source: str(path) == "/nvme/job")
    found, passed = placement.candidates("auto", tmp_path)
    assert [str(place.path) for place in found] == ["/site", "/local", "/dev/shm", "/tmp"]
    assert passed == [f"VSC_SCRATCH_NODE=/nvme/job is on the same storage as {tmp_path.name}"]
    output = placement.find_output(packed(tmp_path / "x.arrow", 20_000, digest=False))
    assert "chose TMPDIR=/tmp (xfs): 30.0 kB stay free" in placement.why(found[3], output, [], reused=False)
    assert "the system disk, shared by all users" in placement.why(found[3], output, [], reused=True)
    told = placement.why(found[2], output, passed, reused=False)
    assert "chose /dev/shm (memory): 0 B stay free" in told and "passed over: VSC" in told
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
    small = replace(disk, filesystem=replace(disk.filesystem, total_bytes=GIB))
    assert placement.leave_bytes(small, StageConfig()) == GIB // 20


NEED = 10 * MIB + 4096 + 8 * 4096  # the file, its digest in a block, and what a slot has beside the copy


@pytest.mark.parametrize(
    ("lacking", "inodes", "kind", "other_free", "told"),
    [
        (0, 110, "xfs", 0, None),  # 2 files, 8 of the slot, 100 to leave
        (0, 109, "xfs", 0, "has room for 109 more files; expected 110 for x"),
        (1, None, "xfs", 0, r"has 15\.8 MB free; expected 10\.5 MB for x\.arrow and 5\.2 MB in addition\. "),
        (1, None, "tmpfs", 0, r"has 15\.8 MB free; .*in addition for workers"),
        (1, None, "tmpfs", 1, r"has 15\.8 MB memory left to this job"),
    ],
)
def test_room_is_compared_with_the_copy_and_what_workers_need(
    lacking, inodes, kind, other_free, told, tmp_path, monkeypatch
):
    output = placement.find_output(packed(tmp_path / "x.arrow", 10 * MIB))
    place = local("/there", "", kind=kind, free=NEED + 5 * MIB - lacking)
    found = replace(place.filesystem, free_bytes=place.free_bytes + other_free, inodes_free=inodes)
    monkeypatch.setattr(nodelocal, "node_local", lambda *words: replace(place, filesystem=found))
    config = StageConfig(leave_bytes=5 * MIB)
    if told is None:
        return placement.check_room(place, output, config)
    with pytest.raises(ResourceError, match=f"^/there {told}"):
        placement.check_room(place, output, config)


def test_a_place_that_cannot_serve_is_refused_by_name(tmp_path, source, node, monkeypatch):
    (tmp_path / "file").touch()
    for name, problem in (("gone", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(ResourceError, match=f"{name} {problem}"):
            placement.candidates(tmp_path / name, tmp_path)
    monkeypatch.setenv("SLURM_TMPDIR", str(node))
    monkeypatch.setattr(nodelocal, "SHARED_MEMORY", node)
    same = f"SLURM_TMPDIR={node} is on the same storage as train.arrow"
    assert placement.candidates("auto", source) == ([], [same])
    assert [place.path for place in placement.candidates("auto", Path("s3://set"))[0]] == [node]
    with pytest.raises(UsageError, match="place to stage to is empty"):
        placement.candidates(" ", source)


@pytest.mark.parametrize(("count", "size", "refused"), [(100, 9, 0), (101, MIB, 0), (101, MIB - 1, 1)])
def test_a_hundred_small_files_are_shards_and_more_are_a_tree_to_pack(count, size, refused, tmp_path):
    for number in range(count):
        with (tmp_path / f"{number}.tar").open("wb") as file:
            file.truncate(size)
    (tmp_path / ".nfs01").touch()  # hidden files are not copied
    if not refused:
        assert len(placement.find_output(tmp_path).members) == count
        return
    with pytest.raises(UsageError, match="101 on its first level"):
        placement.find_output(tmp_path)


@pytest.mark.parametrize(
    ("shared", "cpus", "readers"), [(False, 1, 2), (False, 3, 3), (False, 9, 4), (True, 1, 8)]
)
def test_servers_are_asked_for_more_blocks_at_once_than_disks(shared, cpus, readers, source, monkeypatch):
    monkeypatch.setattr(machine, "usable_cpus", lambda: cpus)
    assert copying.readers_for(replace(placement.find_output(source), shared=shared)) == readers
