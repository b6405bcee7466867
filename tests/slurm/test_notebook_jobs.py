"""Notebook 10 and its exercise submit for real where Slurm is there."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "notebooks"))

from running import execute  # noqa: E402  # a script beside the tests of notebooks


@pytest.fixture
def participant(cluster, tmp_path, monkeypatch):
    """Somebody who sits at a machine with the local cluster."""
    for name in [name for name in os.environ if name.startswith(("COURSE", "SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)
    for name in ("SMALLFILES_CLUSTER", "COURSE_VENV", "PATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "a work folder"))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COURSE_SIZE", "120")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.mark.timeout(600)
def test_the_notebook_submits_and_tells_what_the_job_counted(participant, tmp_path):
    executed = execute(ROOT / "notebooks" / "10_run_it_on_many_nodes.ipynb", participant)
    assert "4 ranks on 2 nodes read each of 120 samples exactly once" in executed.text
    assert "rank 3 on n2: 30 samples" in executed.text and "sbatch --parsable" in executed.text
    assert [path.name for path in (tmp_path / "a work folder").iterdir()] == ["logs"]


@pytest.mark.timeout(600)
def test_the_solved_script_trains_on_two_nodes(participant, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    executed = execute(ROOT / "solutions" / "10_run_it_on_many_nodes.ipynb", participant)
    assert "ended well" in executed.text and "rank 3 on node 1: 30 samples" in executed.text
