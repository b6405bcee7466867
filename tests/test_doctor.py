import dataclasses
import importlib.util
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import pytest

from smallfiles import doctor, machine
from smallfiles.doctor import hardware, software, storage

LUSTRE = machine.FileSystem("lustre", True, 4096, 10**15, 10**14, 10**9, 10**8, Path("/scratch"))
LOCAL = dataclasses.replace(LUSTRE, kind="xfs", shared=False)


def by_name(findings, name):
    """The one finding of that name."""
    (found,) = [finding for finding in findings if finding.name == name]
    return found


@pytest.fixture
def everything_lies_on(monkeypatch):
    """Let every path lie on the given file system."""

    def choose(found: machine.FileSystem) -> None:
        monkeypatch.setattr(machine, "filesystem", lambda path: found)
        monkeypatch.setattr(machine, "is_parallel_filesystem", lambda path: found.shared)

    return choose


@pytest.fixture
def no_slurm(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def test_this_machine_is_examined_and_told_as_json():
    findings = doctor.examine()
    records = json.loads(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    assert {"Python", "CPUs", "memory", "/dev/shm", "PyTorch", "SLURM"} <= {
        record["name"] for record in records
    }
    assert {record["verdict"] for record in records} <= {"ok", "warn", "fail"}


def test_every_warning_and_failure_says_what_to_do(monkeypatch, everything_lies_on):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    everything_lies_on(dataclasses.replace(LUSTRE, free_bytes=10, inodes_free=3))
    troubled = [finding for finding in doctor.examine() if finding.verdict != "ok"]
    assert troubled
    assert all(finding.advice for finding in troubled)


def test_a_part_that_breaks_is_a_finding_and_the_others_still_report(monkeypatch):
    def explode():
        raise RuntimeError("no such luck")
        yield

    monkeypatch.setattr(hardware, "findings", explode)
    findings = doctor.examine()
    assert by_name(findings, "machine").value == "could not be examined (no such luck)"
    assert by_name(findings, "SLURM")


def test_several_folders_are_each_looked_at(tmp_path):
    names = [finding.name for finding in doctor.examine(tmp_path, Path("/dev/shm"))]
    assert f"folder {tmp_path}" in names
    assert "folder /dev/shm" in names


def test_a_folder_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path):
    finding = by_name(doctor.examine(tmp_path / "new"), f"folder {tmp_path / 'new'}")
    assert finding.verdict == "ok"
    assert finding.value.startswith("not there yet; ")


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "file").touch()
    finding = by_name(doctor.examine(tmp_path / "file"), f"folder {tmp_path / 'file'}")
    assert finding.verdict == "warn"
    assert finding.value.startswith("a file on ")


def test_a_shared_folder_is_told_with_its_consequences(tmp_path, monkeypatch, everything_lies_on):
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    everything_lies_on(LUSTRE)
    findings = list(storage.findings([tmp_path]))
    assert "pack small files" in by_name(findings, f"folder {tmp_path}").advice
    assert by_name(findings, "environment").verdict == "warn"
    assert by_name(findings, "temporary files").verdict == "warn"
    assert by_name(findings, "HDF5_USE_FILE_LOCKING").verdict == "warn"


@pytest.mark.parametrize("setting", ["FALSE", "false", "0", "BEST_EFFORT"])
def test_switched_off_locking_is_fine_on_shared_storage(tmp_path, monkeypatch, everything_lies_on, setting):
    everything_lies_on(LUSTRE)
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", setting)
    assert by_name(storage.findings([tmp_path]), "HDF5_USE_FILE_LOCKING").verdict == "ok"


@pytest.mark.parametrize(
    ("change", "word"), [({"inodes_free": 99}, "files"), ({"free_bytes": 10**8}, "room"), ({}, "")]
)
def test_a_full_folder_is_warned_about(tmp_path, everything_lies_on, change, word):
    everything_lies_on(dataclasses.replace(LOCAL, **change))
    found = by_name(storage.findings([tmp_path]), f"folder {tmp_path}")
    assert found.verdict == ("warn" if change else "ok")
    assert word in found.advice


def test_unknown_inodes_are_not_taken_for_none_left(tmp_path, everything_lies_on):
    everything_lies_on(dataclasses.replace(LOCAL, inodes_total=None, inodes_free=None))
    found = by_name(storage.findings([tmp_path]), f"folder {tmp_path}")
    assert (found.verdict, "files" in found.value) == ("ok", False)


def test_a_folder_without_write_permission_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)
    assert "not writable" in storage._folder(tmp_path).value


@pytest.mark.parametrize(("used", "verdict"), [(500, "ok"), (95_000, "warn")])
def test_a_quota_is_told_and_a_nearly_full_one_warned_about(tmp_path, monkeypatch, used, verdict):
    quota = machine.Quota("project", 10**9, 10**12, used, 100_000, "lfs quota")
    monkeypatch.setattr(machine, "quota", lambda path: quota)
    found = by_name(storage.findings([tmp_path]), f"quota {tmp_path}")
    assert found.verdict == verdict and f"{used:,} of 100,000 files used (project, lfs quota)" in found.value


def test_a_single_stripe_is_told_with_what_packed_files_want(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "striping", lambda path: machine.Striping(1, 1 << 20))
    found = by_name(storage.findings([tmp_path]), f"striping {tmp_path}")
    assert found.value == "1 of the storage targets, 1.0 MB each" and "lfs setstripe" in found.advice
    monkeypatch.setattr(machine, "striping", lambda path: machine.Striping(-1, 1 << 20, 3))
    found = by_name(storage.findings([tmp_path]), f"striping {tmp_path}")
    assert found.value.startswith("all storage targets") and found.advice == ""


def test_large_blocks_are_told(everything_lies_on, tmp_path):
    everything_lies_on(dataclasses.replace(LOCAL, kind="gpfs", block_bytes=1 << 24))
    assert "in blocks of 16.8 MB" in by_name(storage.findings([tmp_path]), f"folder {tmp_path}").value


@pytest.mark.parametrize("reason", [None, "/dev/fuse is not there"])
def test_whether_folders_can_be_mounted_is_told_and_is_no_fault(tmp_path, monkeypatch, reason):
    monkeypatch.setattr(storage.slowfs, "why_not", lambda: reason)
    found = by_name(storage.findings([tmp_path]), "FUSE")
    assert found.verdict == "ok" and (reason or "without root") in found.value


def test_a_docker_sized_shared_memory_is_warned_about(tmp_path, everything_lies_on):
    everything_lies_on(dataclasses.replace(LOCAL, kind="tmpfs", total_bytes=64 << 20, free_bytes=64 << 20))
    found = storage._shared_memory(tmp_path)
    assert (found.verdict, found.value) == ("warn", "67.1 MB, 67.1 MB free")
    assert "bus error" in found.advice


def test_a_missing_shared_memory_is_warned_about(tmp_path):
    assert storage._shared_memory(tmp_path / "shm").verdict == "warn"


def test_no_folder_for_temporary_files_is_a_failure(monkeypatch):
    def fail():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    assert storage._temporary().verdict == "fail"


def test_node_local_folders_are_found_and_missing_ones_told(tmp_path, monkeypatch):
    for name in storage.NODE_LOCAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    monkeypatch.setenv("LOCAL_SCRATCH", str(tmp_path / "none"))
    findings = list(storage._node_local())
    assert [finding.verdict for finding in findings] == ["ok", "warn"]


def test_fewer_cpus_than_slurm_was_asked_for_points_to_srun(monkeypatch, no_slurm):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    found = hardware._cpus(1, 128)
    assert found.verdict == "warn"
    assert 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"' in found.advice


@pytest.mark.parametrize(
    ("usable", "present", "verdict", "word"),
    [(4, 128, "ok", "at most 4"), (1, 1, "warn", ""), (8, 8, "ok", "")],
)
def test_usable_cpus_are_told_beside_those_present(no_slurm, usable, present, verdict, word):
    found = hardware._cpus(usable, present)
    assert (found.value, found.verdict) == (f"{usable} usable of {present}", verdict)
    assert word in found.advice


@pytest.mark.parametrize(
    ("limit", "verdict", "word"),
    [
        (machine.MemoryLimit(10**9, "cgroup v2"), "warn", "--mem"),
        (machine.MemoryLimit(32 * 10**9, "cgroup v1"), "ok", "/dev/shm"),
        (machine.MemoryLimit(64 * 10**9, "physical memory"), "ok", ""),
    ],
)
def test_the_memory_limit_is_told_with_its_source(limit, verdict, word):
    found = hardware._memory(limit)
    assert limit.source in found.value
    assert (found.verdict, word in found.advice) == (verdict, True)


@pytest.mark.parametrize(
    ("limits", "verdict", "word"),
    [
        ((1024, 4096), "warn", "ulimit -n 4096"),
        ((1024, 2048), "warn", "ulimit -n 2048"),
        ((1024, resource.RLIM_INFINITY), "warn", "ulimit -n 4096"),
        ((1024, 1024), "warn", "administrator"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", ""),
    ],
)
def test_the_open_file_limit_is_judged_with_what_can_be_raised(monkeypatch, limits, verdict, word):
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits)
    found = hardware._open_files()
    assert (found.verdict, word in found.advice) == (verdict, True)


def test_a_missing_package_comes_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(software, "_is_installed", lambda name: name not in ("h5py", "zstandard"))
    findings = list(software.findings())
    packages = by_name(findings, "packages")
    assert (packages.value, packages.verdict) == ("missing: h5py", "fail")
    assert "pip install -c requirements.lock -e '.'" in packages.advice
    assert "-e '.[formats]'" in by_name(findings, "optional zstandard").advice


def test_a_torch_that_cannot_be_loaded_is_a_failure_with_its_reason(monkeypatch):
    real = software.importlib.import_module

    def broken(name):
        if name == "torch":
            raise OSError("libcudart.so.13: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(software.importlib, "import_module", broken)
    found = by_name(software.findings(), "PyTorch")
    assert found.verdict == "fail"
    assert "libcudart.so.13" in found.value


def test_a_driver_that_does_not_fit_does_not_break_the_report():
    class Cuda:
        def is_available(self):
            raise RuntimeError("driver too old")

    class Torch:
        cuda = Cuda()

    assert software._gpus(Torch()) == "GPU not usable (driver too old)"


def test_the_packages_that_are_looked_for_are_the_projects_own(repository):
    import tomllib

    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    names = {name.split(">")[0].split(";")[0].strip() for name in project["dependencies"]}
    assert {"pillow" if name == "PIL" else name for name in software.CORE_MODULES} == names
    extras = project["optional-dependencies"]
    optional = {name.split(">")[0].split(";")[0].strip() for name in extras["formats"]}
    assert set(software.OPTIONAL_MODULES) == optional


def test_inside_a_job_the_job_is_named(monkeypatch, no_slurm):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert next(hardware.scheduler()).value == "inside job 4711 (2 nodes)"


def test_the_shell_of_salloc_is_told_that_it_is_not_on_its_nodes(monkeypatch, no_slurm):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    found = next(hardware.scheduler())
    assert (found.verdict, "srun" in found.advice) == ("warn", True)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert next(hardware.scheduler()).verdict == "ok"


def test_a_machine_with_sbatch_and_no_job_is_taken_for_a_login_node(tmp_path, monkeypatch, no_slurm):
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = next(hardware.scheduler())
    assert (found.verdict, "login node" in found.value) == ("warn", True)


def test_without_slurm_nothing_is_wrong(monkeypatch, no_slurm):
    monkeypatch.setenv("PATH", "")
    assert next(hardware.scheduler()).verdict == "ok"


def test_a_half_loaded_package_counts_as_missing(monkeypatch):
    class Broken:
        __spec__ = None

    monkeypatch.setitem(sys.modules, "brokenpackage", Broken())
    assert not software._is_installed("brokenpackage")


def test_before_a_workshop_it_says_what_a_participant_would_lack(monkeypatch, capsys):
    from smallfiles.cli import main
    from smallfiles.doctor import workshop

    monkeypatch.setattr(workshop.machine, "usable_cpus", lambda: 1)
    monkeypatch.setattr(workshop.slowfs, "why_not", lambda: "no FUSE here")
    assert main(["doctor", "--workshop", "--json"]) in (0, 1)
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    cpus, slow = found["workshop: CPUs"], found["workshop: slowfs"]
    assert cpus["verdict"] == "warn" and cpus["value"] == "1, less than the 2 that a participant needs"
    assert slow["verdict"] == "warn" and slow["value"] == "no FUSE here" and slow["advice"]
    assert "workshop: mksquashfs" in found
    assert not any(each.name.startswith("workshop") for each in doctor.examine())
