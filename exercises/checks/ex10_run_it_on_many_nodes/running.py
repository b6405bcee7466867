"""What a job script does: on two nodes, on three, asked to stop, and when training fails.

The trap: a script that works once may hold the numbers of that once. Exercise 10.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from exercises.checks.attempt import Attempt
from exercises.checks.ex10_run_it_on_many_nodes import directives
from exercises.checks.ex10_run_it_on_many_nodes.playing import EXTRA, Mode, Play, play

NO_TRAINING = "the script never ran `smallfiles train`"
NO_SRUN = "python without srun is one process on the first node; the other tasks and nodes stay idle"
TORCHRUN = "here srun starts the ranks, each a task, as --ntasks-per-node asked: torchrun is not needed"
FEW_TASKS = "srun starts all tasks of the job by itself; leave its numbers of nodes and tasks out"
CPUS = (
    "from Slurm 22.05 on, srun does not take over --cpus-per-task of the job: "
    'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"'
)
UNQUOTED = 'a path with a space falls into two words: write "$data" and "$checkpoints", in quotes'
OTHER_DATA = "the first argument of the script is what to train on"
CHECKPOINT = 'without --checkpoint "$checkpoints" the next run begins from nothing'
WORKERS = "a loader needs as many workers as its rank has CPUs: --workers with $cpus"
FIXED = (
    "this number stands in the body of your script: with other options of sbatch it is wrong. "
    "Slurm tells it: $SLURM_CPUS_PER_TASK (or $cpus), and srun takes nodes and tasks from the job"
)
REST = 'what stands behind the first two arguments belongs to train: end its line with "$@"'
MASTER = (
    "on the second node this address leads to the second node: its ranks wait for ever. "
    "Leave it out: `train` takes the first node of the list"
)
LOST_CODE = (
    "`set -e` ends the script at the exit code 75 of srun, before it can ask: keep the code with || code=$?"
)
NO_REQUEUE = 'exit code 75 means: stopped in time, queue me again; so: scontrol requeue "$SLURM_JOB_ID"'
BY_SBATCH = "sbatch makes a new job with a new number, and loses its options; scontrol requeue keeps both"
OTHER_JOB = 'scontrol requeue wants the number of this job: "$SLURM_JOB_ID"'
B_KILLED = "with B: only the script gets the signal, and without a trap it dies of it; leave B: out"
B_WAITS = (
    "with B: only the script gets the signal, and bash runs a trap when the command in front has ended, "
    "which is too late; leave B: out, or run srun with & and wait for it"
)
UNHEARD = "the signal did not reach the ranks"
ALWAYS = "a job that asks to be queued again when all is done never ends; ask after code 75 only"
LOOPS = "a training with a mistake would fail again, all night; ask after code 75 only"
HIDDEN = "Slurm shows this job as COMPLETED though training failed: end with the code of srun"
HANGS = "the script did not end by itself"


def _done(attempt: Attempt, path: Path, place: Path, mode: Mode, what: str, **size: int) -> Play:
    signal = directives.signal_of(path)
    attempt.given(f"{path.name}, {what}")
    found = play(path, place, mode, to_script=bool(signal and signal[0]), **size)
    attempt.require(not found.of("torchrun"), got="torchrun", expected="srun", because=TORCHRUN)
    last = (found.log.strip().splitlines() or ["nothing"])[-1][-200:]
    attempt.require(
        bool(found.of("train")),
        got=f"in the log: {last}",
        expected="four ranks that train",
        because=NO_TRAINING,
    )
    started = [call for call in found.of("train") if "SLURM_STEP_ID" in call["env"]]
    attempt.require(
        bool(started),
        got="python started by the script itself",
        expected="python started by srun",
        because=NO_SRUN,
    )
    return found


def _steps(found: Play) -> list[dict[str, object]]:
    return [call for call in found.of("srun") if "train" in call["argv"] or "bash" in str(call["argv"])]


def _value(argv: list[str], flag: str) -> str | None:
    """What a flag of train was given."""
    for place, word in enumerate(argv):
        if word == flag and place + 1 < len(argv):
            return argv[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def on_two_nodes(attempt: Attempt, path: Path, place: Path) -> None:
    """Training ends well."""
    found = _done(attempt, path, place, "finish", "run on two nodes")
    ranks = found.of("train")
    attempt.require(len(ranks) == 4, got=f"{len(ranks)} ranks", expected="4 ranks", because=FEW_TASKS)
    passed = {call["cpus"] for call in _steps(found)}
    attempt.require(
        passed == {"2"},
        got="1 CPU a rank" if passed == {None} else f"{', '.join(map(str, passed))} CPUs a rank",
        expected="2 CPUs a rank",
        because=CPUS,
    )
    _arguments(attempt, found, list(ranks[0]["argv"]), 2)
    masters = {call["env"].get("MASTER_ADDR") for call in ranks} & {"localhost", "127.0.0.1", "::1"}
    attempt.require(
        not masters,
        got=f"MASTER_ADDR={'/'.join(map(str, masters))}",
        expected="the first node",
        because=MASTER,
    )
    attempt.require(not found.requeued, got="queued again", expected="done", because=ALWAYS)
    attempt.require(
        found.code == 0,
        got="it did not end" if found.code is None else f"exit code {found.code}",
        expected="exit code 0",
        because=HANGS if found.code is None else "training ended well, so the job did: end with its code",
    )


def _arguments(attempt: Attempt, found: Play, argv: list[str], cpus: int) -> None:
    told = " ".join(argv)
    if found.data not in argv:
        split = found.data.split(" ")[0] in argv
        raise attempt.wrong(f"train {told}", f"train {found.data!r}", UNQUOTED if split else OTHER_DATA)
    kept = _value(argv, "--checkpoint")
    split = kept is not None and kept != found.checkpoints and found.checkpoints.startswith(kept)
    attempt.require(
        kept == found.checkpoints,
        got=f"train {told}",
        expected=f"--checkpoint {found.checkpoints!r}",
        because=UNQUOTED if split else CHECKPOINT,
    )
    workers = _value(argv, "--workers")
    attempt.require(
        workers == str(cpus),
        got=f"--workers {workers}" if workers else "no --workers",
        expected=f"--workers {cpus}",
        because=WORKERS if cpus == 2 else FIXED,
    )
    attempt.require(
        _value(argv, EXTRA[0]) == EXTRA[1], got=f"train {told}", expected=" ".join(EXTRA), because=REST
    )


def on_three_nodes(attempt: Attempt, path: Path, place: Path) -> None:
    """`--nodes=3 --ntasks-per-node=1 --cpus-per-task=3` on the command line of sbatch."""
    what = "sent with --nodes=3 --ntasks-per-node=1 --cpus-per-task=3"
    found = _done(attempt, path, place, "finish", what, nodes=3, per_node=1, cpus=3)
    ranks = found.of("train")
    attempt.require(len(ranks) == 3, got=f"{len(ranks)} ranks", expected="3 ranks", because=FIXED)
    passed = {str(call["cpus"]) for call in _steps(found)}
    attempt.require(
        passed == {"3"}, got=f"{', '.join(passed)} CPUs a rank", expected="3 CPUs a rank", because=FIXED
    )
    _arguments(attempt, found, list(ranks[0]["argv"]), 3)


def at_the_time_limit(attempt: Attempt, path: Path, place: Path) -> None:
    """The signal comes; `train` leaves with 75."""
    to_script = bool((directives.signal_of(path) or (False,))[0])
    found = _done(attempt, path, place, "stop", "shortly before its time limit")
    heard = found.of("stopped")
    if not heard:
        because = (B_KILLED if found.code in (-10, 138) else B_WAITS) if to_script else UNHEARD
        raise attempt.wrong("the ranks trained on, and were killed", "ranks that write a checkpoint", because)
    if found.requeued:
        return
    got = "not queued again" if found.code is not None else "a script that did not end"
    if found.of("sbatch"):
        because = BY_SBATCH
    elif found.of("scontrol"):
        got, because = f"scontrol {' '.join(found.of('scontrol')[0]['argv'])}", OTHER_JOB
    else:
        knows = "requeue" in path.read_text(encoding="utf-8").split("set -eo", 1)[-1]
        because = LOST_CODE if found.code == 75 and knows else NO_REQUEUE
    raise attempt.wrong(got, "scontrol requeue", because)


def when_training_fails(attempt: Attempt, path: Path, place: Path) -> None:
    """Exit code 3 of all ranks."""
    found = _done(attempt, path, place, "fail", "where training fails with code 3")
    attempt.require(not found.requeued, got="queued again", expected="an end", because=LOOPS)
    attempt.require(found.code != 0, got="exit code 0", expected="exit code 3", because=HIDDEN)


CASES: tuple[Callable[[Attempt, Path, Path], None], ...] = (
    on_two_nodes,
    on_three_nodes,
    at_the_time_limit,
    when_training_fails,
)
