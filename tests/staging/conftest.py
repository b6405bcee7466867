"""A place that stands for storage of this node; whatever a test leaves there is a failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from staging_tools import listed, names, packed, programs

from smallfiles.cli import main
from smallfiles.machine import nodelocal
from smallfiles.staging import run


@pytest.fixture(autouse=True)
def own_variables(monkeypatch):
    for variable in (*nodelocal.VARIABLES, "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def nothing_in_shared_memory():
    """Others of this user may stage there meanwhile: what nobody alive holds is ours."""
    yield
    while programs:
        programs.pop().end()
    run.release_all()
    assert [copy for copy in listed(Path("/dev/shm")) if copy.state == "leftover"] == []


@pytest.fixture
def node(tmp_path):
    place = tmp_path / "node"
    place.mkdir()
    yield place
    run.release_all()
    assert names(place) == []


@pytest.fixture
def command(capsys, monkeypatch):
    """Run a command line in this process, perhaps as a job of that number."""

    def run(*words, job=""):
        with monkeypatch.context() as patch:
            if job:
                patch.setenv("SLURM_JOB_ID", job)
            capsys.readouterr()
            code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, out, err)

    return run


@pytest.fixture
def source(tmp_path):
    return packed(tmp_path / "data" / "train.arrow")
