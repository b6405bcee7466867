"""Limits of the job's own control group, as SLURM, systemd and containers nest them."""

import pytest

from smallfiles import machine

GIB = 1 << 30
HYBRID = """\
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
STEP = "slurm/uid_1000/job_7/step_0"


@pytest.fixture
def plant(tmp_path):
    """A tree of `proc` and `sys` with 64 GiB of memory."""

    def write(mounts, groups, **limits):
        files = {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\n", "proc/self/mountinfo": mounts}
        files["proc/self/cgroup"] = groups
        for name, text in (files | {f"sys/fs/cgroup/{k}": v for k, v in limits.items()}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write


def test_a_slurm_step_of_version_1_obeys_its_job_and_not_its_neighbours(plant):
    root = plant(
        HYBRID,
        f"9:memory:/{STEP}/task_0\n3:cpu:/{STEP}/task_0\n0::/\n",
        **{
            "memory/slurm/uid_1000/job_7/memory.limit_in_bytes": str(16 * GIB),
            f"memory/{STEP}/memory.limit_in_bytes": str(12 * GIB),
            f"memory/{STEP}/task_0/memory.limit_in_bytes": "9223372036854771712",
            "memory/slurm/uid_1000/job_8/memory.limit_in_bytes": str(GIB),
            "memory/slurm/uid_1000/job_7/step_1/memory.limit_in_bytes": str(GIB),
            f"cpu/{STEP}/cpu.cfs_quota_us": "-1",
            f"cpu/{STEP}/cpu.cfs_period_us": "100000",
        },
    )
    assert machine.memory_limit(root) == machine.MemoryLimit(12 * GIB, "cgroup v1")
    assert machine.cpu_quota(root) is None


def test_a_batch_step_of_version_2_obeys_the_lowest_limit_above_it(plant):
    job = "system.slice/node1_slurmstepd.scope/job_7"
    root = plant(
        UNIFIED,
        f"0::/{job}/step_batch/user/task_special\n",
        **{
            f"{job}/memory.max": str(20 * GIB),
            f"{job}/step_batch/memory.max": str(24 * GIB),
            f"{job}/step_batch/user/memory.max": "max",
            f"{job}/step_extern/memory.max": str(GIB),
            f"{job}/cpu.max": "800000 100000",
            f"{job}/step_batch/user/cpu.max": "350000 100000",
        },
    )
    assert machine.memory_limit(root) == machine.MemoryLimit(20 * GIB, "cgroup v2")
    assert machine.cpu_quota(root) == 4


def test_the_slice_of_a_user_on_a_login_node_is_a_limit_too(plant):
    root = plant(
        UNIFIED,
        "0::/user.slice/user-1000.slice/session-5.scope\n",
        **{"user.slice/user-1000.slice/memory.max": str(8 * GIB), "user.slice/memory.max": "max"},
    )
    assert machine.memory_limit_bytes(root) == 8 * GIB


def test_a_hybrid_node_takes_memory_from_version_1_and_its_empty_version_2_is_harmless(plant):
    root = plant(
        HYBRID,
        "9:memory:/slurm/job_7\n0::/system.slice/slurmd.service\n",
        **{"memory/slurm/job_7/memory.limit_in_bytes": str(4 * GIB)},
    )
    (root / "sys/fs/cgroup/unified/system.slice/slurmd.service").mkdir(parents=True)
    assert machine.memory_limit(root) == machine.MemoryLimit(4 * GIB, "cgroup v1")


def test_a_container_in_a_job_sees_its_own_root_as_the_top(plant):
    mounts = "41 31 0:38 /../../../job_7/step_0 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"
    root = plant(mounts, "0::/\n", **{"memory.max": str(6 * GIB)})
    assert machine.memory_limit_bytes(root) == 6 * GIB


def test_several_controllers_in_one_hierarchy_of_version_1_are_found(plant):
    root = plant(
        "33 31 0:29 / /sys/fs/cgroup/cpu,memory rw - cgroup cgroup rw,cpu,memory\n",
        "2:cpu,memory:/job\n",
        **{
            "cpu,memory/job/memory.limit_in_bytes": str(3 * GIB),
            "cpu,memory/job/cpu.cfs_quota_us": "100000",
            "cpu,memory/job/cpu.cfs_period_us": "100000",
        },
    )
    assert (machine.memory_limit_bytes(root), machine.cpu_quota(root)) == (3 * GIB, 1)
