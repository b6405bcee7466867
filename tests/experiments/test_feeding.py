"""`ring fill` as a program beside the notebook: it begins, it ends with its block, it says why it failed."""

import os

import pytest

from helpers.experiments.nb08 import filling
from smallfiles import ring
from smallfiles.pack import PackConfig, pack
from smallfiles.ring import RingConfig
from smallfiles.sources import load, synthetic


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feeding")
    synthetic.make(folder / "set", "folder", count=24, classes=3)
    pack(load(folder / "set"), folder / "train.arrow", PackConfig())
    return folder / "train.arrow"


def test_the_block_begins_when_the_ring_is_there_and_the_filler_ends_with_it(packed):
    name = f"feeding-{os.getpid()}"
    config = RingConfig(name=name, slots=2, producers=1, epochs=1)
    with filling(config, packed, "--batch", "8", "--size", "32") as program:
        assert name in ring.names()
        with ring.attach(name, wait_s=60) as batches:
            assert sum(len(batch["index"]) for batch in batches) == 24
    assert program.poll() is not None
    assert name not in ring.names()


def test_what_a_filler_said_that_ended_before_it_began_is_told(tmp_path):
    config = RingConfig(name=f"waited-{os.getpid()}", slots=2, producers=1, epochs=1)
    with (
        pytest.raises(ring.RingError, match=r"ended before it began[^$]*missing\.arrow"),
        filling(config, tmp_path / "missing.arrow"),
    ):
        pass
