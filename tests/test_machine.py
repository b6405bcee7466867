import os
from pathlib import Path

import pytest

from pysquashfs.mounts import Mount, read_mounts
from smallfiles import machine, storage
from smallfiles.errors import StorageError
from smallfiles.machine.filesystems import mount_of

SHARED = "lustre gpfs mmfs beegfs nfs nfs4 ceph cifs panfs orangefs afs wekafs fuse.sshfs fuse.dfuse"
LOCAL = "ext4 xfs tmpfs btrfs zfs overlay fuse.squashfuse fuseblk ramfs"


def test_this_machine_agrees_with_itself_and_obeys_its_affinity_mask_and_quota(monkeypatch):
    allowed = os.sched_getaffinity(0)
    monkeypatch.setattr(machine, "cpu_quota", lambda: len(allowed))
    try:
        os.sched_setaffinity(0, [min(allowed)])
        assert machine.usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine.usable_cpus() == len(allowed)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 1)
    assert machine.usable_cpus() == 1
    assert 0 < machine.memory_limit_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 1.1
    assert not machine.is_parallel_filesystem(Path("/dev/shm"))


@pytest.fixture
def table(tmp_path):
    """A table of mounts in which `tmp_path` lies on a file system of the wanted type."""

    def write(kind, source="server:/x"):
        point = str(tmp_path).replace(" ", "\\040")
        path = tmp_path / "mountinfo"
        path.write_text(
            "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
            f"28 27 0:50 / {point} rw shared:4 master:1 - {kind} {source} rw\n"
        )
        return path

    return write


@pytest.mark.parametrize("kind", [*SHARED.split(), *LOCAL.split()])
def test_file_systems_behind_a_network_are_shared_and_local_ones_are_not(tmp_path, table, kind):
    found = machine.filesystem(tmp_path / "not" / "there" / "yet", table(kind))
    assert (found.kind, found.shared, found.mount) == (kind, kind in SHARED.split(), tmp_path)
    for source, shared in {"cvmfs2": True, "sshfs#host:/data": True, "squashfuse": False}.items():
        assert machine.filesystem(tmp_path, table("fuse", source)).shared is shared
    (tmp_path / "link").symlink_to("/")
    assert machine.filesystem(tmp_path / "link", table(kind)).kind == "ext4"
    unknown = machine.filesystem(tmp_path, tmp_path / "none")
    assert (unknown.kind, unknown.shared) == ("unknown", False)


def test_numbers_are_those_of_statvfs_and_zero_inodes_mean_unknown(tmp_path, monkeypatch):
    found, stats = machine.filesystem(tmp_path), os.statvfs(tmp_path)
    assert found.total_bytes == stats.f_blocks * stats.f_frsize
    assert 0 <= found.free_bytes <= found.total_bytes
    assert found.block_bytes == stats.f_frsize
    on_btrfs = os.statvfs_result([0 if 5 <= place <= 7 else value for place, value in enumerate(stats)])
    monkeypatch.setattr(os, "statvfs", lambda path: on_btrfs)
    found = machine.filesystem(tmp_path)
    assert (found.inodes_total, found.inodes_free) == (None, None)


def test_a_file_system_that_does_not_answer_is_told_in_a_sentence(tmp_path, monkeypatch):
    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", fail)
    with storage.timeout(0.1), pytest.raises(StorageError, match="did not answer"):
        machine.filesystem(tmp_path)


def test_mount_points_with_spaces_and_mounts_upon_mounts_are_read(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(
        "1 0 0:1 / / rw - ext4 /dev/vda rw\n"
        "2 1 0:2 / /my\\040data rw - autofs systemd-1 rw\n"
        "3 2 0:3 / /my\\040data rw - nfs4 server:/my\\134x rw\n"
        "4 1 0:4 / /my\\040database rw - tmpfs tmpfs rw\n"
        "a line that is not one\n\n"
    )
    mounts = read_mounts(path)
    assert [mount.point for mount in mounts] == ["/", "/my data", "/my data", "/my database"]
    assert mount_of("/my data/x", mounts) == Mount(
        "/", "/my data", "nfs4", "server:/my\\x", frozenset({"rw"})
    )
    assert mount_of("/my", mounts) == mounts[0]
