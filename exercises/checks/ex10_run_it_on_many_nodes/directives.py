"""What a job script asks for: read as Slurm reads it, before anything runs.

The trap: Slurm takes no notice of a `#SBATCH` line behind the first command, and says nothing. Exercise 10.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from exercises.checks.attempt import Attempt, NotStarted
from helpers.jobs import script as scripts

UNFILLED = "exit 99"
HOW_TO_START = (
    "Replace the stub: open the job script beside this notebook, fill its two gaps, remove the line "
    f"`{UNFILLED} …`, save it, and run this cell again."
)
SYNTAX = "bash cannot read the script; look at the line that it names"
NODES = "without --nodes Slurm may put all tasks on one node: ask for two, --nodes=2"
TASKS = "each node shall run two ranks: --ntasks-per-node=2"
CPUS = "without --cpus-per-task each rank gets one CPU, and its loader workers wait for each other"
TIME = (
    "a job without --time gets the partition's limit, often a day: it waits longer in the queue, and the "
    "signal comes when you do not expect it"
)
SIGNAL = (
    "without --signal Slurm kills the ranks at the limit, and what they did since the last checkpoint is lost"
)
SIGNAL_KIND = "`train` writes its checkpoint on USR1 (or TERM): --signal=USR1@90"
SIGNAL_LATE = "importing PyTorch and writing a checkpoint take longer than that: ask for at least 30 seconds"
SIGNAL_EARLY = "the signal would come before the job could do anything: --time is not longer"
REQUEUE = "without --requeue Slurm refuses to queue the job again, where sites have that off"
OF_THE_SITE = "belongs to the site's file, so that the script runs on every cluster; Uses: gpu asks for GPUs"
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-t": "--time",
          "-o": "--output", "-J": "--job-name", "-G": "--gpus", "-e": "--error"}  # fmt: skip
_FLAGS = ("--requeue", "--no-requeue", "--exclusive", "--hold", "--overcommit", "--contiguous")
_LEAST_NOTICE_S = 30
_SITES = ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task")


def started(attempt: Attempt) -> Path:
    """The script, if somebody has begun to fill it."""
    path = Path(attempt.answer).absolute()
    attempt.given(path.name)
    attempt.require(
        path.is_file(),
        got="no such file",
        expected="a job script",
        because=f"look for {path.name} in exercises",
    )
    if re.search(rf"^\s*{UNFILLED}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
        raise NotStarted(HOW_TO_START)
    return path


def asked(path: Path) -> dict[str, str]:
    """Options by their long names; a flag has an empty value."""
    found: dict[str, str] = {}
    words = list(scripts.read(path).directives)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        name = _SHORT.get(name, name)
        if not equals and name not in _FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        found[name] = value.strip("\"'")
    return found


def seconds_of(text: str) -> int | None:
    """Slurm's notations of time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, *rest = (int(part) if part else None for part in match.groups())
    parts = [part for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(parts) == 3:
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def signal_of(path: Path) -> tuple[bool, str, int] | None:
    """Whether the signal goes to the script alone, its name, and how many seconds ahead; None without."""
    match = re.fullmatch(r"([RB]{0,2}:)?(?:SIG)?(\w+)(?:@(\d+))?", asked(path).get("--signal", ""))
    return None if match is None else ("B" in (match[1] or ""), match[2], int(match[3] or 60))


def bash_reads_it(attempt: Attempt, path: Path) -> None:
    """`bash -n`, and nothing behind the first command."""
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, timeout=20)
    told = done.stderr.strip().replace(f"{path}: ", "").split("\n")[0]
    attempt.require(done.returncode == 0, got=told, expected="a script without errors", because=SYNTAX)
    faults = scripts.faults(path)
    attempt.require(
        not faults,
        got=(faults or [""])[0],
        expected="a script that Slurm reads as you do",
        because=(faults or [""])[0],
    )


def _value(attempt: Attempt, found: dict[str, str], name: str, right: str, because: str) -> None:
    got = f"{name}={found[name]}" if name in found else f"no {name}"
    attempt.require(found.get(name) == right, got=got, expected=f"{name}={right}", because=because)


def size(attempt: Attempt, path: Path) -> None:
    """Two nodes, two ranks on each, two CPUs a rank, and nothing that a site decides."""
    found = asked(path)
    fixed = [name for name in _SITES if name in found]
    attempt.require(
        not fixed,
        got=", ".join(fixed),
        expected="no such option",
        because=f"{', '.join(fixed)} {OF_THE_SITE}",
    )
    _value(attempt, found, "--nodes", "2", NODES)
    if found.get("--ntasks") != "4" or found.get("--ntasks-per-node"):
        _value(attempt, found, "--ntasks-per-node", "2", TASKS)
    _value(attempt, found, "--cpus-per-task", "2", CPUS)


def times(attempt: Attempt, path: Path) -> None:
    """A limit, a signal before it, and leave to be queued again."""
    found = asked(path)
    limit_s = seconds_of(found.get("--time", ""))
    attempt.require(
        limit_s is not None, got=found.get("--time", "no --time"), expected="--time=HH:MM:SS", because=TIME
    )
    attempt.require(
        "--signal" in found, got="no --signal", expected="USR1, 90 seconds before the limit", because=SIGNAL
    )
    signal = signal_of(path)
    told = f"--signal={found['--signal']}"
    kind = signal is not None and signal[1] in ("USR1", "TERM", "10", "15")
    attempt.require(kind, got=told, expected="--signal=USR1@90", because=SIGNAL_KIND)
    assert signal is not None
    assert limit_s is not None
    attempt.require(signal[2] >= _LEAST_NOTICE_S, got=told, expected="--signal=USR1@90", because=SIGNAL_LATE)
    attempt.require(
        limit_s > 2 * signal[2],
        got=f"{told} and --time={found['--time']}",
        expected="a longer time",
        because=SIGNAL_EARLY,
    )
    attempt.require("--requeue" in found, got="no --requeue", expected="--requeue", because=REQUEUE)


CASES: tuple[Callable[[Attempt, Path], None], ...] = (bash_reads_it, size, times)
