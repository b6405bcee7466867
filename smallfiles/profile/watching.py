"""Run somebody's program with the hooks in it, hand signals and its end on, and leave only the record.

The traps: a signal to the whole process group (Ctrl-C in a terminal, `timeout`, Slurm) reaches the program
without us. If it were passed on, a handler that saves a checkpoint would be interrupted by the second one. A
signal to us alone must be passed on. Nothing in a signal says which of the two it is. So another process of
the group, the sentinel, repeats its signals to us: it gets those of the group, and none that is for us alone.
And a run that was killed cannot remove its folder, so the next one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Any, TypeAlias

from smallfiles import machine
from smallfiles.errors import FormatError, UsageError, writing
from smallfiles.machine.nodelocal import memory_headroom_bytes
from smallfiles.measure.counting import CALLS, Requests, counts_so_far, requests_since
from smallfiles.measure.scratch import private_folder
from smallfiles.measure.workers import processes_of, processor_s
from smallfiles.profile.hooks.moments import read_text
from smallfiles.profile.hooks.watch import FOLDER, SECONDS
from smallfiles.profile.numbers import Numbers, others_in, ranks_in
from smallfiles.profile.report import forecast
from smallfiles.profile.verdicts import consistent, judge, worst_of
from smallfiles.progress import bytes_text, plural

Counts: TypeAlias = dict[str, tuple[str, dict[str, int]]]
"""The counts that `counts_so_far` returns."""
_HOOKS = Path(__file__).with_name("hooks")
_OURS = "KILL STOP CHLD PIPE SEGV BUS FPE ILL ABRT TRAP SYS TTIN TTOU XFSZ"
_PASSED_ON = signal.valid_signals() - {getattr(signal, f"SIG{name}") for name in _OURS.split()}
_TERMINAL_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_GROUP_S = 0.05  # Slurm sends a signal to one process of a step after the other
_LOOK_S = 0.25
_PREFIX = "smallfiles-profile-"


@contextlib.contextmanager
def _private() -> Iterator[Path]:
    """Make a private folder for the records of the processes, with the hooks that they run."""
    place = Path(tempfile.gettempdir())
    with contextlib.ExitStack() as stack:
        with writing(place):
            folder = stack.enter_context(private_folder(place, _PREFIX)).resolve()
        with writing(folder):
            shutil.copytree(_HOOKS, folder / "smallfiles_hooks", ignore=shutil.ignore_patterns("__pycache__"))
            (folder / "sitecustomize.py").write_text("from smallfiles_hooks import install\n\ninstall()\n")
        yield folder


def watch(
    program: Sequence[str], environment: dict[str, str], report: Callable[[Path, int | None, Counts], None]
) -> int:
    """Run a program and report on its training, when it was watched for long enough or has ended.

    Args:
        program: Its words.
        environment: Tells the hooks what to measure: `SECONDS` for how long from the first batch on, or by
            which `KEY` samples are identified.
        report: Called once with the folder of what was measured, the exit code if it has ended, and what each
            storage had counted before a rank requested its first batch.

    Returns:
        Its exit code; the negative number of the signal that ended it.

    Raises:
        UsageError: It cannot be started.
    """
    with _private() as folder:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
        code, reported, counts, (sentinel, pipe) = None, False, Counts(), _sentinel()
        try:
            pid = _start(program, folder, environment, before)
            while code is None:
                if not reported:
                    with contextlib.suppress(OSError):  # the disk is full
                        (folder / "room").write_text(str(memory_headroom_bytes()))
                    if SECONDS in environment and not any(folder.glob("*.steps")):  # a rank begins with it
                        counts = counts_so_far()
                came = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, _LOOK_S)
                if came and came.si_signo in _PASSED_ON and not _reached_group(pipe, came.si_signo):
                    os.kill(pid, came.si_signo)
                ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
                if ended and os.WIFSTOPPED(status):
                    if os.WSTOPSIG(status) in _TERMINAL_STOPS:  # by Ctrl-Z: its shell waits for us to stop
                        os.kill(os.getpid(), signal.SIGSTOP)
                elif ended:
                    code = os.waitstatus_to_exitcode(status)
                if not reported and (code is not None or (folder / "stop").exists()):
                    reported = True
                    report(folder, code, counts)
        finally:
            os.close(pipe)
            with contextlib.suppress(OSError):  # if children of ours are not waited for
                os.kill(sentinel, signal.SIGKILL)
                os.waitpid(sentinel, 0)
            while signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, 0):
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return code


def _calls(ranks: Sequence[Numbers]) -> Requests:
    """Return the system calls that the processes of ranks made to read."""
    names = {"opens": "opens", "reads": "reads", "bytes": "asked_bytes"}
    counts = {kind: sum(n[name] for n in ranks) for kind, name in names.items()}
    return Requests("Python and Linux", False, CALLS, counts, "the processes that make batches")


def _sentinel() -> tuple[int, int]:
    """Start a process of our group that repeats the number of each signal in a pipe; return both.

    All signals that we pass on must be blocked before, and it ends with us.
    """
    parent, (reads, writes) = os.getpid(), os.pipe()
    if sentinel := os.fork():
        os.close(writes)
        return sentinel, reads
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.dup2(writes, 0)
        os.closerange(1, 1 << 20)  # it holds no file of ours
        while os.getppid() == parent:
            if came := signal.sigtimedwait(signal.valid_signals(), 1):
                os.write(0, bytes([came.si_signo]))
    finally:
        os._exit(0)


def _reached_group(pipe: int, number: int) -> bool:
    """Check whether a signal that reached us reaches the sentinel, too."""
    until = monotonic() + _GROUP_S
    while select([pipe], [], [], max(0.0, until - monotonic()))[0] and (came := os.read(pipe, 64)):
        if number in came:
            signal.sigtimedwait({number}, 0)  # `timeout` sends it to us alone first, then to the group
            return True
    return False


def _start(program: Sequence[str], folder: Path, more: dict[str, str], mask: Any) -> int:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, FOLDER: str(folder), **more}
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # of which ours, as a Python, ignores
    try:
        pid = os.posix_spawnp(program[0], list(program), environment, setsigmask=mask, setsigdef=defaults)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was ignored, nobody would be told its end
        return pid
    except OSError as error:
        raise UsageError(
            f"{program[0]} cannot be started ({error.strerror})",
            expected="a program behind --, such as: -- python train.py",
            next_step="Check its name and path",
        ) from error


def record_of(
    ranks: Sequence[Numbers], code: int | None = None, requests: Iterable[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Make the record of a training: numbers, requests per node, verdict, forecast, machine, and end."""
    ranks, found = [*map(consistent, ranks)], judge(ranks)
    return {
        "what": "smallfiles profile",
        "ranks": ranks,
        "requests": [*requests],
        "verdict": found,
        "forecast": forecast(worst_of(ranks), found["step_s"], found["now_s"]),
        **end_of(code),
    }


def end_of(code: int | None) -> dict[str, Any]:
    """Return how a program ended, for its record."""
    exit_code = code if code is None or code >= 0 else 128 - code
    return {"exit_code": exit_code, "ended": how_ended(code), "machine": machine.describe()}


def how_ended(code: int | None) -> str | None:
    """Return in words how a program ended, or None while it runs."""
    if code is None or code >= 0:
        return None if code is None else f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it was ended by signal {-code}"


def measured(folder: Path, code: int | None, counts: Counts) -> dict[str, Any] | str:
    """Return the record of the measurements, or a sentence that says why there is none."""
    requests = requests_since(counts)  # first, since the sizes of files are asked for below
    if ranks := ranks_in(folder):
        samples = sum(n["made"] or n["steps"] * (n["batch_samples"] or 0) for n in ranks)
        asked = [
            {"storage": point, "samples": samples, "counted": dataclasses.asdict(each)}
            for point, each in [*requests.items(), ("", _calls(ranks))]
        ]
        return record_of(ranks, code, asked if samples else ())
    return why_nothing(folder, code)


def why_nothing(folder: Path, code: int | None) -> str:
    """Say why no batch of a program was seen."""
    ended = "" if code is None else f"; {how_ended(code)}"
    if not folder.is_dir():
        return (
            f"the program removed the folder of the measurement, {folder}{ended}. "
            "Set TMPDIR to a folder that it does not clean up"
        )
    others = others_in(folder)
    if not others:
        return (
            f"no Python of it ran with our hooks, so nothing was measured{ended}. Start Python itself behind "
            "--, without -I, -E or -S; `smallfiles profile --pid` looks at one that runs"
        )
    faults = [each["unpatched"] for each in others if "unpatched" in each]
    if faults:
        fault = f"this version of the loader cannot be watched ({faults[0]}){ended}"
        return f"{fault}. Look at it with: smallfiles profile --pid"
    opens = sum(each["opens"] for each in others)
    return (
        f"it asked no DataLoader for a batch{ended}; its Python processes ({len(others)}) "
        f"opened {plural(opens, 'file')}. Expected a training with a DataLoader of "
        "PyTorch, WebLoader or an iterator of DALI"
    )


def found_in(path: Path, verb: str = "profile") -> dict[str, Any] | None:
    """Read the record of a verb from a file. Return None if the file contains something else."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return dict(record) if record["what"] == f"smallfiles {verb}" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load(path: Path, verb: str = "profile") -> dict[str, Any]:
    """Read a record.

    Raises:
        FormatError: It is none.
    """
    if (record := found_in(path, verb)) is not None:
        return record
    raise FormatError(
        f"{path} is not a record of a watched training",
        expected=f"what smallfiles {verb} --save wrote",
        next_step=f"Run: smallfiles {verb} --save p.json -- python train.py",
    )


def join(paths: Sequence[Path]) -> dict[str, Any]:
    """Join the records of several nodes into one record."""
    records = [load(path) for path in paths]
    requests = (each for record in records for each in record.get("requests", ()))  # older ones have none
    return record_of([rank for record in records for rank in record["ranks"]], None, requests)


def look_at(pid: int, seconds: float) -> dict[str, Any]:
    """Observe a running program from outside: its processes, processors, and reads.

    Args:
        pid: Number of the program's process, or of a rank.
        seconds: How long to observe it.

    Raises:
        UsageError: The process does not exist, or belongs to another user.
    """
    before, before_s = _used(pid), processor_s(pid)
    sleep(seconds if before else 0)
    after, cpus_used = _used(pid), (processor_s(pid) - before_s) / seconds
    if not before or not after:
        raise UsageError(
            f"process {pid} cannot be looked at for {seconds:g} s",
            expected="a running process of your own on this machine",
            next_step="Find its number with: pgrep -u $USER -f train.py",
        )
    cpus = len(os.sched_getaffinity(pid))
    crowded = cpus_used > 0.8 * cpus
    names = {"asked_bytes_s": "rchar", "device_bytes_s": "read_bytes", "reads_s": "syscr"}
    return {
        "processes": after["processes"],
        "cpus": cpus,
        "cpus_used": cpus_used,
        **{name: (after[count] - before[count]) / seconds for name, count in names.items()},
        "missing": ["waiting", "headroom", "names of files", "what workers do"],
        "next": (f"srun --cpus-per-task={2 * cpus}; " if crowded else "")
        + "smallfiles profile -- PROGRAM says more",
    }


def seen(found: dict[str, Any]) -> Iterator[str]:
    """Yield what `look_at` found, in words."""
    yield f"processes: {found['processes']}; they use {found['cpus_used']:.1f} of {found['cpus']} CPUs"
    yield (
        f"they read {bytes_text(found['asked_bytes_s'])}/s in {found['reads_s']:,.0f} calls per second, "
        f"{bytes_text(found['device_bytes_s'])}/s of it from devices of this machine"
    )
    yield f"missing for a verdict: {', '.join(found['missing'])}"
    yield f"next: {found['next']}"


def _used(pid: int) -> Counter[str]:
    """Return the number of a process and of all that it started, and what they have read so far."""
    found = Counter[str]()
    for each in processes_of(pid):
        if lines := read_text(f"/proc/{each}/io").splitlines():
            found.update({name: int(value) for name, value in (line.split(": ") for line in lines)})
            found["processes"] += 1
    return found
