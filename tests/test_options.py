"""A field is a flag: configurations of all verbs print commands that mean the same, and refuse nonsense."""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from smallfiles import cli
from smallfiles.cli import pack, start
from smallfiles.demo import DemoConfig
from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig
from smallfiles.measure import BenchConfig
from smallfiles.measure.loading import LoadBenchConfig
from smallfiles.options import add_flags, check, explicit_fields, flag_of, from_args, option, to_argv
from smallfiles.pack import PackConfig
from smallfiles.ring import RingConfig
from smallfiles.slowfs import SlowConfig
from smallfiles.staging import StageConfig
from smallfiles.training import TrainConfig

EVERY_LOADER = LoaderConfig(8, 3, "threads", 4, 9, False, True, "skip", "stream", 7, 1, 2)
EVERY_LOAD = LoadBenchConfig(3, 99, (1, 4), ("ring", "threads"), ("a, b", "c"), 8, 160, 7, False)
EVERY_TRAIN = TrainConfig(EVERY_LOADER, "mask", "resnet18", 2, 96, 0.1, 5, checkpoint=Path("a b"), every=3)


def read_train(arguments):
    return from_args(TrainConfig, arguments, loader=LoaderConfig.from_args(arguments))


@pytest.mark.parametrize(
    ("config", "command", "read"),
    [
        *((each, each.to_cli("read", ["a b.arrow"]), None) for each in (
            BenchConfig(), BenchConfig(3, 10, ("random",), ("cold",), 7, False)
        )),
        *((each, each.to_cli(["x.arrow"]), None) for each in (
            *(LoadBenchConfig(), EVERY_LOAD),
            *(LoadBenchConfig(step="resnet50-h100"), LoadBenchConfig(step_ms=47.55)),
        )),
        *((each, each.to_cli("data", "out dir/x.tars"), pack.config_of) for each in (
            PackConfig(),
            PackConfig("tar", None, 8, "full", "skip", "decode", 5, (2, 7), False, False),
            PackConfig(resize=256, quality=80), PackConfig(resize=256, pixels=True),
            PackConfig(merge=True, verify="none"),
        )),
        *((each, each.to_cli(Path("a b.h5")), None) for each in (
            StageConfig(), StageConfig(5)
        )),
        *((each, each.to_cli("a b", "c"), None) for each in (
            SlowConfig(), SlowConfig(0.0025, 8, 2e8, 0.5), SlowConfig(0, 1, 1.5e6)
        )),
        *((each, each.to_cli(), None) for each in (
            DemoConfig(), DemoConfig(Path("d e"), 9, Path("o"), 2, 1)
        )),
        *((each, each.to_cli("x.arrow", "v.arrow"), read_train) for each in (
            *(TrainConfig(), EVERY_TRAIN, TrainConfig(ring="r", wait=9.0)),
            TrainConfig(LoaderConfig(start_method="spawn", pin_memory=False)),
        )),
        *((each, each.to_cli("x.arrow", "--batch", "8"), None) for each in (
            RingConfig(), RingConfig("r", slots=9, producers=2, epochs=3, where=Path("/tmp/a b"))
        )),
        (start.SynthConfig("kaggle", 9, 1, 4), None, None),
    ],
)  # fmt: skip
def test_a_command_means_the_configuration_that_printed_it(config, command, read):
    if isinstance(config, start.SynthConfig):
        command = shlex.join(["smallfiles", "synth", "out", *to_argv(config)])
    arguments = cli.parse(shlex.split(command)[1:])
    assert (read(arguments) if read else from_args(type(config), arguments)) == config


@dataclass(frozen=True)
class Config:
    """Every kind of option."""

    count: int = option(3, "how many", least=1, most=9)
    wait_s: float = option(0.002, "how long", flag="wait-ms", scale=1e-3, metavar="T")
    mode: Literal["a", "b"] = option("a", "which")
    modes: tuple[Literal["a", "b"], ...] = option(("a",), "which ones")
    sizes: tuple[int, ...] = option((1, 2), "of what", metavar="N,N")
    names: tuple[str, ...] = option((), "repeatable", flag="name", many=True, metavar="X")
    cap: bool = option(True, "lift it")
    fast: bool = option(False, "hurry")
    pin: bool | None = option(None, "either way", both=True)
    part: tuple[int, int] | None = option(
        None, "k of n", parse=lambda text: tuple(map(int, text.split("/"))), show="{0[0]}/{0[1]}".format
    )
    hidden: int = 5

    def __post_init__(self):
        check(self)


def read(text):
    parser = argparse.ArgumentParser()
    add_flags(parser, Config)
    return parser.parse_args(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", Config()),
        ("--count 9 --wait-ms 5 --mode b", Config(9, 0.005, "b")),
        (
            "--modes a,b --sizes 3 --name x --name 'y z'",
            Config(modes=("a", "b"), sizes=(3,), names=("x", "y z")),
        ),
        ("--no-cap --fast --no-pin --part 2/7", Config(cap=False, fast=True, pin=False, part=(2, 7))),
        ("--pin", Config(pin=True)),
    ],
)
def test_flags_mean_fields_and_fields_are_printed_as_flags(text, config):
    assert from_args(Config, read(text)) == config
    assert to_argv(config) == shlex.split(text)


def test_all_of_a_few_are_both():
    assert from_args(Config, read("--modes both")).modes == ("a", "b")


def test_what_is_given_is_known_also_where_it_is_the_default():
    assert explicit_fields(Config, read("--count 3 --fast")) == ["count", "fast"]
    assert flag_of(Config, "cap") == "--no-cap" and flag_of(Config, "wait_s") == "--wait-ms"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"count": 0}, "--count is 0; expected 1 to 9"),
        ({"count": 10}, "--count is 10; expected 1 to 9"),
        ({"count": float("nan")}, "--count is nan"),
        ({"mode": "c"}, "--mode is c; expected one of a, b"),
        ({"modes": ("a", "a")}, "--modes is a,a; expected one or more values, each once"),
        ({"sizes": ()}, "--sizes is nothing; expected one or more"),
    ],
)
def test_nonsense_is_refused_by_flag(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        Config(**wrong)


NONSENSE: dict[type, list[tuple[str, object, str]]] = {
    LoadBenchConfig: [
        *((name, 0, f"--{name} is 0") for name in ("repeats", "count", "batch")),
        *(("workers", value, "--workers is") for value in ((), (2, 0))),
        *(("modes", value, "--mode is") for value in ((), ("threads", "threads"), ("fibres",))),
        ("seed", -1, "--seed is -1"),
    ],
    SlowConfig: [
        ("latency_s", -1, "--latency-ms is -1000"),
        ("latency_s", float("nan"), "--latency-ms is nan"),
        ("servers", 0, "--servers is 0"),
        ("bandwidth_bytes_s", 0, "--bandwidth-mb is 0"),
        ("jitter", -0.1, "--jitter is -0.1"),
    ],
    StageConfig: [("leave_bytes", -1, "--leave-bytes is -1")],
}


@pytest.mark.parametrize(
    ("config", "name", "value", "sentence"),
    [(config, *row) for config, rows in NONSENSE.items() for row in rows],
)
def test_values_without_sense_are_refused_in_every_room(config, name, value, sentence):
    with pytest.raises(UsageError, match=sentence):
        config(**{name: value})


@pytest.mark.parametrize("text", ["--sizes 1,x", "--wait-ms soon", "--count x", "--mode c"])
def test_what_cannot_be_read_is_refused_by_flag(text, capsys):
    with pytest.raises(SystemExit):
        read(text)
    assert text.split()[0] in capsys.readouterr().err


def test_help_tells_a_default_where_that_says_something():
    parser = argparse.ArgumentParser()
    add_flags(parser, Config, ("count", "wait_s", "sizes", "cap", "pin", "names"))
    told = " ".join(parser.format_help().split())
    assert "how many (default: 3)" in told and "how long (default: 2)" in told and "(default: 1,2)" in told
    assert told.count("default") == 3 and "--mode" not in told
