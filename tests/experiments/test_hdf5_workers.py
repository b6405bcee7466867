"""The fork trap and the file lock: set in processes of their own, counted, never waited for."""

import multiprocessing
import os
import time

import numpy as np
import pytest

from helpers.experiments import nb04 as bench
from helpers.experiments.nb04 import forktrap, handles, locks
from helpers.experiments.nb04.forktrap import Trial, in_words
from smallfiles.errors import FormatError, UsageError
from smallfiles.samples import Sample


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    chosen = np.random.default_rng(0)
    samples = [Sample(str(n), chosen.bytes(50_000 + 999 * n), n) for n in range(60)]
    out = tmp_path_factory.mktemp("fork") / "blob.h5"
    bench.write_blob(samples, out)
    return out


def test_a_shared_offset_gives_wrong_samples_and_a_handle_of_ones_own_does_not(path):
    ways = ("stdio driver, opened before", handles.LATE, handles.OURS)
    shared, late, ours = bench.fork_trials(path, seconds=0.5, ways=ways)
    assert shared.moves_offset and not late.moves_offset and not ours.moves_offset
    assert late.bad == ours.bad == 0 and late.reads and ours.reads
    if len(os.sched_getaffinity(0)) > 1:
        assert shared.bad > 0


def test_a_python_file_object_moves_its_offset(path):
    (trial,) = bench.fork_trials(path, seconds=0.2, ways=["Python file object, opened before"])
    assert trial.moves_offset and trial.reads


def test_an_unknown_way_is_refused(path):
    with pytest.raises(UsageError, match="opened by magic"):
        bench.fork_trials(path, ways=["opened by magic"])


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path):
    (tmp_path / "no.h5").write_bytes(b"no HDF5")
    with pytest.raises(FormatError, match=r"no\.h5 cannot be read in a new process"):
        bench.fork_trials(tmp_path / "no.h5", ways=[handles.LATE])


def test_a_way_that_hangs_is_stopped_by_the_limit(path, monkeypatch):
    monkeypatch.setattr(forktrap, "_SPARE_S", 0.5)
    monkeypatch.setattr(forktrap, "_CODE", "import time; time.sleep(60)")
    began = time.monotonic()
    (trial,) = bench.fork_trials(path, seconds=0.1, ways=[handles.LATE], workers=3)
    assert trial.dead == 3 and "time limit" in trial.message and time.monotonic() - began < 10


def test_a_worker_that_dies_is_counted():
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=os._exit, args=(1,))
    process.start()
    sender.close()
    assert forktrap._answer(process, receiver, 0.1) is None


def test_a_descriptor_shows_where_its_offset_stands(path):
    with path.open("rb", buffering=0) as file:
        file.seek(77)
        assert 77 in handles.offsets_of(path).values()
    assert handles.offsets_of(path) == {}


def test_words_follow_the_trials():
    good, moved = Trial("late", False, 100, 0, 0), Trial("early", True, 100, 7, 1)
    assert "7 wrong and 1 refused of 100" in in_words([good, moved])
    assert "exactly the ways" in in_words([good, moved])
    assert "No way gave a wrong sample" in in_words([good])
    assert "does not explain it" in in_words([Trial("odd", False, 9, 1, 0), good])
    assert "2 workers lost" in in_words([Trial("odd", False, 0, 0, 0, dead=2)])


def test_a_lock_refuses_whoever_asks_and_only_those(path):
    found = {(one.held_for, one.opener): one for one in bench.lock_attempts(path)}
    assert found["reading", "h5py, to read"].opened
    assert not found["reading", "h5py, to write"].opened
    assert not found["writing", "h5py, to read"].opened
    assert "unable to lock file" in found["writing", "h5py, to read"].message
    assert not found["writing", "h5py, to read, variable set after import"].opened
    for opener in ("h5py, to read, locking=False", "h5py, to read, variable set before import", "our reader"):
        assert found["writing", opener].opened and not found["writing", opener].message


def test_a_file_that_cannot_be_held_is_a_sentence(tmp_path):
    (tmp_path / "no.h5").write_bytes(b"no HDF5")
    with pytest.raises(FormatError, match="cannot be opened with a lock"):
        locks.lock_attempts(tmp_path / "no.h5")
