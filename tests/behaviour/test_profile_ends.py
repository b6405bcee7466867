"""A program behind `profile` ends as it ends alone, and what was measured up to then is reported."""

import contextlib
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROFILE = (sys.executable, "-m", "smallfiles", "profile")


@pytest.fixture
def around():
    """An environment with a short TMPDIR: a worker's socket is below it, and its path ends at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sf ") as folder:
        yield {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder, "PYTHONFAULTHANDLER": ""}
        assert [name for name in os.listdir(folder) if name.startswith("smallfiles")] == []


def run(command, around):
    return subprocess.run([*map(str, command)], env=around, capture_output=True, text=True, timeout=150)


ENDS = {
    "an exit code": "raise SystemExit(7)",
    "an exception": "raise ValueError('theirs')",
    "os._exit": "import os; print('before', flush=True); os._exit(42)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "import faulthandler; faulthandler._sigsegv()",
    "SIGABRT": "import os; os.abort()",
    "SIGTERM before anything else": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); print('never')",
    "SIGQUIT": "import os, signal; os.kill(os.getpid(), signal.SIGQUIT)",
    "an exec of something else": "import os; os.execvp('sh', ['sh', '-c', 'echo other; exit 9'])",
    "all files closed": "import os; print('yes', flush=True); os.closerange(3, 4096); raise SystemExit(5)",
    "its own order at exit": "import atexit; [atexit.register(print, n) for n in (1, 2)]; exit(6)",
    "another folder, which is gone": "import os, tempfile; os.chdir(d := tempfile.mkdtemp()); "
    "os.rmdir(d); exit(3)",
    "SIGHUP to its children only": "import os, signal, time; p = os.fork() or time.sleep(60); "
    "os.kill(p, signal.SIGHUP); print(os.wait()[1]); raise SystemExit(8)",
    "a daemon that goes on": "import os, time\nif not os.fork():\n os.setsid()\n os.closerange(0, 4096)\n"
    " os.chdir('/')\n time.sleep(1)\n os._exit(0)\nraise SystemExit(4)",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_program_ends_as_it_does_alone(how, around):
    program = (sys.executable, "-c", ENDS[how])
    alone, watched = run(program, around), run([*PROFILE, "--", *program], around)
    assert (watched.returncode, watched.stdout) == (alone.returncode, alone.stdout), watched.stderr
    assert "no Python of it" not in watched.stderr
    ended = -alone.returncode
    assert (signal.Signals(ended).name if ended > 0 else f"exit code {-ended}") in watched.stderr


def test_a_program_that_removes_the_folder_of_the_measurement_gets_a_sentence(around):
    text = (
        "import os, shutil; [shutil.rmtree(each.path) for each in os.scandir(os.environ['TMPDIR'])]; exit(3)"
    )
    watched = run([*PROFILE, "--", sys.executable, "-c", text], around)
    assert watched.returncode == 3
    assert "removed the folder of the measurement" in watched.stderr and "TMPDIR" in watched.stderr


def test_an_ignored_end_of_a_child_is_no_reason_to_lose_it(around):
    """Whoever ignores SIGCHLD passes that on, and then the system tells nobody how a child ended."""
    code = f"import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({PROFILE[0]!r}, "
    code += f"{[*PROFILE, '--', sys.executable, '-c', 'import time; time.sleep(0.5); exit(7)']!r})"
    assert run([sys.executable, "-c", code], around).returncode == 7


SAVES = """
import os, signal, sys, time
calls = []
def save(number, frame):
    calls.append(number)
    with open(sys.argv[1], "w") as file:
        time.sleep(0.7)  # a second signal would interrupt it here
        file.write(f"saved {len(calls)}")
    sys.exit(42)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT, signal.SIGHUP, signal.SIGXCPU):
    signal.signal(each, save)
signal.signal(signal.SIGINT, lambda *words: save(*words) if not calls else os._exit(99))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("number", "to"),
    [
        *((number, "the group") for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)),
        *((number, "profile") for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT)),
        (signal.SIGTERM, "all processes, one after the other"),
    ],
)
def test_a_handler_that_saves_a_checkpoint_is_called_once(number, to, around, tmp_path):
    saved = tmp_path / "a checkpoint"
    program = [*PROFILE, "--", sys.executable, "-c", SAVES, str(saved)]
    process = subprocess.Popen(
        program, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    if to == "the group":
        os.killpg(process.pid, number)
    elif to == "profile":
        process.send_signal(number)
    else:
        for pid in members(process.pid):
            os.kill(pid, number)
    errors = process.communicate(timeout=60)[1]
    assert (process.returncode, saved.read_text()) == (42, "saved 1"), errors
    assert "exit code 42" in errors


def members(group):
    found = []
    for each in os.listdir("/proc"):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if each.isdigit() and os.getpgid(int(each)) == group:
                found.append(int(each))
    return found


def test_each_of_two_signals_arrives_once(around):
    """To the group, and then to us alone: the second is not taken for the first."""
    text = """
import signal, time
calls = []
signal.signal(signal.SIGUSR1, lambda *words: calls.append(1))
print("ready", flush=True)
for number in range(1, 5):
    until = time.monotonic() + 30
    while len(calls) < number and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.4)  # a second call would be counted now
    print(len(calls), flush=True)
"""
    process = subprocess.Popen(
        [*PROFILE, "--", sys.executable, "-c", text],
        env=around,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for number, send in enumerate((os.killpg, os.kill, os.killpg, os.kill), 1):
        send(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == f"{number}\n"
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_timeout_ends_it_as_it_ends_it_alone(around, tmp_path):
    """It sends its signal to its child, and then once more to the whole group."""
    saved = tmp_path / "saved"
    done = run(["timeout", "6", *PROFILE, "--", sys.executable, "-c", SAVES, saved], around)
    assert (done.returncode, saved.read_text()) == (124, "saved 1"), done.stderr


def in_a_terminal(command, around):
    """Start a program as a shell does: in a session of its own, in the foreground of a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], list(command), around)
    return pid, terminal


def read_until(terminal, text, limit_s=60):
    seen, until = b"", time.monotonic() + limit_s
    while text not in seen and time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 4096)
            except OSError:  # its last user has closed it
                break
    assert text in seen, seen
    return seen


def test_ctrl_c_in_a_terminal_arrives_once(around, tmp_path):
    saved = tmp_path / "saved"
    pid, terminal = in_a_terminal([*PROFILE, "--", sys.executable, "-c", SAVES, str(saved)], around)
    try:
        read_until(terminal, b"ready")
        os.write(terminal, b"\x03")
        read_until(terminal, b"exit code 42")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
        assert saved.read_text() == "saved 1"
    finally:
        os.close(terminal)


def test_a_program_in_a_terminal_reads_it_and_is_stopped_and_continued(around):
    text = "print('ready', flush=True); print('read', input(), flush=True); print(input()[::-1]); exit(3)"
    pid, terminal = in_a_terminal([*PROFILE, "--", sys.executable, "-c", text], around)
    try:
        read_until(terminal, b"ready")
        os.write(terminal, b"abc\n")
        read_until(terminal, b"read abc")
        os.write(terminal, b"\x1a")  # Ctrl-Z; in an orphaned group the system ignores it
        os.kill(pid, signal.SIGTSTP)
        time.sleep(0.5)
        os.killpg(pid, signal.SIGCONT)
        os.write(terminal, b"olleh\n")
        read_until(terminal, b"hello")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    finally:
        os.close(terminal)


def test_a_shell_sees_that_its_job_was_stopped(around):
    """Ctrl-Z stops the program, and so must what the shell waits for; `fg` continues both."""
    text = "import time; print('rea' + 'dy', flush=True); time.sleep(1.5); print('en' + 'ded', flush=True)"
    shell = ["/bin/bash", "--norc", "--noprofile", "-i"]
    pid, terminal = in_a_terminal(shell, {**around, "PS1": "$ "})
    try:
        command = shlex.join([*PROFILE, "--", sys.executable, "-c", text])
        os.write(terminal, command.encode() + b"\n")
        read_until(terminal, b"ready")
        os.write(terminal, b"\x1a")
        read_until(terminal, b"Stopped")
        os.write(terminal, b"fg\n")
        read_until(terminal, b"ended")
        read_until(terminal, b"exit code 0")
        os.write(terminal, b"exit $?\n")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


TRAINS = """
import faulthandler, os, signal, sys, time
from torch.utils.data import DataLoader
for batch in DataLoader(range(160), 4, num_workers=int(sys.argv[2])):
    time.sleep(0.01)
END
"""
TRAINED = {
    "os._exit": ("os._exit(3)", 3, "exit code 3"),
    "SIGSEGV": ("faulthandler._sigsegv()", -signal.SIGSEGV, "SIGSEGV"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "SIGKILL"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "SIGTERM"),
    "another program": ("os.execvp('sh', ['sh', '-c', 'exit 5'])", 5, "exit code 5"),
    "itself": (
        "if sys.argv[2] == '1': os.execv(sys.executable, [sys.executable, '-c', 'exit(6)', '', '0'])",
        6,
        "exit code 6",
    ),
}
ENDS_ALIKE = ("SIGSEGV", "SIGTERM")  # as SIGKILL does, for what was measured


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.slow] * (how in ENDS_ALIKE)) for how in TRAINED]
)
def test_what_was_measured_is_there_however_the_training_ends(how, around, tmp_path):
    pytest.importorskip("torch")
    ends, code, said = TRAINED[how]
    script, record = tmp_path / "a training.py", tmp_path / "record.json"
    script.write_text(TRAINS.replace("END", ends))
    watched = run([*PROFILE, "--save", record, "--", sys.executable, script, "data", 1], around)
    assert watched.returncode == code, watched.stderr
    found = json.loads(record.read_text())
    assert [rank["steps"] for rank in found["ranks"]] == [40], watched.stderr
    assert found["ranks"][0]["batch_samples"] == 4 and found["ranks"][0]["waiting"] is not None
    assert said in watched.stderr and "no Python of it" not in watched.stderr


RAISES = """
import signal, sys
from torch.utils.data import DataLoader
class PreemptedError(Exception):
    pass
calls, caught = [], []
def preempt(number, frame):
    calls.append(1)
    raise PreemptedError
signal.signal(signal.SIGALRM, preempt)
loader = DataLoader(range(1000), 4)
while len(calls) < 60:
    signal.setitimer(signal.ITIMER_REAL, 0.001 + len(calls) / 10_000)
    try:
        for batch in loader:
            open(sys.argv[0]).close()
    except PreemptedError:
        caught.append(1)
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(caught) == len(calls))
"""


def test_what_a_signal_handler_raises_reaches_the_program(around, tmp_path):
    """The main thread may be in our code at that moment; elastic training ends by such an exception."""
    pytest.importorskip("torch")
    script = tmp_path / "raises.py"
    script.write_text(RAISES)
    watched = run([*PROFILE, "--", sys.executable, script], around)
    assert (watched.returncode, watched.stdout) == (0, "True\n"), watched.stderr


FEW = """
import sys, time
from torch.utils.data import DataLoader
def slow(samples):
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        sum(range(100))
    return samples
for batch in DataLoader(range(4 * int(sys.argv[1])), 4, num_workers=int(sys.argv[2]), collate_fn=slow):
    time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("steps", "workers"), [(8, 2), (9, 0), *(pytest.param(1, n, marks=pytest.mark.slow) for n in (0, 2))]
)
def test_too_few_steps_are_not_judged(steps, workers, around, tmp_path):
    pytest.importorskip("torch")
    script, record = tmp_path / "few.py", tmp_path / "record.json"
    script.write_text(FEW)
    watched = run([*PROFILE, "--save", record, "--", sys.executable, script, steps, workers], around)
    assert watched.returncode == 0, watched.stderr
    verdict = re.search(r"verdict: (.*)", watched.stderr)
    assert verdict is not None and verdict[1] == f"too few steps to judge: {steps}, need 10"
    assert json.loads(record.read_text())["ranks"][0]["waiting"] is None


def test_ten_steps_are_judged(around, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "few.py"
    script.write_text(FEW)
    watched = run([*PROFILE, "--", sys.executable, script, 10, 0], around)
    assert "verdict: too few workers" in watched.stderr, watched.stderr


UNEVEN = """
import sys, time
from torch.utils.data import DataLoader
for number, batch in enumerate(DataLoader(range(400), 4, num_workers=2)):
    time.sleep(1.5 if number in (6, 70) else 0.02)  # a checkpoint now and then
"""


def test_headroom_and_verdict_do_not_contradict_each_other(around, tmp_path):
    """Long pauses of the training itself are not what loading costs."""
    pytest.importorskip("torch")
    script, record = tmp_path / "uneven.py", tmp_path / "record.json"
    script.write_text(UNEVEN)
    watched = run([*PROFILE, "--save", record, "--", sys.executable, script], around)
    found = json.loads(record.read_text())
    assert found["verdict"]["name"] == "loading is not the limit", watched.stderr
    assert found["ranks"][0]["headroom"] < 1.25, watched.stderr


@pytest.mark.parametrize("flags", [(), ("--seconds", "9"), ("--sec=9",), ("--seconds", "9", "--")])
def test_a_program_needs_no_dashes_before_it(flags, around):
    """Its words are its own, also those that look like ours."""
    text = "import sys; print(sys.argv[1:]); exit(4)"
    watched = run([*PROFILE, *flags, sys.executable, "-c", text, "--seconds", "7", "--", "x"], around)
    assert (watched.returncode, watched.stdout) == (4, "['--seconds', '7', '--', 'x']\n"), watched.stderr
