"""A real Slurm with two nodes, started once, and jobs really submitted to it."""

import os

import pytest
from local_slurm import started


@pytest.fixture(scope="session")
def cluster(repository, need_tool, tmp_path_factory):
    """Two nodes with four CPUs each, in a folder of their own, and a data set in a path with a space."""
    for name in ("slurmctld", "slurmd", "munged"):
        os.environ["PATH"] += ":/usr/sbin"
        need_tool(name, "slurm-wlm, munge")
    work = tmp_path_factory.mktemp("a work folder")
    with started(repository, work) as running:
        running.done("00_make_data", work / "data", "--count", "240", "--seed", "1")
        yield running
