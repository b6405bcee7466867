"""Dead workers, full shared memory and too many files give a sentence."""

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import loading_sets as sets
import numpy as np
import pytest
from given import Given
from programs import Program, on_small_disk

from smallfiles.errors import ResourceError
from smallfiles.loading import BadSampleError, LoaderConfig, WorkerDiedError, make_loader
from smallfiles.loading.loader import choose_mode
from smallfiles.loading.worker_errors import WorkerMemory, check_shared_memory, explain, explained

PROCESSES = LoaderConfig(mode="processes", workers=2, batch=8)


@dataclass(frozen=True)
class Dying:
    """Kills its process at one sample, as the system does when memory is used up."""

    signal: int
    shape = (4, 4, 3)
    dtype = np.dtype(np.uint8)

    def into(self, data, rng, out):
        if bytes(data)[6] == 20:
            os.kill(os.getpid(), self.signal)
        out[...] = 0


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return sets.write(sets.stub_samples(60), tmp_path_factory.mktemp("set") / "x.arrow")


def test_a_worker_without_shared_memory_is_a_sentence_with_what_to_change():
    text = "Caught RuntimeError in DataLoader worker process 0.\nunable to allocate shared memory for </t_1>"
    found = str(explain(RuntimeError(text), WorkerMemory(2, 3, 1 << 20)))
    assert "could not be allocated (unable" in found and "</t_1>" in found and "--mode threads" in found


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, ("killed by signal 9", "--mem", "MiB for all its processes")),
        (signal.SIGBUS, ("bus error", "/dev/shm has", "--mode threads")),
        (signal.SIGTERM, ("Terminated", "--mode main")),
    ],
)
def test_a_worker_that_is_killed_is_a_sentence_with_what_to_change(path, order, number, words):
    loader = make_loader(path, replace(PROCESSES, order=order), transform=Dying(number))
    with pytest.raises(WorkerDiedError) as caught:
        list(loader)
    for word in words:
        assert word in str(caught.value)
    assert "RuntimeError" not in str(caught.value)
    subprocess.run(["true"], check=True)  # the end of any child makes torch look for dead workers again
    with pytest.raises(WorkerDiedError):  # with new workers
        list(loader)


@pytest.mark.parametrize("name", ["x.arrow", "x.tars"])
def test_a_file_that_was_cut_while_it_was_read_is_named_with_its_sizes(tmp_path, name):
    rows = [Given(f"{n}.jpg", b"good" + bytes(99_996), 0) for n in range(60)]
    path = sets.write(rows, tmp_path / name)
    batches = iter(make_loader(path, replace(PROCESSES, workers=1, prefetch=1), transform=sets.Stub()))
    next(batches)
    (victim,) = [path] if path.is_file() else path.glob("*.tar")
    size = victim.stat().st_size
    os.truncate(victim, 4096)
    with pytest.raises(
        WorkerDiedError, match=f"got a bus error: {victim} has 4,096 bytes, and had {size:,} when"
    ):
        list(batches)


def test_the_workers_end_soon_after_a_failure(tmp_path):
    path = sets.write(sets.stub_samples(60, bad=(30,)), tmp_path / "x.arrow")
    loader = make_loader(path, PROCESSES, transform=sets.Stub())
    with pytest.raises(BadSampleError) as caught:
        list(loader)
    assert loader._iterator is not None
    workers = list(loader._iterator._workers)
    del loader, caught
    gc.collect()
    assert [worker.exitcode for worker in workers] == [
        0,
        0,
    ]  # a worker that does not end within 5 s is killed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("received 0 items of ancdata", ("ulimit -n", "file_system")),
        ("Too many open files. Communication with the workers is no longer possible.", ("ulimit -n",)),
        ("unable to open shared memory object </torch_1> in read-write mode", ("ulimit -n",)),
        ("unable to write to file </torch_1>: No space left on device; shared memory", ("MiB in /dev/shm",)),
        ("DataLoader worker (pid(s) 12, 13) exited unexpectedly", ("process 12, 13", "--mode main")),
        ("DataLoader worker (pid 7) is killed by signal: Killed. ", ("process 7", "2 workers")),
    ],
)
def test_errors_of_torch_are_translated(text, words):
    found = explain(RuntimeError(text), WorkerMemory(2, 2, 1 << 20))
    assert all(word in str(found) for word in words)


def test_a_late_error_of_torch_is_translated_at_whatever_line_it_is_raised(monkeypatch):
    def late(number, frame):  # torch's handler of SIGCHLD: between any two lines, once for one death
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    def cut_off(microseconds):
        signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
        raise EOFError

    monkeypatch.setattr("smallfiles.loading.worker_errors.NOTICED_AFTER_S", 0.2)
    before = signal.signal(signal.SIGALRM, late)
    try:
        for microseconds in range(1, 150):
            with pytest.raises(WorkerDiedError, match="Terminated"):
                explained(partial(cut_off, microseconds), WorkerMemory(2, 2, 512))
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("text", ["", "DataLoader worker (pid(s) 12) exited unexpectedly"])
def test_a_death_that_torch_did_not_name_is_named_by_the_exit_code_of_the_worker(monkeypatch, text):
    """Its error came inside a destructor, where Python drops it, and it comes once."""
    monkeypatch.setattr("smallfiles.loading.worker_errors.NOTICED_AFTER_S", 0)
    die = partial(Dying(signal.SIGKILL).into, b"123456" + bytes([20]), None, np.zeros(1))
    worker = multiprocessing.get_context("fork").Process(target=die)
    worker.start()
    worker.join()

    def cut_off():
        raise RuntimeError(text) if text else EOFError

    with pytest.raises(
        WorkerDiedError, match=f"process {'12' if text else worker.pid}. was killed by signal 9"
    ):
        explained(cut_off, WorkerMemory(2, 2, 512), [worker])


def test_other_errors_are_left_alone():
    assert explain(RuntimeError("CUDA error: out of memory"), WorkerMemory(2, 2, 1)) is None


def test_shared_memory_that_is_too_small_is_refused_before_the_start(tmp_path):
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    with pytest.raises(ResourceError, match="2 workers with 3 batches ahead need"):
        check_shared_memory(WorkerMemory(2, 3, free // 5))
    check_shared_memory(WorkerMemory(0, 3, free))
    assert choose_mode(LoaderConfig(), 8, free // 5) == "threads"
    assert choose_mode(LoaderConfig(), 8, 1000) == "processes"
    assert choose_mode(LoaderConfig(), 2, 1000) == "threads"
    assert choose_mode(LoaderConfig(mode="processes"), 2, 1000) == "processes"
    assert choose_mode(LoaderConfig(mode="processes"), 0, 1000) == "main"


def keeping_all(path):
    """Keep batches until no file can be opened any more."""
    most = len(os.listdir("/proc/self/fd")) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    loader = make_loader(path, replace(PROCESSES, workers=1, batch=1), transform=sets.Stub())
    with pytest.raises(ResourceError, match=r"no more files could be opened.*ulimit -n"):
        _ = [batch for _ in range(3) for batch in loader]


def test_too_many_batches_kept_are_reported_as_open_files(path):
    program = Program(keeping_all, path)
    code = program.wait()
    assert code == 0, program.errors
    program.end()


def in_little_shared_memory(path):
    """Ask for processes, and for whatever fits."""
    with pytest.raises(ResourceError, match="/dev/shm has 0 MiB free, and 2 workers with 4 batches ahead"):
        make_loader(path, replace(PROCESSES, batch=256, prefetch=4), transform=sets.Stub())
    print(make_loader(path, LoaderConfig(workers=8, batch=256), transform=sets.Stub()).threads, "threads")


def test_a_real_small_dev_shm_is_refused_with_its_size(path):
    done = on_small_disk(Path("/dev/shm"), "size=64k", in_little_shared_memory, path)
    assert "8 threads" in done.stdout, done.stderr
