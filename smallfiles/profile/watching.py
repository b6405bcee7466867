"""Run somebody's program with the hooks in it, hand signals and its exit code on, and leave only the record.

The traps: Ctrl-C in a terminal reaches the program without us, a signal of a scheduler may not; and a run
that was killed cannot remove its folder, so the next one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import sleep
from typing import Any

from smallfiles import liveness, machine
from smallfiles.errors import FormatError, UsageError, writing
from smallfiles.machine.nodelocal import memory_headroom_bytes
from smallfiles.measure.scratch import private_folder
from smallfiles.profile.hooks.moments import read_text
from smallfiles.profile.hooks.watch import FOLDER, SECONDS
from smallfiles.profile.numbers import Numbers, others_in, ranks_in
from smallfiles.profile.report import forecast
from smallfiles.profile.verdicts import judge
from smallfiles.progress import bytes_text, plural

_HOOKS = Path(__file__).with_name("hooks")
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_PASSED_ON = {*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
_BY_KERNEL = 0x80
_LOOK_S = 0.25
_PREFIX = "smallfiles-profile-"


@contextlib.contextmanager
def _private() -> Iterator[Path]:
    """A folder for what the processes write, with the hooks that they run."""
    place = Path(tempfile.gettempdir())
    with contextlib.ExitStack() as stack:
        with writing(place):
            folder = stack.enter_context(private_folder(place, _PREFIX)).resolve()
        with writing(folder):
            shutil.copytree(_HOOKS, folder / "smallfiles_hooks", ignore=shutil.ignore_patterns("__pycache__"))
            (folder / "sitecustomize.py").write_text("from smallfiles_hooks import install\n\ninstall()\n")
        yield folder


def watch(program: Sequence[str], seconds: float, report: Callable[[Path, int | None], None]) -> int:
    """Run a program and report on its training, when it was watched for long enough or has ended.

    Args:
        program: Its words.
        seconds: How long it is watched from its first batch on; it goes on afterwards.
        report: Called once with the folder of what was measured, and the exit code if it has ended.

    Returns:
        Its exit code; 128 and the number of the signal that ended it.

    Raises:
        UsageError: It cannot be started.
    """
    with _private() as folder:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
        code, reported = None, False
        try:
            pid = _start(program, folder, seconds, before)
            while code is None:
                if not reported:
                    with contextlib.suppress(OSError):  # the disk is full
                        (folder / "room").write_text(str(memory_headroom_bytes()))
                came = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, _LOOK_S)
                if came and came.si_signo in _PASSED_ON and came.si_code != _BY_KERNEL:
                    os.kill(pid, came.si_signo)
                ended, status = os.waitpid(pid, os.WNOHANG)
                code = _code(status) if ended else None
                if not reported and (code is not None or (folder / "stop").exists()):
                    reported = True
                    report(folder, code)
        finally:
            while signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, 0):
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return code


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _start(program: Sequence[str], folder: Path, seconds: float, mask: Any) -> int:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, FOLDER: str(folder), SECONDS: str(seconds)}
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # of which ours, as a Python, ignores
    try:
        return os.posix_spawnp(program[0], list(program), environment, setsigmask=mask, setsigdef=defaults)
    except OSError as error:
        raise UsageError(
            f"{program[0]} cannot be started ({error.strerror})",
            expected="a program behind --, such as: smallfiles profile -- python train.py",
            next_step="Check its name and path",
        ) from error


def record_of(ranks: Sequence[Numbers], code: int | None = None) -> dict[str, Any]:
    """The record of a training: numbers, verdict, forecast, machine."""
    found = judge(ranks)
    worst = max(ranks, key=lambda each: each["waiting"] or 0.0)
    return {
        "what": "smallfiles profile",
        "ranks": list(ranks),
        "verdict": dataclasses.asdict(found),
        "forecast": forecast(worst, found.step_s, found.now_s),
        "exit_code": code,
        "machine": machine.describe(),
    }


def measured(folder: Path, code: int | None) -> dict[str, Any] | str:
    """The record of what was measured; a sentence if there is none."""
    if ranks := ranks_in(folder):
        return record_of(ranks, code)
    ended = "" if code is None else f"; it ended with exit code {code}"
    others = others_in(folder)
    if not others:
        return (
            f"no Python of it ran with our hooks, so nothing was measured{ended}. Start Python itself behind "
            "--, without -I, -E or -S; look at one that runs with --pid"
        )
    faults = [each["unpatched"] for each in others if "unpatched" in each]
    if faults:
        return f"this version of the loader cannot be watched ({faults[0]}){ended}. Look at it with --pid"
    opens = sum(each["opens"] for each in others)
    return (
        f"it asked no DataLoader for a batch{ended}; its Python processes ({len(others)}) "
        f"opened {plural(opens, 'file')}. Expected a training with a DataLoader of "
        "PyTorch, WebLoader or an iterator of DALI"
    )


def found_in(path: Path) -> dict[str, Any] | None:
    """The record in a file; None if the file holds something else."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return dict(record) if record["what"] == "smallfiles profile" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        FormatError: It is none.
    """
    if (record := found_in(path)) is not None:
        return record
    raise FormatError(
        f"{path} is no record of a watched training",
        expected="what smallfiles profile --save wrote",
        next_step="Run: smallfiles profile --save p.json -- python train.py",
    )


def join(paths: Sequence[Path]) -> dict[str, Any]:
    """One record of those of several nodes."""
    return record_of([rank for path in paths for rank in load(path)["ranks"]])


def look_at(pid: int, seconds: float) -> dict[str, Any]:
    """What can be seen of a running program from outside: its processes, processors and reads.

    Args:
        pid: Its number, or that of a rank.
        seconds: How long it is looked at.

    Raises:
        UsageError: There is no such process, or it is another user's.
    """
    before = _family(pid)
    sleep(seconds if pid in before else 0)
    after = _family(pid)
    if pid not in before or pid not in after:
        raise UsageError(
            f"process {pid} cannot be looked at for {seconds:g} s",
            expected="a running process of your own on this machine",
            next_step="Find its number with: pgrep -u $USER -f train.py",
        )
    both = [(before[each], after[each]) for each in before.keys() & after.keys()]
    rates = {name: sum(b[name] - a[name] for a, b in both) / seconds for name in before[pid]}
    cpus = len(os.sched_getaffinity(pid))
    crowded = rates["cpu"] > 0.8 * cpus
    return {
        "processes": len(both),
        "cpus": cpus,
        "cpus_used": rates["cpu"],
        "asked_bytes_s": rates["rchar"],
        "device_bytes_s": rates["read_bytes"],
        "reads_s": rates["syscr"],
        "missing": ["waiting", "headroom", "names of files", "what workers do"],
        "next": (f"srun --cpus-per-task={2 * cpus}; " if crowded else "")
        + "smallfiles profile -- PROGRAM says more",
    }


def seen(found: dict[str, Any]) -> Iterator[str]:
    """What `look_at` found, in words."""
    yield f"processes: {found['processes']}; they use {found['cpus_used']:.1f} of {found['cpus']} CPUs"
    yield (
        f"they read {bytes_text(found['asked_bytes_s'])}/s in {found['reads_s']:,.0f} calls per second, "
        f"{bytes_text(found['device_bytes_s'])}/s of it from devices of this machine"
    )
    yield f"missing for a verdict: {', '.join(found['missing'])}"
    yield f"next: {found['next']}"


def _family(pid: int) -> dict[int, dict[str, float]]:
    """Processor seconds and reads of a process and all below it, where they may be read."""
    stats = {
        each: read_text(f"/proc/{each}/stat").rpartition(")")[2].split() for each in liveness.processes()
    }
    found = more = {pid} & stats.keys()
    while more:
        more = {each for each, stat in stats.items() if stat and int(stat[1]) in more}
        found = found | more
    rows = {}
    for each in found:
        lines = read_text(f"/proc/{each}/io").splitlines()
        if lines and stats[each]:
            cpu = sum(map(int, stats[each][11:13])) / os.sysconf("SC_CLK_TCK")
            rows[each] = {"cpu": cpu} | {k: float(v) for k, v in (line.split(": ") for line in lines)}
    return rows
