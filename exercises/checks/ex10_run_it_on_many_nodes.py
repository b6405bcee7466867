"""Exercise 10: the place of a process, a loader with a hidden fault, and a job script with a limit.

    place    rank, number of ranks and local rank, from the variables of a launcher
    share    which samples a rank reads in an epoch; the stub has a fault that only `smallfiles audit` shows
    job      what the script asks Slurm for, and what it does: run by real bash, with a played Slurm
             (`helpers.experiments.nb10.played_slurm` stands for srun, scontrol, python)

The script is judged by what it does, not by how it is written. The traps it teaches: numbers of the job are
not numbers of the process; `srun` does not take over the CPUs; a script that stops at code 75 never asks to
be queued again. Notebook 10 sends participants here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exercises.checks import Attempt, Mistake, NotStarted, check, diagnose, explain
from helpers.experiments.nb10 import players
from helpers.jobs import script as scripts

_ROOT = Path(__file__).resolve().parents[2]
PLAYER = _ROOT / "helpers/experiments/nb10/played_slurm.py"
_NAME = "10_run_it_on_many_nodes.sbatch"


def script(folder: str) -> Path:
    """The job script of this exercise: beside the notebook, or in `folder` of the checkout."""
    beside = Path.cwd() / _NAME
    return beside if beside.is_file() else _ROOT / folder / _NAME


# --- Task 1: the place of a process ---

WHERE = {
    "text": "environment variables are text: make numbers of them with int()",
    "laptop": "on a laptop these variables are not set: the process is alone, which is rank 0 of 1",
    "script": "the job script sees SLURM_NTASKS, but is one process; only what srun starts is told "
    "SLURM_STEP_NUM_TASKS",
    "salloc": "the shell of salloc is a step of one task: its SLURM_STEP_NUM_TASKS is 1, not SLURM_NTASKS",
    "not alone": "this task is not alone, whatever its rank: see SLURM_STEP_NUM_TASKS. Read `env`, not "
    "os.environ",
    "local for rank": "this number counts from 0 on each node; the rank is SLURM_PROCID, under torchrun RANK",
    "nodes": "SLURM_NNODES counts nodes and SLURM_NODEID numbers them; ranks are tasks",
    "computed": "nodes may have unequally many tasks: do not compute the local rank, take SLURM_LOCALID",
    "torchrun": "torchrun sets RANK, WORLD_SIZE and LOCAL_RANK; srun's variables are for its parent",
}
Place = tuple[int, int, int]
Environment = tuple[str, dict[str, str], Place, dict[Place, str]]


def _environments() -> list[Environment]:
    """What is told, the right answer, and what other answers mean."""
    srun, torchrun = players.srun, players.torchrun
    cases: list[Environment] = [("a laptop", {"HOME": "somewhere"}, (0, 1, 0), {})]
    for rank, node, local in ((3, 1, 0), (2, 0, 2), (0, 0, 0), (1, 0, 1)):  # even nodes hide wrong formulas
        env = {"SLURM_NODEID": str(node), "SLURM_LOCALID": str(local), "SLURM_STEP_TASKS_PER_NODE": "3,1"}
        what, wrong = f"srun, task {rank} of 4, on node {node}", {(0, 1, 0): "not alone"}
        cases.append((what, {**srun(rank), **env, "SLURM_TASKS_PER_NODE": "3,1"}, (rank, 4, local), wrong))
    wrong = {(0, 4, 0): "script", (0, 2, 0): "script"}
    cases.append(("the job script of two nodes with two tasks each", players.script(), (0, 1, 0), wrong))
    cases.append(("the shell of salloc", players.salloc(), (0, 1, 0), {(0, 4, 0): "salloc"}))
    for rank in (0, 3):
        wrong = {(0, 1, 0): "torchrun", (rank % 2, 4, rank % 2): "local for rank"}
        cases.append((f"torchrun, process {rank} of 4", torchrun(rank), (rank, 4, rank % 2), wrong))
    below = torchrun(3, inside_srun=True)
    wrong = {(1, 2, 0): "torchrun", (0, 1, 0): "torchrun"}
    return [*cases, ("srun, which started torchrun on each node", below, (3, 4, 1), wrong)]


def _from(rank: str, size: str, local: str, tasks_each: int = 0) -> Callable[[dict[str, str]], Place]:
    """A mistake: an answer from other variables of srun, or with a computed local rank."""

    def place(env: dict[str, str]) -> Place:
        computed = int(env["SLURM_PROCID"]) % tasks_each if tasks_each else int(env[local])
        return int(env[rank]), int(env[size]), computed

    return place


_RIGHT = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
SRUN_MISTAKES: tuple[Mistake, ...] = (
    (_from("SLURM_LOCALID", *_RIGHT[1:]), WHERE["local for rank"]),
    (_from("SLURM_NODEID", *_RIGHT[1:]), WHERE["nodes"]),
    (_from(_RIGHT[0], "SLURM_NNODES", _RIGHT[2]), WHERE["nodes"]),
    (_from(*_RIGHT[:2], "SLURM_NODEID"), WHERE["nodes"]),
    (_from(*_RIGHT, tasks_each=2), WHERE["computed"]),
    (_from(*_RIGHT, tasks_each=3), WHERE["computed"]),
)


@check(
    buys="Your program finds its share of the data under srun, under torchrun, and on your laptop.",
    errors={KeyError: f"{WHERE['laptop']}; ask with `in` or env.get() first"},
)
def place(attempt: Attempt) -> None:
    """`place(env)` gives rank, number of ranks and local rank."""
    environments = _environments()
    steps = [(env,) for what, env, *_ in environments if what.startswith("srun, task")]
    for what, env, right, wrong in environments:
        got = attempt(env, _shown=f"the environment of {what}")
        got = tuple(got) if isinstance(got, list) else got
        known = [(told, WHERE[because]) for told, because in wrong.items() if told != right]
        texts = (tuple(map(str, right)), WHERE["text"])
        because = diagnose(got, texts, *known, otherwise="other numbers belong here")
        if got != right and what.startswith("srun, task"):
            because = explain(attempt.answer, (env,), steps, SRUN_MISTAKES, otherwise=because)
        attempt.expect(right, got, because=because)


# --- Task 2: the samples of a rank ---

SHARES = {
    "same": "every rank reads all samples: nothing in your function depends on the rank",
    "own order": "each rank has the right number of samples, but ranks share some. That happens, for "
    "example, if each rank shuffles in another order, as with the rank in the seed",
    "again": "several ranks, or one rank twice, read the same sample",
    "lost": "no sample is read twice, but some are read by nobody. Rounding down with // has this effect",
    "foreign": "sample numbers go from 0 to count - 1",
    "chance": "two equal calls gave different answers, so ranks cannot agree: use random.Random(epoch)",
    "epoch": "two epochs have the same order: the order must depend on the epoch",
    "dealt first": "each rank reads the same samples in every epoch: shuffle all first, and then divide",
    "sizes": "the ranks have different numbers of samples, and the rank with fewer lets the others wait",
}
START = "Run the audit below, read its verdict, and repair `share`. As it stands, the ranks do not agree."


def planted(count: int, epoch: int, rank: int, ranks: int) -> list[int]:
    """Return the share of a rank as the stub does: of the right size, but other ranks get some of it, too.

    Args:
        count: Samples of the data set.
        epoch: Number of the epoch.
        rank: Of this process.
        ranks: How many there are.
    """
    order = list(range(count))
    random.Random(1000 * epoch + rank).shuffle(order)
    return order[rank::ranks]


def _shares(attempt: Attempt, count: int, epoch: int, ranks: int) -> list[list[int]]:
    """Ask every rank for its samples in an epoch."""
    parts = []
    for rank in range(ranks):
        got = attempt(count, epoch, rank, ranks)
        because = "the task asks for a list of sample numbers; list(…) makes one of a range or an iterator"
        fits = isinstance(got, list) and all(isinstance(each, int) for each in got)
        attempt.require(fits, got, "a list of whole numbers", because)
        parts.append(list(got))
    attempt.given(f"share({count}, {epoch}, rank, {ranks}) for each of the {ranks} ranks")
    return parts


def _why_not_once(parts: list[list[int]], count: int) -> str:
    """Return why ranks do not read each sample once, or an empty text; it asserts what the shares prove."""
    often = Counter(each for part in parts for each in part)
    if set(often) - set(range(count)):
        return SHARES["foreign"]
    if len(often) == count and max(often.values()) == 1:
        return ""
    if max(often.values(), default=0) <= 1:
        return SHARES["lost"]
    if all(sorted(part) == list(range(count)) for part in parts):
        return SHARES["same"]
    sizes = [len(range(rank, count, len(parts))) for rank in range(len(parts))]
    distinct = all(len(set(part)) == len(part) for part in parts)
    return SHARES["own order" if distinct and [len(part) for part in parts] == sizes else "again"]


@check(
    buys="An epoch is complete on any number of ranks. Run the audit again: its verdict is *exactly once*."
)
def share(attempt: Attempt) -> None:
    """`share(count, epoch, rank, ranks)` gives each sample to one rank, in a new order in each epoch."""
    for count, ranks in ((400, 2), (12, 3), (10, 4)):
        epochs = [_shares(attempt, count, epoch, ranks) for epoch in range(2)]
        if epochs == [[planted(count, e, rank, ranks) for rank in range(ranks)] for e in range(2)]:
            raise NotStarted(START)
        for parts in epochs:
            often = Counter(each for part in parts for each in part)
            got = f"{len(often)} different samples in {often.total()} reads"
            because = _why_not_once(parts, count)
            attempt.require(not because, got, f"{count} samples, each once", because)
            got = f"the ranks read {[len(part) for part in parts]} samples"
            even = max(map(len, parts)) - min(map(len, parts)) <= 1
            attempt.require(even, got, "numbers that differ by one at most", SHARES["sizes"])
        again = _shares(attempt, count, 1, ranks)
        attempt.require(again == epochs[1], "another answer", "the same answer again", SHARES["chance"])
        first, second = epochs
        if count == 400:  # with few samples, two orders may be equal by chance
            attempt.require(first != second, "equal orders", "a new order", SHARES["epoch"])
            same = list(map(set, first)) == list(map(set, second))
            attempt.require(not same, "equal shares", "new shares in each epoch", SHARES["dealt first"])


# --- Task 3: what the script asks for ---

UNFILLED = "exit 99"
HOW_TO_START = f"Replace the stub: in the job script fill its two gaps, remove `{UNFILLED} …`, save it."
ASKS = {
    "syntax": "bash cannot read the script; look at the line that it names",
    "nodes": "without --nodes Slurm may put all tasks on one node: ask for two, --nodes=2",
    "tasks": "each node runs two ranks: --ntasks-per-node=2",
    "cpus": "without --cpus-per-task each rank gets one CPU, and its loader workers wait for each other",
    "time": "a job without --time gets the partition's limit, often a day, and waits longer in the queue; "
    "00:10:00 is ten minutes, 10:00:00 ten hours",
    "signal": "without --signal=USR1@90 Slurm kills the ranks at the limit, or so late that no time is left",
    "requeue": "without --requeue Slurm refuses to queue the job again, where sites have that off",
}
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-t": "--time"}


def asked(path: Path) -> dict[str, str]:
    """Options by their long names; a flag has an empty value."""
    words = " ".join(scripts.read(path).directives)
    pairs = re.findall(r"(--[\w-]+|-[a-zA-Z])[= ]?([^-\s]\S*)?", words)
    return {_SHORT.get(name, name): value.strip("\"'") for name, value in pairs}


def signal_of(path: Path) -> tuple[bool, str, int]:
    """Whether the signal goes to the script alone, its name, and how many seconds ahead; 0 without."""
    match = re.fullmatch(r"([RB]{0,2}:)?(?:SIG)?(\w+)(?:@(\d+))?", asked(path).get("--signal", ""))
    return ("B" in (match[1] or ""), match[2], int(match[3] or 60)) if match else (False, "", 0)


def minutes_of(text: str) -> float:
    """A time limit as Slurm writes it (`MM`, `MM:SS`, `HH:MM:SS`, `D-HH…`) in minutes; 0 if it is none."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        return 0.0
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds = ([*parts, 0, 0] if dash or len(parts) == 3 else [0, *parts, 0])[:3]
    return (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60


def _started(attempt: Attempt) -> Path:
    """The script, if somebody has begun to fill it and bash can read it."""
    path = Path(attempt.answer).absolute()
    attempt.given(path.name)
    attempt.require(path.is_file(), "no such file", "a job script", f"look for {path.name} in exercises")
    if re.search(rf"^\s*{UNFILLED}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
        raise NotStarted(HOW_TO_START)
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, timeout=20)
    told = done.stderr.strip().replace(f"{path}: ", "").split("\n")[0]
    attempt.require(done.returncode == 0, told, "a script without errors", ASKS["syntax"])
    for fault in scripts.faults(path):
        raise attempt.wrong(fault, "a script that Slurm reads as you do", fault)
    return path


def _examine(attempt: Attempt, path: Path) -> None:
    """Two nodes, two ranks on each, two CPUs per rank, a time limit, a signal before it, and `--requeue`."""
    found = asked(path)
    _, kind, notice_s = signal_of(path)
    four = found.get("--ntasks") == "4" and not found.get("--ntasks-per-node")
    for name, holds, expected, because in (
        ("--nodes", found.get("--nodes") == "2", "--nodes=2", "nodes"),
        ("--ntasks-per-node", four or found.get("--ntasks-per-node") == "2", "--ntasks-per-node=2", "tasks"),
        ("--cpus-per-task", found.get("--cpus-per-task") == "2", "--cpus-per-task=2", "cpus"),
        ("--time", 0 < minutes_of(found.get("--time", "")) <= 10, "--time=00:10:00", "time"),
        ("--signal", kind in ("USR1", "TERM", "10", "15") and notice_s >= 30, "--signal=USR1@90", "signal"),
        ("--requeue", "--requeue" in found, "--requeue", "requeue"),
    ):
        got = f"{name}={found[name]}" if name in found else f"no {name}"
        attempt.require(holds, got, expected, ASKS[because])


# --- Task 3: what the script does ---

Mode = Literal["finish", "stop", "fail"]
Size = tuple[int, int, int]  # nodes, tasks per node, CPUs per task
LIMIT_S, JOB, EXTRA = 15.0, "4711", ("--epochs", "7")
_PLAYED = ("srun", "scontrol", "sbatch", "torchrun", "python", "smallfiles")
DOES = {
    "no training": "the script never ran `smallfiles train`",
    "no srun": "python without srun is one process on the first node; torchrun is not needed with srun",
    "few tasks": "srun starts all tasks of the job by itself; leave its numbers of nodes and tasks out",
    "cpus": 'srun does not take over --cpus-per-task: srun --cpus-per-task="$SLURM_CPUS_PER_TASK" …',
    "unquoted": 'a path with a space falls into two words: write "$data" and "$checkpoints", in quotes',
    "data": "the first argument of the script is what to train on",
    "checkpoint": 'without --checkpoint "$checkpoints" the next run begins from nothing',
    "workers": "a loader needs as many workers as its rank has CPUs: --workers with $cpus",
    "fixed": "with other options of sbatch this number is wrong: take $cpus; srun knows nodes and tasks",
    "rest": 'what follows the first two arguments belongs to train: end its line with "$@"',
    "lost code": "`set -e` ends the script at the code 75 of srun: keep the code with || code=$?",
    "no requeue": 'exit code 75 means "queue me again", under this number: scontrol requeue "$SLURM_JOB_ID"',
    "to script": "with B: only the script gets the signal, and bash waits for srun first: leave B: out",
    "unheard": "the signal did not reach the ranks",
    "always": "a job that is queued again when all is done, or failed, never ends; ask after code 75 only",
    "code": "Slurm shows what the script says: end it with the exit code of srun, whatever that is",
}


@dataclass(frozen=True)
class Play:
    """What a script did: its exit code (None if it had to be ended), its calls, its log, its arguments."""

    code: int | None
    calls: list[dict[str, Any]]
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


def play(path: Path, folder: Path, mode: Mode, job: Mapping[str, str]) -> Play:
    """Run a script with real bash; all names and paths hold a space.

    Args:
        path: The script.
        folder: A new folder.
        mode: Whether training ends well, is stopped by a signal, or fails.
        job: What Slurm sets in the environment of the script.
    """
    for name in ("calls", "tasks", "work", "venv/bin", "course/slurm/sites"):
        (folder / name).mkdir(parents=True)
    (folder / "mode").write_text(mode)
    data, checkpoints = str(folder / "work" / "train set.arrow"), str(folder / "work" / "my run")
    Path(data).touch()
    with (folder / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", str(path), data, checkpoints, *EXTRA],
            cwd=folder / "work",
            env={**job, **_programs(folder), "SLURM_JOB_NAME": path.stem, "SLURM_RESTART_COUNT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        try:
            if mode == "stop":
                _time_limit(shell, folder, int(job["SLURM_NTASKS"]), signal_of(path)[0])
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = shell.wait(LIMIT_S)
        finally:  # a script that is ended leaves its background processes
            _send(signal.SIGKILL, shell.pid, *_tasks(folder))
            shell.wait()
    calls = [json.loads(call.read_text()) for call in (folder / "calls").glob("*.json")]
    calls.sort(key=lambda call: float(call["at"]))
    return Play(code, calls, (folder / "log").read_text(errors="replace"), data, checkpoints)


def _tasks(folder: Path) -> list[int]:
    return [int(path.name) for path in (folder / "tasks").iterdir()]


def _send(number: signal.Signals, *groups: int) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _programs(folder: Path) -> Mapping[str, str]:
    """The played programs, first in the path, and a checkout that has this site only."""
    programs, course = folder / "venv" / "bin", folder / "course"
    for name in _PLAYED:
        line = shlex.join([sys.executable, "-IS", str(PLAYER), name])
        (programs / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "python3").symlink_to("python")
    shutil.copyfile(_ROOT / "slurm" / "lib.sh", course / "slurm" / "lib.sh")
    (course / "slurm" / "sites" / "played.env").touch()
    return {
        "PATH": f"{programs}:{os.defpath}:/usr/bin:/bin",
        "SMALLFILES_PLAY": str(folder),
        "SMALLFILES_PYTHON": sys.executable,
        "COURSE_ROOT": str(course),
        "COURSE_SITE": "played",
        "COURSE_VENV": str(folder / "venv"),
        "COURSE_WORK": str(folder / "work"),
        "HOME": str(folder / "work"),
        "LANG": "C.UTF-8",
    }


def _time_limit(shell: subprocess.Popen[bytes], folder: Path, ranks: int, to_script: bool) -> None:
    """Send the signal that Slurm sends, once the ranks train."""
    end = time.monotonic() + 5
    while len(list((folder / "calls").glob("*.json"))) <= ranks and shell.poll() is None:
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    if to_script:
        time.sleep(0.3)  # the shell may not wait yet
        shell.send_signal(signal.SIGUSR1)
    else:
        _send(signal.SIGUSR1, *_tasks(folder))


def _run(attempt: Attempt, path: Path, mode: Mode, what: str, size: Size = (2, 2, 2)) -> Play:
    """Play the script; it must train, in ranks that srun started, with the right arguments."""
    attempt.given(f"{path.name}, {what}")
    found = play(path, attempt.folder() / "a job", mode, players.script(*size))
    ranks, last = found.of("train"), (found.log.strip().splitlines() or ["nothing"])[-1][-200:]
    by_srun = not found.of("torchrun") and any("SLURM_STEP_ID" in call["env"] for call in ranks)
    trained = bool(ranks or found.of("torchrun"))
    attempt.require(trained, f"in the log: {last}", "four ranks that train", DOES["no training"])
    attempt.require(by_srun, "python without srun, or torchrun", "srun", DOES["no srun"])
    if mode == "finish":  # asked to stop, ranks may not have begun
        _all_right(attempt, found, size)
    return found


def _all_right(attempt: Attempt, found: Play, size: Size) -> None:
    """Refuse a wrong number of ranks, of CPUs, and wrong arguments; on three nodes numbers are fixed ones."""
    nodes, each, cpus = size
    ranks, count = found.of("train"), nodes * each
    few, cpu = ("few tasks", "cpus") if count == 4 else ("fixed", "fixed")
    attempt.require(len(ranks) == count, f"{len(ranks)} ranks", f"{count} ranks", DOES[few])
    steps = [call for call in found.of("srun") if "train" in call["argv"] or "bash" in str(call["argv"])]
    passed = {str(call["cpus"]) for call in steps}
    attempt.require(passed == {str(cpus)}, f"{', '.join(passed)} CPUs per rank", f"{cpus} CPUs", DOES[cpu])
    _arguments(attempt, found, list(ranks[0]["argv"]), str(cpus))


def _arguments(attempt: Attempt, found: Play, argv: list[str], cpus: str) -> None:
    flags = {word: value for word, value in zip(argv, [*argv[1:], ""], strict=True) if word.startswith("--")}
    flags |= dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    kept = flags.get("--checkpoint", "")
    split = kept != found.checkpoints and kept and found.checkpoints.startswith(kept)
    cut = found.data not in argv and found.data.split(" ")[0] in argv
    for holds, expected, because in (
        (not (cut or split), f"{found.data!r} and {found.checkpoints!r}", "unquoted"),
        (found.data in argv, f"{found.data!r}", "data"),
        (kept == found.checkpoints, f"--checkpoint {found.checkpoints!r}", "checkpoint"),
        (flags.get("--workers") == cpus, f"--workers {cpus}", "workers" if cpus == "2" else "fixed"),
        (flags.get(EXTRA[0]) == EXTRA[1], " ".join(EXTRA), "rest"),
    ):
        attempt.require(holds, f"train {' '.join(argv)}", expected, DOES[because])


def _at_the_time_limit(attempt: Attempt, path: Path) -> None:
    """The signal comes; `train` leaves with 75."""
    found = _run(attempt, path, "stop", "shortly before its time limit")
    because = "to script" if signal_of(path)[0] else "unheard"
    heard = any(found.of("stopped"))
    attempt.require(heard, "ranks that are killed", "ranks that write a checkpoint", DOES[because])
    asked_for = [" ".join(call["argv"]) for call in (*found.of("scontrol"), *found.of("sbatch"))]
    knows = "requeue" in path.read_text(encoding="utf-8").split("set -eo", 1)[-1]
    because = "lost code" if found.code == 75 and knows and not asked_for else "no requeue"
    attempt.require(found.requeued, f"{asked_for or 'nothing asked'}", f"requeue {JOB}", DOES[because])


_BUYS = "A training of three days now runs where a day is the limit, on any number of nodes."


@check(buys=_BUYS, limit_s=90.0)
def job(attempt: Attempt) -> None:
    """A job script that trains on two nodes and goes on after its time limit."""
    path = _started(attempt)
    _examine(attempt, path)
    found = _run(attempt, path, "finish", "run on two nodes")
    attempt.require(not found.requeued, "queued again", "done", DOES["always"])
    got = f"exit code {found.code}; in the log: {found.log.strip()[-120:] or 'nothing'}"
    attempt.require(found.code == 0, got, "exit code 0", DOES["code"])
    _run(attempt, path, "finish", "sent with --nodes=3 --ntasks-per-node=1 --cpus-per-task=3", (3, 1, 3))
    _at_the_time_limit(attempt, path)
    found = _run(attempt, path, "fail", "where training fails with code 3")
    attempt.require(not found.requeued, "queued again", "an end", DOES["always"])
    attempt.require(found.code != 0, "exit code 0", "exit code 3", DOES["code"])
