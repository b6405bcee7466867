"""Login node, node of a job, or somebody's own computer; and the warning on the first."""

import os

import pytest

from smallfiles import machine
from smallfiles.cli import main
from smallfiles.machine import HEAVY_BYTES, HEAVY_FILES, SILENCE


@pytest.fixture
def with_sbatch(tmp_path):
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    return {"PATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("env", "sbatch", "kind", "job"),
    [
        ({}, False, "own", ""),
        ({}, True, "login", ""),
        ({"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2"}, True, "login", "4711"),  # the shell of salloc
        ({"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n1"}, True, "compute", "4711"),
        ({"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}, True, "compute", "4711"),
        *(({name: "1"}, False, "compute", "1") for name in ("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")),
    ],
)
def test_a_login_node_a_node_of_a_job_and_an_own_computer_are_told_apart(with_sbatch, env, sbatch, kind, job):
    found = machine.node({**env, **(with_sbatch if sbatch else {"PATH": "/nowhere"})})
    assert (found.kind, found.job) == (kind, job) and found.why


@pytest.fixture
def warned(monkeypatch, capsys):
    def warn(env, **work):
        monkeypatch.setattr(os, "environ", env)
        machine.warn_on_login_node("packing", **work)
        return capsys.readouterr().err

    return warn


@pytest.mark.parametrize(("size", "files"), [(HEAVY_BYTES, 0), (0, HEAVY_FILES)])
def test_heavy_work_on_a_login_node_is_warned_about_in_one_line(with_sbatch, size, files, warned):
    line = warned(with_sbatch, size_bytes=size, files=files)
    assert line.count("\n") == 1 and line.startswith("warning: packing ") and f"{SILENCE}=1" in line


def test_light_work_a_job_an_own_computer_and_a_wish_for_silence_are_not(with_sbatch, warned):
    assert warned(with_sbatch, size_bytes=10**6, files=9) == ""
    in_job = {**with_sbatch, "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n"}
    for env in (in_job, {"PATH": ""}, {**with_sbatch, SILENCE: "1"}):
        assert warned(env, size_bytes=10**12) == ""
    assert warned({**with_sbatch, SILENCE: "0"}, size_bytes=10**12)


@pytest.fixture
def here_is_a_login_node(with_sbatch, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM", "PBS_", "LSB_", "FLUX_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SMALLFILES_LOGIN_OK", raising=False)
    monkeypatch.setenv("PATH", f"{with_sbatch['PATH']}:/usr/bin:/bin")
    monkeypatch.setattr("smallfiles.machine.HEAVY_BYTES", 1000)


def test_pack_warns_and_goes_on(tmp_path, here_is_a_login_node, capsys):
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "1.jpg").write_bytes(b"\xff\xd8\xff" + bytes(2000) + b"\xff\xd9")
    assert main(["pack", str(tmp_path / "data"), str(tmp_path / "x.arrow")]) == 0
    assert "warning: packing 2.0 kB in 1 file is heavy work" in capsys.readouterr().err
