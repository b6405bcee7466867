"""Forked workers are measured while all of them live, and a dict costs each of them a copy."""

import gc
import json
import mmap
import os

import numpy as np
import pytest

from helpers.experiments import nb02 as manifest_memory
from helpers.experiments.nb02 import DICT, SHARES, TABLE
from smallfiles.errors import ResourceError, UsageError
from smallfiles.manifest import Manifest
from smallfiles.measure import memory

MB = 1_000_000


def test_resident_memory_grows_with_what_is_held_and_the_peak_with_it():
    gc.collect()  # what other tests left is not to go just now
    before = memory.resident_bytes()
    held = np.frombuffer(mmap.mmap(-1, 32 * MB), np.uint8)  # new pages, not those that a heap had kept
    held[:] = 1
    assert memory.resident_bytes() - before > 25 * MB
    assert memory.peak_bytes() >= before + held.nbytes // 2


def test_private_memory_is_a_part_of_the_proportional():
    now = memory.footprint()
    assert 0 < now.private_bytes <= now.proportional_bytes <= memory.resident_bytes() * 1.1


def test_what_a_worker_only_reads_stays_shared_and_what_it_writes_is_its_own():
    shared = np.ones(4 * MB, np.int64)

    def steps(number):
        yield
        yield shared.sum()
        shared[:] = number
        yield

    for first, read, written in memory.in_workers(steps, 2):
        assert read.private_bytes - first.private_bytes < 8 * MB
        assert written.private_bytes - first.private_bytes > 25 * MB
        assert written.proportional_bytes >= written.private_bytes


def test_steps_are_timed_without_the_waiting_for_others():
    ((one, two),) = memory.in_workers(lambda number: iter((0, 1)), 1)
    assert 0 <= one.seconds < 1 and 0 <= two.seconds < 1


def test_a_worker_that_dies_is_a_sentence(capfd):
    def steps(number):
        os._exit(3)
        yield

    with pytest.raises(ResourceError, match="a forked worker ended before"):
        memory.in_workers(steps, 2)


def test_a_kernel_without_these_figures_is_a_sentence(monkeypatch):
    with pytest.raises(ResourceError, match="/proc/self/no_such"):
        memory._fields("no_such")


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    path = tmp_path_factory.mktemp("flat") / "flat.json"
    manifest_memory.write_example(path, 60_000)
    return path


def test_the_example_is_a_manifest_of_a_thousand_classes(flat):
    manifest = Manifest.load(flat)
    assert len(manifest) == 60_000
    assert set(np.asarray(manifest.targets).tolist()) == set(range(1000))
    assert manifest.path(0).startswith("ILSVRC/Data/CLS-LOC/train/n")
    assert list(json.loads(flat.read_text())) == manifest.paths.to_pylist()


def test_an_empty_example_is_still_a_manifest(tmp_path):
    manifest_memory.write_example(tmp_path / "none.json", 0)
    assert len(Manifest.load(tmp_path / "none.json")) == 0


def test_workers_copy_a_dict_and_share_a_table(flat):
    as_dict, as_table = manifest_memory.watch(flat, workers=2)
    assert (as_dict.way, as_table.way) == (DICT, TABLE)
    assert as_dict.rows == as_table.rows == 60_000
    assert as_dict.workers == 2 and all(len(seen) == len(SHARES) for seen in as_dict.private_bytes)
    assert as_dict.copied_bytes > 4 * as_table.copied_bytes
    assert as_dict.copied_bytes_a_row > 50


def test_an_unknown_way_is_a_sentence(flat):
    with pytest.raises(UsageError, match="the way 'list' is unknown"):
        manifest_memory.measure(flat, "list", 1)


def test_a_measurement_that_fails_says_why(tmp_path):
    with pytest.raises(ResourceError, match="No such file"):
        manifest_memory.watch(tmp_path / "none.json", ways=(DICT,))
