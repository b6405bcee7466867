"""Run a job script with real bash and played Slurm, and see what it did.

All names and paths hold a space. The trap: a script that is ended leaves its background processes; so all
that was started is in process groups that are known, and ended. Exercise 10.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from helpers.experiments.nb10 import environments

Mode = Literal["finish", "stop", "fail"]
LIMIT_S = 15.0
JOB = "4711"
EXTRA = ("--epochs", "7")
PLAYER = Path(__file__).with_name("player.py")
_ROOT = Path(__file__).resolve().parents[3]
_PLAYED = ("srun", "scontrol", "sbatch", "torchrun", "python", "smallfiles")
_POLL_S = 0.01
_READY_LIMIT_S = 5.0
_EVEN_S = 0.3


@dataclass(frozen=True)
class Play:
    """What a script did.

    Args:
        code: Its exit code; None if it had to be ended.
        calls: Records of the played programs, in order.
        log: What it printed.
        data: The first argument that it was given.
        checkpoints: The second one.
    """

    code: int | None
    calls: tuple[dict[str, Any], ...]
    log: str
    data: str
    checkpoints: str

    def of(self, what: str) -> list[dict[str, Any]]:
        """The calls of one program."""
        return [call for call in self.calls if call["what"] == what]

    @property
    def requeued(self) -> bool:
        """Whether it asked to be queued again."""
        return any(call["argv"] == ["requeue", JOB] for call in self.of("scontrol"))


def play(
    script: Path,
    place: Path,
    mode: Mode,
    *,
    nodes: int = 2,
    per_node: int = 2,
    cpus: int = 2,
    to_script: bool = False,
) -> Play:
    """Run a script.

    Args:
        script: With real bash.
        place: An empty folder.
        mode: Whether training ends well, is stopped by a signal, or fails.
        nodes: Of the job.
        per_node: Tasks a node.
        cpus: CPUs a task.
        to_script: The signal goes to the script alone, instead of to the tasks.
    """
    folder = place / "a job"
    for name in ("calls", "tasks", "work", "venv/bin", "course/slurm/sites"):
        (folder / name).mkdir(parents=True)
    (folder / "mode").write_text(mode)
    data, checkpoints = str(folder / "work" / "train set.arrow"), str(folder / "work" / "my run")
    Path(data).touch()
    environment = {
        **environments.script(nodes, per_node, cpus),
        **_programs(folder),
        "SMALLFILES_PLAY": str(folder),
        "SLURM_JOB_NAME": script.stem,
        "SLURM_RESTART_COUNT": "0",
        "HOME": str(folder / "work"),
        "LANG": "C.UTF-8",
    }
    with (folder / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", str(script), data, checkpoints, *EXTRA],
            cwd=folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if mode == "stop":
                _time_limit(shell, folder, nodes * per_node, to_script)
            code: int | None = shell.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_all(shell, folder)
    records = [json.loads(path.read_text()) for path in (folder / "calls").glob("*.json")]
    calls = tuple(sorted(records, key=lambda record: float(record["at"])))
    text = (folder / "log").read_text(encoding="utf-8", errors="replace")
    return Play(code, calls, text, data, checkpoints)


def _programs(folder: Path) -> dict[str, str]:
    """The played programs, first in the path, and a checkout that has this site only."""
    bin_folder = folder / "venv" / "bin"
    for name in _PLAYED:
        line = shlex.join([sys.executable, "-IS", str(PLAYER), name])
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (bin_folder / name).chmod(0o755)
    (bin_folder / "python3").symlink_to("python")
    course = folder / "course"
    shutil.copyfile(_ROOT / "slurm" / "lib.sh", course / "slurm" / "lib.sh")
    (course / "slurm" / "sites" / "played.env").touch()
    return {
        "PATH": f"{bin_folder}:{os.defpath}:/usr/bin:/bin",
        "SMALLFILES_PYTHON": sys.executable,
        "COURSE_ROOT": str(course),
        "COURSE_SITE": "played",
        "COURSE_VENV": str(folder / "venv"),
        "COURSE_WORK": str(folder / "work"),
    }


def _time_limit(shell: subprocess.Popen[bytes], folder: Path, ranks: int, to_script: bool) -> None:
    """Send the signal that Slurm sends, once the ranks train."""
    until(lambda: len(list((folder / "calls").glob("*.json"))) > ranks or shell.poll() is not None)
    time.sleep(_EVEN_S if to_script else 0)  # the shell may not wait yet
    with contextlib.suppress(ProcessLookupError):
        if to_script:
            os.kill(shell.pid, signal.SIGUSR1)
            return
    for path in (folder / "tasks").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(path.name), signal.SIGUSR1)


def until(holds: Callable[[], bool], limit_s: float = _READY_LIMIT_S) -> None:
    """Wait for something, but not for ever.

    Args:
        holds: Asked again and again.
        limit_s: Seconds.
    """
    end = time.monotonic() + limit_s
    while not holds() and time.monotonic() < end:
        time.sleep(_POLL_S)


def _end_all(shell: subprocess.Popen[bytes], folder: Path) -> None:
    for number in [shell.pid, *(int(path.name) for path in (folder / "tasks").iterdir())]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(number, signal.SIGKILL)
    shell.wait()
