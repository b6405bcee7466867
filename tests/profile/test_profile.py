"""Somebody's training is watched: it stays what it is, and the report says what limits it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from smallfiles import slowfs
from smallfiles.cli import main
from smallfiles.profile import TABLE, load, report

LOOPS = Path(__file__).with_name("loops.py")
ROOT = LOOPS.parents[2]


class Watched:
    """A program behind `smallfiles profile`, and what became of it."""

    def __init__(self, tmp_path, *program, options=(), **environment):
        self.record_path = tmp_path / "a record.json"
        # Short: a worker's socket is below it, and the path of a socket ends at 107 bytes.
        self.folder = tempfile.TemporaryDirectory(prefix="sf-")
        self.tmp = Path(self.folder.name)
        command = [sys.executable, "-m", "smallfiles", "profile", "--save", str(self.record_path), *options]
        paths = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(ROOT)]))
        around = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(self.tmp), **environment}
        self.process = subprocess.Popen(
            [*command, "--", *map(str, program)],
            env=around,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self):
        try:
            self.out, self.report = self.process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # which ends the program too
            raise
        left = [path for path in self.tmp.iterdir() if path.name.startswith("smallfiles-profile")]
        assert left == [], "files of the measurement stayed behind"
        return self.process.returncode

    @property
    def verdict(self):
        assert self.end() == 0, self.report
        return load(self.record_path)["verdict"]["name"]


def watch(tmp_path, kind, fault, *more):
    if KINDS[kind]:
        pytest.importorskip(KINDS[kind])
    return Watched(tmp_path, sys.executable, LOOPS, kind, fault, *more)


def script(tmp_path, text):
    path = tmp_path / "their script.py"
    path.write_text(text)
    return path


NAMED = {
    "few_workers": "too few workers",
    "no_workers": "too few workers",
    "copies": "the main thread copies",
    "restarted": "workers are restarted in each epoch",
    "many_workers": "too many workers",
    "threads": "threads are oversubscribed",
    "cold": "the first epoch is cold, later ones are warm",
    "decode": "decoding is the limit",
    "few_cpus": "too few CPUs are allowed",
    "small_reads": "small reads",
}
KINDS = {"plain": None, "webdataset": "webdataset", "lightning": "lightning", "hf": "transformers"}
EVERY_DAY = [("plain", "few_workers"), ("plain", "copies"), ("webdataset", "restarted")]


def case(kind, fault):
    return pytest.param(kind, fault, marks=() if (kind, fault) in EVERY_DAY else pytest.mark.slow)


@pytest.mark.parametrize("kind, fault", [case(kind, fault) for kind in KINDS for fault in NAMED])
def test_a_planted_fault_is_named(kind, fault, tmp_path):
    if fault == "few_cpus" and (os.cpu_count() or 1) < 2:
        pytest.skip("one CPU is all there is")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.bin").write_bytes(bytes(200_000))
    assert watch(tmp_path, kind, fault, tmp_path / "data").verdict == NAMED[fault]


SLOW_FOLDERS = {
    "opens": ("opens on a file system with slow metadata", 2_000, slowfs.SlowConfig(latency_s=0.01)),
    "storage": ("the storage is the limit", 400_000, slowfs.SlowConfig(latency_s=0, bandwidth_bytes_s=2e7)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", SLOW_FOLDERS)
def test_a_slow_folder_is_named(kind, fault, tmp_path):
    if reason := slowfs.why_not():
        pytest.skip(reason)
    name, size, config = SLOW_FOLDERS[fault]
    (tmp_path / "data").mkdir()
    for number in range(400):
        (tmp_path / "data" / f"{number:04}.bin").write_bytes(bytes(size))
    with slowfs.mounted(tmp_path / "data", config) as shared:
        assert watch(tmp_path, kind, fault, shared.path).verdict == name


def profiled_requests(tmp_path, folder):
    """What a profile says of the requests of a training that opens a file per sample."""
    watched = watch(tmp_path, "plain", "opens", folder)
    assert watched.end() == 0, watched.report
    found = {each["storage"]: each for each in load(watched.record_path)["requests"]}
    assert {each["samples"] for each in found.values()} == {48 * 8}
    assert found[""]["counted"]["counts"]["opens"] == 48 * 8
    return found, watched


def test_the_report_counts_requests_where_the_storage_does_and_system_calls_everywhere(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    for number in range(100):
        (tmp_path / "data" / f"{number:04}.bin").write_bytes(bytes(2_000))
    _, watched = profiled_requests(tmp_path, tmp_path / "data")
    assert "\ncalls per 1,000 samples: 1,000 opens, " in watched.report
    assert "(system calls, not requests; counted by Python and Linux for the processes" in watched.report
    if reason := slowfs.why_not():
        pytest.skip(reason)
    with slowfs.mounted(tmp_path / "data", slowfs.SlowConfig(latency_s=0)) as slow:
        for path in slow.path.iterdir():  # requests before the first batch are not those of loading
            path.read_bytes()
        found, watched = profiled_requests(tmp_path, slow.path)
        assert 0.9 * 48 * 8 <= found[str(slow.path)]["counted"]["counts"]["opens"] <= 48 * 8
        assert f"\nrequests to {slow.path} per 1,000 samples: " in watched.report
        assert "(requests; counted by slowfs for all programs of this node)" in watched.report
        assert main(["profile", "--join", *[str(watched.record_path)] * 2]) == 0
        assert capsys.readouterr().out.count(f"\nrequests to {slow.path}") == 2  # a line for each node


HEALTHY = [f"healthy{what}" for what in ("", "_cpu", "_slow", "_one", "_many", "_model")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", HEALTHY)
@pytest.mark.slow
def test_a_healthy_training_raises_no_alarm(kind, fault, tmp_path):
    assert watch(tmp_path, kind, fault).verdict == "loading is not the limit"


def test_the_program_keeps_its_output_its_results_and_its_exit_code(tmp_path):
    """Its batches are collected ahead in the middle of an epoch: their order must not change."""
    text = (
        LOOPS.read_text().replace('print("total"', 'print("total", os.environ["PYTHONHASHSEED"]')
        + "    sys.exit(7)\n"
    )
    path = script(tmp_path, text)
    alone = subprocess.run(
        [sys.executable, path, "plain", "healthy_cpu"],
        env={**os.environ, "PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
    )
    watched = Watched(tmp_path, sys.executable, path, "plain", "healthy_cpu", PYTHONHASHSEED="5")
    assert watched.end() == alone.returncode == 7
    assert watched.out == alone.stdout != ""
    assert load(watched.record_path)["ranks"][0]["headroom_by"] == "measured"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_program_keeps_its_exit_code_and_leaves_only_the_record(number, tmp_path):
    """A signal to `profile` reaches the program, as if it stood alone."""
    text = LOOPS.read_text().replace("seconds = STEP_S", "print(os.getpid(), flush=True); seconds = STEP_S")
    path = script(tmp_path, text)
    watched = Watched(tmp_path, sys.executable, path, "plain", "healthy_slow")
    pid = int(watched.process.stdout.readline())
    time.sleep(2)
    os.kill(pid if number == signal.SIGKILL else watched.process.pid, number)
    code = watched.end()
    assert code == -number  # as it ends alone
    assert load(watched.record_path)["ranks"][0]["steps"] > 3


def test_a_program_without_a_loader_gets_a_sentence(tmp_path):
    text = "print(open(__import__('sys').argv[1]).read()); raise SystemExit(3)"
    watched = Watched(tmp_path, sys.executable, "-c", text, LOOPS)
    assert watched.end() == 3 and watched.out.startswith('"""Trainings')
    assert "asked no DataLoader for a batch" in watched.report and "exit code 3" in watched.report
    assert not watched.record_path.exists()


@pytest.mark.parametrize(
    "program, said",
    [
        (("sh", "-c", "exit 4"), "no Python of it"),
        ((sys.executable, "-I", "-c", "raise SystemExit(4)"), "without -I, -E or -S"),
        ((sys.executable, "-c", "import os; os.fork() and os.wait(); os._exit(4)"), "asked no DataLoader"),
    ],
)
def test_a_program_that_cannot_be_watched_gets_a_sentence(program, said, tmp_path):
    watched = Watched(tmp_path, *program)
    assert watched.end() == 4
    assert said in watched.report


def test_a_program_that_is_not_there_is_an_error_of_usage(tmp_path, capsys):
    assert main(["profile", "--", "no-such-program"]) == 2
    assert "cannot be started" in capsys.readouterr().err
    assert main(["profile"]) == 2
    assert main(["profile", "--pid", "999999999"]) == 2


def test_a_site_keeps_its_own_sitecustomize(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.of_the_site = 'yes'")
    text = "import sys, sitecustomize; print(sys.of_the_site, sitecustomize.__file__)"
    watched = Watched(tmp_path, sys.executable, "-c", text, PYTHONPATH=str(site))
    assert watched.end() == 0 and watched.out.split()[0] == "yes" and str(site) in watched.out
    assert "asked no DataLoader" in watched.report


STRANGE = """
import multiprocessing, os, signal, threading, time, sys
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # pools take signals
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler

class Own(Sampler):
    def __len__(self): return 320
    def __iter__(self): return (int(torch.randint(10**6, ())) for _ in range(320))

class Words:
    def __len__(self): return 320
    def __getitem__(self, index): return [str(part) for part in DataLoader(range(2))], str(index)

class Frame:  # as of pandas: its values are no function
    values = 3
    def __init__(self, parts): self.parts = parts

def takes_signals():
    for task in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
        try:
            blocked = open(f"/proc/self/task/{task}/status").read().partition("SigBlk:")[2].split()[0]
        except OSError:
            continue
        if not int(blocked, 16) & 1 << signal.SIGUSR1 - 1:
            return True

def main():
    torch.manual_seed(1)
    seen = 0
    loader = DataLoader(Words(), 8, sampler=Own(), num_workers=2, collate_fn=Frame)
    for batch in loader:
        seen = hash((seen, tuple(int(part[1]) for part in batch.parts), float(torch.rand(()))))
        os.environ.clear()
    for each in threading.enumerate():
        if each is not threading.current_thread():
            each.join()
    end = time.monotonic() + 20  # a thread that was joined may still be about to end
    while takes_signals() and time.monotonic() < end:
        time.sleep(0.01)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1
    open_before = len(os.listdir("/proc/self/fd"))
    list(DataLoader(range(99), 3))
    assert len(os.listdir("/proc/self/fd")) == open_before
    if (child := os.fork()) == 0:
        os._exit(len(list(DataLoader(range(4)))))
    print(seen, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

class Late:
    def __del__(self, open=open, name=__file__, print=print): print(len(open(name).read()) > 9)

late = Late()
if __name__ == "__main__":
    main()
"""
"""Its sampler draws what the training draws, the environment is emptied, a signal waits."""


def test_a_strange_program_stays_what_it_is(tmp_path):
    path = script(tmp_path, STRANGE)
    alone = subprocess.run([sys.executable, path], capture_output=True, text=True)
    watched = Watched(tmp_path, sys.executable, path)
    assert (watched.end(), watched.out) == (alone.returncode, alone.stdout), watched.report + alone.stderr
    assert alone.returncode == 0 and "Traceback" not in watched.report
    record = load(watched.record_path)
    assert [(rank["workers"], rank["steps"]) for rank in record["ranks"] if rank["workers"]] == [(2, 40)]
    assert not list(Path("/").glob("[0-9]*.json*")), "written to where an empty variable points"


FORKS = """
import os, sys
from torch.utils.data import DataLoader
files = []
def look():
    files.extend(frame.f_code.co_filename for frame in sys._current_frames().values())
os.register_at_fork(after_in_parent=look)
print([len(list(DataLoader(range(40), 8, num_workers=2))) for _ in range(2)])
if (child := os.fork()) == 0:
    os._exit(0)
print(os.wait()[1], len(files) > 4, any("hooks" in each for each in files))
"""


def test_the_program_forks_without_a_thread_of_ours(tmp_path):
    """Python 3.12 warns of a fork with several, and a lock of ours might be held in the child."""
    watched = Watched(tmp_path, sys.executable, script(tmp_path, FORKS))
    assert (watched.end(), watched.out) == (0, "[5, 5]\n0 True False\n"), watched.report


FEW_FILES = """
import resource, torch
from torch.utils.data import DataLoader
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
loader = DataLoader(range(400), 8, num_workers=2, collate_fn=lambda batch: [torch.ones(1) for _ in range(16)])
print(sum(len(batch) for batch in loader))
"""


VALIDATED = """
import time, torch
from torch.utils.data import DataLoader
for epoch in range(2):
    for batch in DataLoader(range(200), 4, num_workers=1):
        time.sleep(0.01)
    for batch in DataLoader(range(90), 1):
        time.sleep(0.001)
"""


def test_a_training_is_looked_at_without_its_validation(tmp_path):
    """That has another loader, here with more steps, other batches and no worker: it is limited otherwise."""
    watched = Watched(tmp_path, sys.executable, script(tmp_path, VALIDATED))
    assert watched.end() == 0, watched.report
    (rank,) = load(watched.record_path)["ranks"]
    told = {name: rank[name] for name in ("workers", "batch_samples", "batch_bytes", "steps", "epochs")}
    assert told == {"workers": 1, "batch_samples": 4, "batch_bytes": 32, "steps": 100, "epochs": 2}
    assert "180 steps of other loaders left out" in watched.report
    assert rank["epoch_steps"] == 50 and rank["period_s"] > 0.01 and rank["startup_s"] is not None


TOGETHER = """
import time, torch
from torch.utils.data import DataLoader
class Slow:
    def __len__(self): return 200
    def __getitem__(self, index): return time.sleep(0.01) or index
for pair in zip(DataLoader(Slow(), 4, num_workers=1), DataLoader(range(900), 2)):
    time.sleep(0.004)
"""


def test_of_two_loaders_that_are_asked_in_turn_that_which_is_waited_for_is_looked_at(tmp_path):
    """The other one, asked last, would take the computing too, and its training would seem to be well fed."""
    watched = Watched(tmp_path, sys.executable, script(tmp_path, TOGETHER))
    assert watched.end() == 0, watched.report
    record = load(watched.record_path)
    (rank,) = record["ranks"]
    assert (rank["workers"], rank["batch_samples"], rank["steps"]) == (1, 4, 50)
    assert rank["waiting"] > 0.3 and record["verdict"]["name"] != "loading is not the limit"


TIMEOUT = """
from torch.utils.data import DataLoader
print(sum(map(len, DataLoader(range(400), 8, num_workers=1, timeout=60))))
"""


@pytest.mark.parametrize(
    ("text", "out", "headroom"),
    [
        pytest.param(FEW_FILES, "800\n", "measured", id="few open files, of which each tensor holds one"),
        pytest.param(TIMEOUT, "400\n", "the loader has a timeout", id="a timeout"),
    ],
)
def test_collecting_ahead_takes_nothing_that_the_program_needs(tmp_path, text, out, headroom):
    watched = Watched(tmp_path, sys.executable, script(tmp_path, text))
    assert (watched.end(), watched.out) == (0, out), watched.report
    assert load(watched.record_path)["ranks"][0]["headroom_by"] == headroom


def test_folders_of_killed_runs_are_removed_and_those_of_others_are_left(tmp_path):
    (tmp_path / "tmp").mkdir()
    for name in ("killed", "of another"):
        (tmp_path / "tmp" / f"smallfiles-profile-{name}").mkdir()
    (tmp_path / "tmp" / "smallfiles-profile-killed" / "lock").touch()
    watched = Watched(tmp_path, "true", TMPDIR=str(tmp_path / "tmp"))
    watched.process.communicate()
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["smallfiles-profile-of another"]


def test_without_a_place_for_the_measurement_there_is_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert main(["profile", "--", "true"]) != 0
    assert "Traceback" not in (said := capsys.readouterr().err) and "missing" in said


def test_workers_are_seen_however_they_are_started_and_a_crash_is_reported(tmp_path):
    text = LOOPS.read_text().replace(
        '"num_workers": w', '"multiprocessing_context": "spawn", "num_workers": w'
    )
    path = script(tmp_path, text + "    raise OSError('theirs')\n")
    watched = Watched(tmp_path, sys.executable, path, "plain", "few_workers")
    assert watched.end() == 1 and "OSError: theirs" in watched.report
    rank = load(watched.record_path)["ranks"][0]
    assert rank["making"] > 0.3 and rank["made"] > 100


def test_records_of_nodes_are_joined_and_drawn(tmp_path, capsys):
    watched = watch(tmp_path, "plain", "no_workers")
    assert watched.end() == 0
    record = load(watched.record_path)
    slow, quick = record["ranks"][0], {**record["ranks"][0], "rank": "1", "waiting": 0.01}
    for name, rank in (("a", slow), ("b", quick)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**record, "ranks": [rank]}))
    assert main(["profile", "--json", "--join", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["name"] == "one rank waits for another"
    assert main(["figure", str(watched.record_path), str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_a_running_program_is_looked_at_from_outside(capsys):
    process = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"])
    try:
        assert main(["profile", "--json", "--pid", str(process.pid), "--seconds", "1"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["cpus_used"] > 0.05 and "waiting" in found["missing"]
    finally:
        process.kill()
        process.wait()


def test_the_sheet_of_symptoms_has_every_verdict():
    sheet = (ROOT / "docs/symptoms.md").read_text()
    missing = [each.name for each in TABLE if f"| {each.name} |" not in sheet]
    assert missing == [] and "| one rank waits for another |" in sheet


@pytest.mark.parametrize(
    ("step_s", "span"), [((0.0101, 0.0103), "1.0 s"), ((0.0101, 0.021), "1.0 s to 2.1 s")]
)
def test_a_forecast_of_an_epoch_is_a_range_only_where_its_ends_differ(step_s, span):
    said = report.forecast({"epoch_steps": 100}, step_s, 0.04)
    assert said == f"an epoch would take {span} instead of 4.0 s"
