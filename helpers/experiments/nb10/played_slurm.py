"""Stands for the commands of a job script while it is tried: `python played_slurm.py NAME ARGS…`.

It plays Slurm 22.05: a task gets the CPUs of `srun` itself, and SIGUSR1 is handed on to the tasks.
Each call leaves a record. The trap: it runs dozens of times in a check, so it imports the standard library
only and is started without site packages. Exercise 10.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PLACE = Path(os.environ["SMALLFILES_PLAY"])
STOPPED, FAILED, KILLED = 75, 3, 143
LIMIT_S = 6.0
_SHORT = {"-n": "--ntasks", "-N": "--nodes", "-c": "--cpus-per-task"}
_WITH_VALUE = ("--ntasks", "--nodes", "--cpus-per-task", "--ntasks-per-node", "-w", "-o", "-e", "-J", "-p",
               "-A", "-t", "--mem", "--nodelist", "--output", "--error", "--job-name", "--time")  # fmt: skip
_SEEN = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "MASTER_ADDR")


def record(what: str, argv: list[str], **more: object) -> None:
    """Leave a note of this call."""
    env = {name: os.environ[name] for name in _SEEN if name in os.environ}
    record = {"what": what, "argv": argv, "at": time.monotonic(), "env": env, **more}
    part = PLACE / "calls" / f".{os.getpid()}"
    part.write_text(json.dumps(record))
    part.rename(PLACE / "calls" / f"{os.getpid()}-{time.monotonic_ns()}.json")


def options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The options of srun, and the command after them."""
    found: dict[str, str] = {}
    words = list(words)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        name = _SHORT.get(name, name)
        if not equals and name in _WITH_VALUE and words:
            value = words.pop(0)
        found[name] = value
    return found, words


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default


def srun(words: list[str]) -> int:
    """Start the tasks of a step, wait for all, give the largest exit code."""
    given, command = options(words)
    nodes = _number(given.get("--nodes"), int(os.environ["SLURM_NNODES"]))
    per_node = _number(given.get("--ntasks-per-node"), 0)
    tasks = _number(given.get("--ntasks"), nodes * per_node or int(os.environ["SLURM_NTASKS"]))
    cpus = given.get("--cpus-per-task") or os.environ.get("SRUN_CPUS_PER_TASK")
    record("srun", command, cpus=cpus, tasks=tasks, nodes=nodes)
    each = -(-tasks // nodes)
    running = []
    for rank in range(tasks):
        node, local = divmod(rank, each)
        env = {
            **os.environ,
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": str(tasks),
            "SLURM_STEP_NUM_TASKS": str(tasks),
        }
        try:
            running.append(subprocess.Popen(command, env=env, start_new_session=True))
        except OSError as error:
            sys.stderr.write(f"srun: {error}\n")
            return 2
        (PLACE / "tasks" / str(running[-1].pid)).touch()

    def hand_on(number: int, frame: FrameType | None) -> None:
        for one in running:
            if one.poll() is None:
                os.killpg(one.pid, number)

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, hand_on)
    codes = [one.wait() for one in running]
    return max(code if code >= 0 else 128 - code for code in codes)


def python(words: list[str]) -> int:
    """`-m smallfiles train` is played; anything else is real."""
    if words[:2] != ["-m", "smallfiles"] or len(words) < 3:
        os.execv(os.environ["SMALLFILES_PYTHON"], ["python", *words])
    mode = (PLACE / "mode").read_text()
    if words[2] != "train" or mode != "stop":
        record(words[2], words[3:])
        return FAILED if mode == "fail" and words[2] == "train" else 0
    came: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda which, frame: came.append(which))
    record("train", words[3:])
    end = time.monotonic() + LIMIT_S
    while not came and time.monotonic() < end:
        time.sleep(0.01)
    record("stopped" if came else "unheard", [])
    return STOPPED if came else KILLED


def main() -> int:
    """Play the program of this name."""
    name, *words = sys.argv[1:]
    if name == "srun":
        return srun(words)
    if name == "python":
        return python(words)
    if name == "smallfiles":
        return python(["-m", "smallfiles", *words])
    record(name, words)
    return 1 if name == "torchrun" else 0


if __name__ == "__main__":
    sys.exit(main())
