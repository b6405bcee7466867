"""Limits of the job's own control group, as SLURM, systemd and containers nest them."""

import os

import pytest

from smallfiles import machine
from smallfiles.machine import MemoryLimit

GIB = 1 << 30
PHYSICAL = MemoryLimit(64 * GIB, "physical memory")
HYBRID = """\
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
STEP = "slurm/uid_1000/job_7/step_0"
BATCH = "system.slice/node1_slurmstepd.scope/job_7"


def v1(bytes):
    return MemoryLimit(bytes, "cgroup v1")


def v2(bytes):
    return MemoryLimit(bytes, "cgroup v2")


CASES = {
    "a step of version 1 obeys its job and not its neighbours": (
        HYBRID,
        f"9:memory:/{STEP}/task_0\n3:cpu:/{STEP}/task_0\n0::/\n",
        {
            "memory/slurm/uid_1000/job_7/memory.limit_in_bytes": 16 * GIB,
            f"memory/{STEP}/memory.limit_in_bytes": 12 * GIB,
            f"memory/{STEP}/task_0/memory.limit_in_bytes": 9223372036854771712,
            "memory/slurm/uid_1000/job_8/memory.limit_in_bytes": GIB,
            "memory/slurm/uid_1000/job_7/step_1/memory.limit_in_bytes": GIB,
            f"cpu/{STEP}/cpu.cfs_quota_us": -1,
            f"cpu/{STEP}/cpu.cfs_period_us": 100000,
        },
        (v1(12 * GIB), None),
    ),
    "a batch step of version 2 obeys the lowest limit above it": (
        UNIFIED,
        f"0::/{BATCH}/step_batch/user/task_special\n",
        {
            f"{BATCH}/memory.max": 20 * GIB,
            f"{BATCH}/step_batch/memory.max": 24 * GIB,
            f"{BATCH}/step_batch/user/memory.max": "max",
            f"{BATCH}/step_extern/memory.max": GIB,
            f"{BATCH}/cpu.max": "800000 100000",
            f"{BATCH}/step_batch/user/cpu.max": "350000 100000",
        },
        (v2(20 * GIB), 4),
    ),
    "a hybrid node takes memory from version 1, and an empty version 2 is harmless": (
        HYBRID,
        "9:memory:/slurm/job_7\n0::/system.slice/slurmd.service\n",
        {
            "memory/slurm/job_7/memory.limit_in_bytes": 4 * GIB,
            "unified/system.slice/slurmd.service/cgroup.procs": "",
        },
        (v1(4 * GIB), None),
    ),
    "a container in a job sees its own root as the top": (
        "41 31 0:38 /../../../job_7/step_0 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
        "0::/\n",
        {"memory.max": 6 * GIB},
        (v2(6 * GIB), None),
    ),
    "a container that sees only its own part of the hierarchy": (
        "35 1 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup c rw,memory\n",
        "4:memory:/docker/abc/inner\n",
        {"memory/memory.limit_in_bytes": 3 * GIB, "memory/inner/memory.limit_in_bytes": 2 * GIB},
        (v1(2 * GIB), None),
    ),
    "several controllers in one hierarchy of version 1": (
        "33 31 0:29 / /sys/fs/cgroup/cpu,memory rw - cgroup cgroup rw,cpu,memory\n",
        "2:cpu,memory:/job\n",
        {
            "cpu,memory/job/memory.limit_in_bytes": 3 * GIB,
            "cpu,memory/job/cpu.cfs_quota_us": 250000,
            "cpu,memory/job/cpu.cfs_period_us": 100000,
        },
        (v1(3 * GIB), 3),
    ),
    **{
        f"a group outside of the namespace falls back to what is mounted: {group}": (
            UNIFIED,
            f"0::{group}\n",
            {"memory.max": 5 * GIB},
            (v2(5 * GIB), None),
        )
        for group in ("/../../outside", "/host/path/that/is/not/mounted/here")
    },
    **{
        f"no usable limit is the physical memory: {text!r}": (
            UNIFIED,
            "0::/job\n",
            {"job/memory.max": text},
            (PHYSICAL, None),
        )
        for text in ("max", "", "nonsense", 1 << 60)
    },
    **{
        f"a quota is rounded up: {text!r}": (UNIFIED, "0::/job\n", {"job/cpu.max": text}, (PHYSICAL, cpus))
        for text, cpus in {"150000 100000": 2, "1000 100000": 1, "max 100000": None, "": None}.items()
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_limits_of_the_own_group_count(tmp_path, case):
    mounts, groups, limits, expected = CASES[case]
    files = {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB", "proc/self/mountinfo": mounts}
    files |= {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()}}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (tmp_path / "outside").mkdir()
    assert (machine.memory_limit(tmp_path), machine.cpu_quota(tmp_path)) == expected


def test_without_proc_and_sys_the_limits_are_the_machines_own(tmp_path):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.memory_limit(tmp_path).limit_bytes == physical
    assert machine.cpu_quota(tmp_path) is None
