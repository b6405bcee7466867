"""Processes: clean up before a signal ends this one, and find out whether an owner still runs.

SIGTERM, which a scheduler sends at the time limit, ends Python at once: no `finally`, no `atexit`. A staged
copy and a ring of batches would stay behind in the memory of the node.

The owner of such a copy is a process, a session of processes, or a job. A process is identified by its
number, its start time and the boot of the machine, since numbers are reused. A command of a job script ends
before its job does, so its copy belongs to the job: the owner runs as long as any process has the job's
number in its environment. Without a scheduler (a script under nohup) the owner is the session of the shell.

The traps: if two modules each set a handler, the second finds that of the first and does not clean up. So
there is one, which is set only where the program handles the signal in no other way. Importing PyTorch takes
seconds, on a busy file system minutes, in which a signal kills a training without a handler: so this module
imports only the standard library. And between two steps a job may have no process on a node, so the scheduler
is asked. Notebooks 07 and 10 teach it.

Format: proc(5), /proc/pid/stat fields 6 (session) and 22 (start time).
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
STOPPERS = (signal.SIGUSR1, signal.SIGTERM)
"""Signals that stop a training between two steps: Slurm sends them before a time limit."""

_cleanups: list[Callable[[], object]] = []


def add_cleanup(cleanup: Callable[[], object]) -> None:
    """Have `cleanup` called before a signal ends this process; adding it twice changes nothing.

    Args:
        cleanup: Must not wait for long. A forked child inherits it: it must know whose it is.
    """
    if cleanup not in _cleanups:
        _cleanups.append(cleanup)
    if threading.current_thread() is not threading.main_thread():
        return  # Python sets handlers in the main thread only
    for number in SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def remove_cleanup(cleanup: Callable[[], object]) -> None:
    """Remove a clean-up; after the last one the handlers of before are restored."""
    with suppress(ValueError):
        _cleanups.remove(cleanup)
    if _cleanups or threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    for cleanup in tuple(_cleanups):
        with suppress(Exception):  # a failure must not prevent the others
            cleanup()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def end_by(number: int) -> None:
    """End this process by a signal, as a program ended that it stands for, without a dump of its memory."""
    if number in (signal.SIGKILL, signal.SIGSTOP):
        os.kill(os.getpid(), number)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


@contextmanager
def listening(
    numbers: Iterable[signal.Signals] = STOPPERS, then: Callable[[], object] = lambda: None
) -> Iterator[list[int]]:
    """Collect the signals that arrive during the block; afterwards the former handlers are restored.

    Args:
        numbers: Those that are listened for.
        then: Called whenever one came.
    """
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def hear(number: int, frame: FrameType | None) -> None:
        came.append(number)
        then()

    for number in numbers:
        with suppress(ValueError):  # not in the main thread: a notebook's
            before[number] = signal.signal(number, hear)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def before_interrupts() -> Iterator[None]:
    """Finish the block, which tidies up, before Control-C is heard; blocked, it would reach other threads."""
    with listening((signal.SIGINT,)) as came:
        yield
    if came:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def held_back() -> Iterator[None]:
    """Block the signals that end a program until the end of the block, unless it waits for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID")
GRACE_S = 900.0
"""Without an answer from a scheduler, a job without processes on this node has ended after this time."""

_PROC = Path("/proc")
_ASK_S = 10.0


@dataclass(frozen=True)
class Owner:
    """A process, a session of processes, or a job.

    Args:
        kind: `process`, `session` or `job`.
        name: Its number, or the job's variable and number.
        started: Start time of the process (of the session's leader) in ticks since boot.
        boot: The boot of the machine.
        world: The PID namespace, since numbers have no meaning in another one.
        since_s: When this was written, in seconds since the epoch.
        host: Name of the machine, for messages.
    """

    kind: str
    name: str
    started: int
    boot: str
    world: str
    since_s: float
    host: str = ""

    @property
    def text(self) -> str:
        """The owner in words, such as `job 1234`."""
        return f"{self.kind} {self.name.rpartition('=')[2]}"

    def is_gone(self) -> bool | None:
        """Check whether this process has ended. Return None if that cannot be known from here.

        Nothing is known about a process on another machine or in another PID namespace, and little about a
        process that `/proc` hides.
        Clones of a virtual machine share the boot, so a missing process proves nothing on a machine with
        another name.
        """
        if not self.boot or self.boot != boot() or self.world != world():
            return None
        number = int(self.name)
        started = start_time(number)
        if started and started == self.started:
            return False
        is_hidden = not started and not _stat_fields(number) and _exists(number)
        return None if is_hidden or self.host != socket.gethostname() else True

    def is_alive(self) -> bool:
        """Check whether the owner may still need its copy. Return True in doubt."""
        if self.boot != boot():
            return False
        if self.kind == "job":
            return _job_is_alive(self)
        if self.world != world():
            return True
        number = int(self.name)
        if self.kind == "process":
            return start_time(number) == self.started
        return _session_is_alive(number, self.started)


def this_process() -> Owner:
    """Return the owner record of this process."""
    return _owner("process", str(os.getpid()), start_time(os.getpid()))


def this_job() -> Owner:
    """Return the job of this process, or else the session of its terminal or script."""
    for variable in JOB_VARIABLES:
        if os.environ.get(variable):
            return _owner("job", f"{variable}={os.environ[variable]}", 0)
    leader = os.getsid(0)
    if leader in (0, os.getpid()):  # the leader is in another namespace, or is this process
        return _owner("process", str(os.getppid()), start_time(os.getppid()))
    return _owner("session", str(leader), start_time(leader))


def names_of_this_job() -> list[Owner]:
    """Return the owners that leases of this job may name.

    bash does not fork for the last command of `bash -c`. So the shell that ran `stage` may have become this
    process, with the same number and start time.
    """
    me = os.getpid()
    return [this_job(), *(_owner(kind, str(me), start_time(me)) for kind in ("process", "session"))]


def _owner(kind: str, name: str, started: int) -> Owner:
    return Owner(kind, name, started, boot(), world(), time.time(), socket.gethostname())


def start_time(pid: int) -> int:
    """Return the start time of a process in ticks since boot, or 0 if it does not run or is a zombie."""
    if not _PROC.is_dir():
        return int(_exists(pid))
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def end(process: subprocess.Popen[bytes], within_s: float = 5.0) -> None:
    """Terminate a child process; kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def own_environment() -> dict[str, str]:
    """Return the environment for a Python process that imports the same package as this process."""
    paths = filter(None, (str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. The name before it may contain anything."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _session_is_alive(leader: int, started: int) -> bool:
    """Check whether any process of a session still runs. Its number is not reused while one does."""
    now = start_time(leader)
    if now and now != started:
        return False
    members = (_stat_fields(pid) for pid in processes())
    return any(len(fields) > 3 and fields[3] == str(leader) and fields[0] not in "ZX" for fields in members)


def _job_is_alive(owner: Owner) -> bool:
    variable, _, number = owner.name.partition("=")
    if os.environ.get(variable) == number:
        return True
    if any(_belongs(pid, variable, number) for pid in processes()):
        return True
    answer = _ask_scheduler(variable, number)
    return time.time() - owner.since_s < GRACE_S if answer is None else answer


def _belongs(pid: int, variable: str, number: str) -> bool:
    with suppress(OSError):
        environment = (_PROC / str(pid) / "environ").read_bytes()
        return f"{variable}={number}".encode() in environment.split(b"\0")
    return False


def _ask_scheduler(variable: str, number: str) -> bool | None:
    """Ask SLURM whether it still has the job. Return None without SLURM or without an answer."""
    squeue = shutil.which("squeue")
    if variable != "SLURM_JOB_ID" or squeue is None or not number.isdigit():
        return None
    command = [squeue, "--noheader", "--jobs", number, "--format", "%T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return False if "invalid job id" in done.stderr.lower() else None
    return bool(done.stdout.split())


def processes() -> list[int]:
    """Return the numbers of all processes."""
    with suppress(OSError):
        return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]
    return []


def boot() -> str:
    """Return the identifier of the boot of this machine, or "" if it is unknown."""
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def world() -> str:
    """Return the PID namespace of this process, or "" if it is unknown."""
    with suppress(OSError):
        return str((_PROC / "self/ns/pid").readlink())
    return ""
