"""Notebook 10 and its exercise submit for real where Slurm is there."""

import os
import sys
from pathlib import Path

import pytest

from helpers import jobs
from helpers.experiments.nb10 import players as environments
from smallfiles.errors import UsageError

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


def test_a_script_of_ones_own_is_a_job_like_those_of_the_course(tmp_path):
    script = tmp_path / "my job.sbatch"
    script.write_text("#!/bin/bash\n# Mine.\n# Args: DATA=x\n#SBATCH --nodes=3\nset -eo pipefail\n")
    job = jobs.find(ROOT, str(script))
    assert (job.path, job.name, job.directives) == (script, "my job", ("--nodes=3",))
    with pytest.raises(UsageError, match="there is no job"):
        jobs.find(ROOT, str(tmp_path / "gone.sbatch"))


def test_what_slurm_tells_is_what_the_notebook_says_that_it_tells(cluster, tmp_path):
    line = f"cd '{tmp_path}'; env > script; srun -c2 sh -c 'env > task-$SLURM_PROCID'"
    asked = ("--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2")
    cluster.run("sbatch", "--wait", *asked, f"--output={tmp_path}/log", "--wrap", line)
    shell = ("srun", "--interactive", "--preserve-env", "sh", "-c", f"env > '{tmp_path}/salloc'")
    cluster.run("salloc", *asked, *shell)  # what use_interactive_step makes of a bare salloc
    for name, told in {
        "script": environments.script(),
        "salloc": environments.salloc(),
        **{f"task-{rank}": environments.srun(rank) for rank in range(4)},
    }.items():
        lines = (tmp_path / name).read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines if line.startswith("SLURM"))
        assert {**told, "SLURM_JOB_ID": found["SLURM_JOB_ID"]}.items() <= found.items()


@pytest.mark.timeout(600)
def test_the_notebook_submits_and_tells_what_the_job_counted(participant, tmp_path):
    executed = execute(ROOT / "notebooks" / "10_run_it_on_many_nodes.ipynb", participant)
    assert "4 ranks on 2 nodes read each of 120 samples exactly once" in executed.text
    assert "rank 3 on n2: 30 samples" in executed.text and "slurm/submit local 10_read" in executed.text
    assert [path.name for path in (tmp_path / "a work folder").iterdir()] == ["logs"]


@pytest.mark.timeout(600)
def test_the_solved_script_trains_on_two_nodes(participant, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    executed = execute(ROOT / "solutions" / "10_run_it_on_many_nodes.ipynb", participant)
    assert "ended well" in executed.text and "rank 3 on node 1: 30 samples" in executed.text
