"""A loader's settings: read from flags, and filled in from this machine."""

import argparse
import os
import shlex

import pytest

from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig, default_workers
from smallfiles.machine.ranks import Ranks
from smallfiles.options import add_flags


def parsed(text):
    parser = argparse.ArgumentParser()
    add_flags(parser, LoaderConfig)
    return LoaderConfig.from_args(parser.parse_args(shlex.split(text)))


@pytest.mark.parametrize(
    "words", ["--buffer 1024", "--mode main --workers 2", "--mode threads --start-method fork"]
)
def test_flags_that_nothing_follows_are_refused(words):
    with pytest.raises(UsageError, match="would change nothing with --"):
        parsed(words)
    parsed("--mode main --workers 0 --order stream --buffer 1024")


def test_half_of_a_place_is_refused():
    with pytest.raises(UsageError, match="rank is 1 and world-size is None"):
        LoaderConfig(rank=1)


@pytest.mark.parametrize(
    ("where", "usable", "of_node", "asked", "workers"),
    [
        (Ranks(0, 8, 0, 4, 0, 2, "torchrun"), 12, 48, "", 3),  # ranks share the CPUs of their node
        (Ranks(0, 64, 0, 64, source="torchrun"), 12, 48, "", 1),
        (Ranks(0, 8, 0, 4, 0, 2, "slurm"), 12, 48, "", 12),  # a task that Slurm bound keeps its own
        (Ranks(0, 8, 0, 4, 0, 2, "slurm"), 12, 48, "7", 7),
        (Ranks(0, 8, 0, 4, 0, 2, "slurm"), 12, 12, "", 3),  # one that sees the whole node shares it
        (Ranks(), 128, 256, "", 16),  # a large node is not taken as a whole
    ],
)
def test_workers_are_as_many_as_this_rank_has_cpus(monkeypatch, where, usable, of_node, asked, workers):
    monkeypatch.setattr("smallfiles.machine.usable_cpus", lambda: usable)
    monkeypatch.setattr(os, "cpu_count", lambda: of_node)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", asked)
    assert default_workers(where) == workers
