"""A loader's settings: printed as flags, read back, and filled in from this machine."""

import argparse
import dataclasses
import os
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig
from smallfiles.loading.config import default_workers, place
from smallfiles.machine.ranks import Ranks
from smallfiles.options import add_flags

configs = st.builds(
    LoaderConfig,
    batch=st.integers(1, 4096),
    workers=st.none() | st.integers(0, 64),
    mode=st.sampled_from(["auto", "processes", "threads", "main"]),
    prefetch=st.integers(1, 9),
    seed=st.integers(0, 2**63),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    on_error=st.sampled_from(["stop", "skip", "repeat"]),
    order=st.sampled_from(["random", "stream"]),
    buffer=st.integers(1, 9999),
    start_method=st.sampled_from([None, "fork", "spawn", "forkserver"]),
    pin_memory=st.sampled_from([None, True, False]),
)


def followed(config):
    """The same without what its other settings make meaningless."""
    names = {"buffer"} if config.order == "random" else set()
    names |= {"workers", "prefetch", "start_method"} if config.mode == "main" else set()
    names |= {"start_method"} if config.mode == "threads" else set()
    return dataclasses.replace(config, **{name: getattr(LoaderConfig(), name) for name in names})


def parsed(text):
    parser = argparse.ArgumentParser()
    add_flags(parser, LoaderConfig)
    return LoaderConfig.from_args(parser.parse_args(shlex.split(text)))


@given(configs.map(followed))
def test_a_configuration_prints_flags_that_mean_the_same(config):
    assert parsed(config.to_cli()) == config


@pytest.mark.parametrize(
    "words", ["--buffer 1024", "--mode main --workers 2", "--mode threads --start-method fork"]
)
def test_flags_that_nothing_follows_are_refused(words):
    with pytest.raises(UsageError, match="would change nothing with --"):
        parsed(words)
    parsed("--mode main --workers 0 --order stream --buffer 1024")


def test_defaults_print_nothing():
    assert LoaderConfig().to_cli() == ""


def test_a_command_may_leave_flags_to_itself():
    parser = argparse.ArgumentParser()
    add_flags(parser, LoaderConfig, ["batch", "workers"])
    assert "--seed" not in parser.format_help() and "--batch" in parser.format_help()
    assert LoaderConfig.from_args(parser.parse_args([])) == LoaderConfig()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"workers": -1}, "workers is -1"),
        ({"mode": "gpu"}, "mode is gpu"),
        ({"on_error": "ignore"}, "on-error is ignore"),
        ({"start_method": "vfork"}, "start-method is vfork"),
        ({"rank": 1}, "rank is 1 and world-size is None"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        LoaderConfig(**fields)


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


def test_the_rank_comes_from_the_launcher_unless_it_is_given(monkeypatch):
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert place(LoaderConfig()).rank == 2
    assert place(LoaderConfig(rank=0, world_size=1)) == Ranks()
