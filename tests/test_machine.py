import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallfiles import machine
from smallfiles.errors import ResourceError
from smallfiles.machine.filesystems import Mount, mount_of, read_mounts

GIB = 1 << 30
SHARED = "lustre gpfs mmfs beegfs nfs nfs4 ceph cifs panfs orangefs afs wekafs fuse.sshfs fuse.dfuse"
LOCAL = "ext4 xfs tmpfs btrfs zfs overlay fuse.squashfuse fuseblk ramfs"
V1_MOUNTS = """\
33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write a fixture tree of `proc` and `sys`, with 64 GiB of physical memory."""
    for name, text in {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2_job(root: Path, group: str, **more: str) -> Path:
    files = {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": V2_MOUNTS}
    return plant(root, files | {f"sys/fs/cgroup/{name}": text for name, text in more.items()})


def test_a_v2_limit_anywhere_above_the_process_counts_and_the_lowest_wins(tmp_path):
    step = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
    root = v2_job(
        tmp_path,
        f"/{step}",
        **{
            f"{step}/memory.max": "max\n",
            "system.slice/slurmstepd.scope/job_7/step_0/memory.max": f"{8 * GIB}\n",
            "system.slice/slurmstepd.scope/job_7/memory.max": f"{16 * GIB}\n",
        },
    )
    assert machine.memory_limit(root) == machine.MemoryLimit(8 * GIB, "cgroup v2")


def test_a_v1_limit_of_the_own_group_counts(tmp_path):
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/slurm/uid_1/job_7/step_0\n2:cpu,cpuacct:/slurm/job_7\n0::/\n",
            "proc/self/mountinfo": V1_MOUNTS,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/slurm/uid_1/job_7/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/slurm/uid_1/job_7/step_0/memory.limit_in_bytes": f"{6 * GIB}\n",
            "sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.memory_limit(root) == machine.MemoryLimit(4 * GIB, "cgroup v1")
    assert machine.cpu_quota(root) == 3


@pytest.mark.parametrize("text", ["max\n", "", "nonsense\n", f"{1 << 60}\n"])
def test_no_usable_limit_means_the_physical_memory(tmp_path, text):
    root = v2_job(tmp_path, "/job", **{"job/memory.max": text})
    assert machine.memory_limit(root) == machine.MemoryLimit(64 * GIB, "physical memory")


def test_a_container_that_sees_only_its_own_part_of_the_hierarchy_reads_its_limit(tmp_path):
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc/inner\n",
            "proc/self/mountinfo": "35 1 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup c rw,memory\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": f"{2 * GIB}\n",
        },
    )
    assert machine.memory_limit_bytes(root) == 2 * GIB


@pytest.mark.parametrize("group", ["/../../outside", "/host/path/that/is/not/mounted/here"])
def test_a_group_outside_of_the_namespace_falls_back_to_what_is_mounted(tmp_path, group):
    root = v2_job(tmp_path, group, **{"memory.max": f"{5 * GIB}\n"})
    (tmp_path / "outside").mkdir()
    assert machine.memory_limit_bytes(root) == 5 * GIB


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("400000 100000", 4), ("150000 100000", 2), ("1000 100000", 1), ("max 100000", None), ("", None)],
)
def test_a_v2_cpu_quota_is_rounded_up(tmp_path, text, cpus):
    assert machine.cpu_quota(v2_job(tmp_path, "/job", **{"job/cpu.max": text})) == cpus


def test_without_proc_and_sys_the_limits_are_the_machines_own(tmp_path):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.memory_limit_bytes(tmp_path) == physical
    assert machine.cpu_quota(tmp_path) is None


def test_usable_cpus_obey_the_quota(tmp_path):
    root = v2_job(tmp_path, "/job", **{"job/cpu.max": "100000 100000"})
    assert machine.usable_cpus(root) == 1


def test_usable_cpus_obey_the_affinity_mask():
    chosen = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{chosen}]); from smallfiles import machine; "
        "print(machine.usable_cpus())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.fixture
def table(tmp_path):
    """A table of mounts in which `tmp_path` lies on a file system of the wanted type."""

    def write(kind: str, source: str = "server:/x") -> Path:
        point = str(tmp_path).replace(" ", "\\040")
        path = tmp_path / "mountinfo"
        path.write_text(
            "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
            f"28 27 0:50 / {point} rw shared:4 master:1 - {kind} {source} rw\n"
        )
        return path

    return write


@pytest.mark.parametrize("kind", SHARED.split())
def test_file_systems_behind_a_network_are_shared(tmp_path, table, kind):
    found = machine.filesystem(tmp_path, table(kind))
    assert (found.kind, found.shared, found.mount) == (kind, True, tmp_path)


@pytest.mark.parametrize("kind", LOCAL.split())
def test_local_file_systems_are_not_shared(tmp_path, table, kind):
    assert not machine.filesystem(tmp_path, table(kind)).shared


def test_a_fuse_program_is_known_by_its_source_too(tmp_path, table):
    assert machine.filesystem(tmp_path, table("fuse", "cvmfs2")).shared
    assert machine.filesystem(tmp_path, table("fuse", "sshfs#host:/data")).shared
    assert not machine.filesystem(tmp_path, table("fuse", "squashfuse")).shared


def test_the_path_need_not_exist(tmp_path, table):
    found = machine.filesystem(tmp_path / "not" / "yet" / "there", table("lustre"))
    assert found.shared


def test_a_symbolic_link_leads_to_the_file_system_of_its_target(tmp_path, table):
    (tmp_path / "link").symlink_to("/")
    assert machine.filesystem(tmp_path / "link", table("lustre")).kind == "ext4"


def test_numbers_are_those_of_statvfs(tmp_path):
    found, stats = machine.filesystem(tmp_path), os.statvfs(tmp_path)
    assert found.total_bytes == stats.f_blocks * stats.f_frsize
    assert 0 <= found.free_bytes <= found.total_bytes
    assert found.block_bytes == stats.f_frsize


def test_zero_inodes_mean_unknown(tmp_path, monkeypatch):
    real = list(os.statvfs(tmp_path))
    real[5] = real[6] = real[7] = 0  # as on btrfs
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(real))
    found = machine.filesystem(tmp_path)
    assert found.inodes_total is None
    assert found.inodes_free is None


def test_a_file_system_that_does_not_answer_is_told_in_a_sentence(tmp_path, monkeypatch):
    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", fail)
    with pytest.raises(ResourceError, match="cannot be examined"):
        machine.filesystem(tmp_path)


def test_without_a_table_of_mounts_the_type_is_unknown(tmp_path):
    found = machine.filesystem(tmp_path, tmp_path / "none")
    assert (found.kind, found.shared) == ("unknown", False)


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


@given(st.text())
def test_no_table_of_mounts_makes_it_fail(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("mounts") / "mountinfo"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    mount_of("/x", read_mounts(path))


def test_describe_is_ready_for_json_and_tells_no_user_host_or_path():
    import getpass
    import json
    import platform

    text = json.dumps(machine.describe())
    assert {"cpu", "cpus_usable", "memory_bytes", "kernel", "python"} <= json.loads(text).keys()
    for private in (str(Path.cwd()), platform.node(), str(Path.home())):
        assert f'"{private}"' not in text
    assert f'"{getpass.getuser()}"' not in text


def test_this_machine_agrees_with_itself():
    assert 1 <= machine.usable_cpus() <= (os.cpu_count() or 1)
    assert 0 < machine.memory_limit_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 1.1
    assert not machine.is_parallel_filesystem(Path("/dev/shm"))
