"""The doctor: each finding says what was seen and what to do, and survives a part that breaks."""

import dataclasses
import importlib
import json
import os
import re
import resource
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from pysquashfs.libsquashfs import library
from smallfiles import doctor, machine
from smallfiles.cli import main
from smallfiles.machine import nodelocal

LUSTRE = machine.FileSystem("lustre", True, 4096, 10**15, 10**14, 10**9, 10**8, Path("/scratch"))
LOCAL = dataclasses.replace(LUSTRE, kind="xfs", shared=False)
OPEN_FILES = (resource, "getrlimit")


def found(name, *paths):
    """The one finding of that name."""
    (finding,) = [finding for finding in doctor.examine(*paths) if finding.name == name]
    return finding


def judgement(finding, word):
    """Its verdict, and whether its advice has a word."""
    return finding.verdict, word in finding.advice


@pytest.fixture
def everything_lies_on(monkeypatch):
    """Let every path lie on the given file system."""

    def choose(found):
        monkeypatch.setattr(machine, "filesystem", lambda path: found)
        monkeypatch.setattr(machine, "is_parallel_filesystem", lambda path: found.shared)

    return choose


@pytest.fixture
def no_slurm(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def test_this_machine_is_examined_and_told_as_json():
    records = json.loads(json.dumps([dataclasses.asdict(finding) for finding in doctor.examine()]))
    assert {"Python", "CPUs", "memory", "/dev/shm", "PyTorch", "SLURM"} <= {one["name"] for one in records}
    assert {one["verdict"] for one in records} <= {"ok", "absent", "warn", "fail"}


def test_every_warning_and_failure_says_what_to_do(monkeypatch, everything_lies_on):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    everything_lies_on(dataclasses.replace(LUSTRE, free_bytes=10, inodes_free=3))
    troubled = [finding for finding in doctor.examine() if finding.verdict in ("warn", "fail")]
    assert troubled and all(finding.advice for finding in troubled)


def test_a_part_that_breaks_is_a_finding_and_the_others_still_report(monkeypatch):
    monkeypatch.setattr(machine, "usable_cpus", lambda: 1 / 0)
    assert found("machine").value == "could not be examined (division by zero)"
    assert found("SLURM")


# --- folders and storage ----------------------------------------------------------------------


def test_each_folder_is_looked_at_whatever_it_is(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor, "NEEDED_BYTES", 0)  # the disk of this machine may be full
    monkeypatch.setattr(doctor, "NEARLY_FULL", 1.1)
    shared, new, file = Path("/dev/shm"), tmp_path / "new", tmp_path / "file"
    told = {one.name: one for one in doctor.examine(tmp_path, shared, new, file)}
    assert {f"folder {tmp_path}", f"folder {shared}"} <= set(told)
    assert told[f"folder {new}"].verdict == "ok" and told[f"folder {new}"].value.startswith("not there yet; ")
    assert told[f"folder {file}"].verdict == "warn" and told[f"folder {file}"].value.startswith("a file on ")
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)
    assert "not writable" in found(f"folder {tmp_path}", tmp_path).value


def test_a_shared_folder_is_told_with_its_consequences(tmp_path, monkeypatch, everything_lies_on):
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    everything_lies_on(LUSTRE)
    assert "pack small files" in found(f"folder {tmp_path}", tmp_path).advice
    for name in ("environment", "temporary files", "HDF5_USE_FILE_LOCKING"):
        assert found(name).verdict == "warn"
    for setting in ("FALSE", "false", "0", "BEST_EFFORT"):
        monkeypatch.setenv("HDF5_USE_FILE_LOCKING", setting)
        assert found("HDF5_USE_FILE_LOCKING").verdict == "ok"


@pytest.mark.parametrize(
    ("change", "verdict", "told"),
    [
        ({"inodes_free": 99}, "warn", "Few more files fit"),
        ({"free_bytes": 10**8}, "warn", "Make room"),
        ({"kind": "gpfs", "block_bytes": 1 << 24}, "ok", "in blocks of 16.8 MB"),
        ({"inodes_total": None, "inodes_free": None}, "ok", "xfs (local), 100 TB free "),
    ],
)
def test_what_a_folder_has_left_is_judged(tmp_path, everything_lies_on, change, verdict, told):
    everything_lies_on(dataclasses.replace(LOCAL, **change))
    finding = found(f"folder {tmp_path}", tmp_path)
    assert finding.verdict == verdict and told in f"{finding.value} {finding.advice}"


@pytest.mark.parametrize(
    ("used", "limit", "verdict", "advice"),
    [
        (500, 100_500, "ok", ""),
        (500, 100_499, "warn", "Few more files fit"),
        (900_000, 10**6, "warn", "Nearly full"),
    ],
)
def test_a_quota_is_told_and_a_nearly_full_one_warned_about(
    tmp_path, monkeypatch, used, limit, verdict, advice
):
    quota = machine.Quota("project", 10**9, 10**12, used, limit, "lfs quota")
    monkeypatch.setattr(machine, "quota", lambda path: quota)
    finding = found(f"quota {tmp_path}", tmp_path)
    assert judgement(finding, advice) == (verdict, True) and bool(finding.advice) == bool(advice)
    assert f"{used:,} of {limit:,} files used (project, lfs quota)" in finding.value


@pytest.mark.parametrize(
    ("layout", "value", "advice"),
    [
        ((1, 1 << 20), "1 of the storage targets, 1.0 MB each", "lfs setstripe"),
        ((-1, 1 << 20, 3), "all storage targets, 1.0 MB each, once a file has grown", ""),
    ],
)
def test_a_single_stripe_is_told_with_what_packed_files_want(tmp_path, monkeypatch, layout, value, advice):
    monkeypatch.setattr(machine, "striping", lambda path: machine.Striping(*layout))
    finding = found(f"striping {tmp_path}", tmp_path)
    assert (finding.value, bool(finding.advice)) == (value, bool(advice)) and advice in finding.advice


def test_a_small_or_missing_shared_memory_is_warned_about(tmp_path, monkeypatch, everything_lies_on):
    monkeypatch.setattr(nodelocal, "SHARED_MEMORY", tmp_path / "shm")
    assert found(str(tmp_path / "shm")).verdict == "warn"
    everything_lies_on(dataclasses.replace(LOCAL, kind="tmpfs", total_bytes=64 << 20, free_bytes=64 << 20))
    (tmp_path / "shm").mkdir()
    finding = found(str(tmp_path / "shm"))
    assert finding.value == "67.1 MB, 67.1 MB free"
    assert judgement(finding, "run out of shared memory") == ("warn", True)


def test_no_folder_for_temporary_files_is_a_failure(monkeypatch):
    def fail():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    assert found("temporary files").verdict == "fail"


def test_node_local_folders_are_found_and_missing_ones_told(tmp_path, monkeypatch):
    for name in nodelocal.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    monkeypatch.setenv("LOCAL_SCRATCH", str(tmp_path / "none"))
    assert [found(name).verdict for name in ("$SLURM_TMPDIR", "$LOCAL_SCRATCH")] == ["ok", "warn"]
    assert "$TMPDIR" not in {finding.name for finding in doctor.examine()}


# --- the machine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usable", "present", "asked", "verdict", "word"),
    [
        (4, 128, "", "ok", "at most 4"),
        (1, 1, "", "warn", ""),
        (8, 8, "", "ok", ""),
        (1, 128, "8", "warn", 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"'),
    ],
)
def test_usable_cpus_are_told_beside_those_present_and_asked_for(
    no_slurm, monkeypatch, usable, present, asked, verdict, word
):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", asked)
    monkeypatch.setattr(machine, "usable_cpus", lambda: usable)
    monkeypatch.setattr(os, "cpu_count", lambda: present)
    assert found("CPUs").value.startswith(f"{usable} usable of {present}")
    assert judgement(found("CPUs"), word) == (verdict, True)


@pytest.mark.parametrize(
    ("place", "limits", "name", "verdict", "word"),
    [
        ((machine, "memory_limit"), machine.MemoryLimit(10**9, "cgroup v2"), "memory", "warn", "--mem"),
        ((machine, "memory_limit"), machine.MemoryLimit(32 * 10**9, "cgroup v1"), "memory", "ok", "/dev/shm"),
        ((machine, "memory_limit"), machine.MemoryLimit(64 * 10**9, "physical memory"), "memory", "ok", ""),
        (OPEN_FILES, (1024, 4096), "open files", "warn", "ulimit -n 4096"),
        (OPEN_FILES, (1024, 2048), "open files", "warn", "ulimit -n 2048"),
        (OPEN_FILES, (1024, resource.RLIM_INFINITY), "open files", "warn", "ulimit -n 4096"),
        (OPEN_FILES, (1024, 1024), "open files", "warn", "administrator"),
        (OPEN_FILES, (resource.RLIM_INFINITY, resource.RLIM_INFINITY), "open files", "ok", ""),
    ],
)
def test_limits_are_judged_with_what_can_be_raised(monkeypatch, place, limits, name, verdict, word):
    monkeypatch.setattr(*place, lambda *what: limits)
    assert judgement(found(name), word) == (verdict, True)
    assert getattr(limits, "source", "") in found(name).value


@pytest.mark.parametrize(
    ("env", "value", "verdict", "word"),
    [
        ({}, "not here", "absent", "Nothing to do"),
        ({"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2"}, "inside job 4711 (2 nodes)", "warn", "srun"),
        ({"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n1"}, "inside job 4711 (1 node)", "ok", ""),
        ({"PBS_JOBID": "9"}, "not here; inside PBS job 9", "ok", "for SLURM"),
        ({"PATH": "tools"}, "login node", "warn", ""),  # with sbatch and no job
    ],
)
def test_slurm_is_told_with_where_this_shell_is(tmp_path, monkeypatch, no_slurm, env, value, verdict, word):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "sbatch").touch(0o755)
    monkeypatch.chdir(tmp_path)
    for name, content in ({"PATH": ""} | env).items():
        monkeypatch.setenv(name, content)
    assert value in found("SLURM").value and judgement(found("SLURM"), word) == (verdict, True)


# --- packages ---------------------------------------------------------------------------------


def test_a_missing_package_comes_with_the_line_that_installs_it(monkeypatch):
    class Broken:
        __spec__ = None  # half of a package is loaded

    real = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in ("h5py", "cffi") else real(name))
    monkeypatch.setitem(sys.modules, "zstandard", Broken())
    packages = found("packages")
    assert (packages.value, packages.verdict) == ("missing: cffi", "fail")
    assert "pip install -c requirements.lock -e '.'" in packages.advice
    assert found("extra hdf5").value == "not installed: h5py" and found("extra hdf5").verdict == "absent"
    assert "'zstandard>=" in found("extra formats").advice
    assert found("extra s3").value == "installed"  # of which one is a program


def test_a_torch_that_cannot_be_loaded_is_a_failure_with_its_reason_and_a_driver_that_fails_is_told(
    monkeypatch,
):
    import torch

    def old():
        raise RuntimeError("driver too old")

    def broken(name):
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "is_available", old)
    assert "GPU not usable (driver too old)" in found("PyTorch").value
    monkeypatch.setattr(importlib, "import_module", broken)
    assert found("PyTorch").verdict == "fail" and "libcudart.so.13" in found("PyTorch").value


def test_the_packages_that_are_looked_for_are_the_projects_own(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]

    extras = project["optional-dependencies"]
    for modules, wanted in (
        (doctor.CORE_MODULES, project["dependencies"]),
        *((modules, extras[name]) for name, (_, modules) in doctor.EXTRAS.items()),
    ):
        names = {re.split("[>;]", line)[0].replace("-", "_") for line in wanted if "[" not in line}
        assert {"pillow" if name == "PIL" else name for name in modules} == names
    course = re.findall(r"[a-z0-9]+", next(line for line in extras["course"] if "[" in line))
    assert {"course", "hdf5", "audio", *course[1:]} == set(doctor.EXTRAS)


def test_before_a_workshop_it_says_what_a_participant_would_lack(monkeypatch, capsys):
    monkeypatch.setattr(machine, "usable_cpus", lambda: 1)
    monkeypatch.setattr(doctor.slowfs, "why_not", lambda: "no FUSE here")
    assert main(["doctor", "--workshop", "--json"]) in (0, 1)
    told = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    cpus, slow = told["workshop: CPUs"], told["workshop: slowfs"]
    assert cpus["verdict"] == "warn" and cpus["value"] == "1, less than the 2 that a participant needs"
    assert slow["verdict"] == "warn" and slow["value"] == "no FUSE here" and slow["advice"]
    assert "workshop: mksquashfs" in told and told["FUSE"]["verdict"] == "absent"
    assert not any(each.name.startswith("workshop") for each in doctor.examine())


def test_it_reports_the_squashfs_library(monkeypatch):
    def told():
        library.load.cache_clear()
        (finding,) = [each for each in doctor.examine() if each.name == "libsquashfs"]
        return finding

    if library.available():
        assert "libsquashfs.so.1, version 1." in told().value
    monkeypatch.setenv(library.VARIABLE, "/nowhere/libsquashfs.so.1")
    missing = told()
    library.load.cache_clear()
    assert "cannot be loaded" in missing.value and missing.verdict == "absent"
    assert (
        "apt-get install libsquashfs1" in missing.advice and "dnf install squashfs-tools-ng" in missing.advice
    )
