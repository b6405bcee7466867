"""Every known wrong answer to exercise 10 gets its own diagnosis, and each right way passes."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from exercises.checks import ex10_run_it_on_many_nodes as ex10
from exercises.checks.ex10_run_it_on_many_nodes import arithmetic, directives, running

ROOT = Path(__file__).resolve().parents[2]
PLAYER = ROOT / "exercises" / "checks" / "ex10_run_it_on_many_nodes" / "player.py"
SOLUTION = (ROOT / "solutions" / "10_run_it_on_many_nodes.sbatch").read_text()
LINE = next(line for line in SOLUTION.splitlines() if line.startswith("srun "))
END = SOLUTION[SOLUTION.index("code=0\n") :]
PYTHON = 'smallfiles train "$data" --checkpoint "$checkpoints" --workers "$cpus" "$@"'
SRUN = 'srun --cpus-per-task="$cpus" '
IF_75 = 'if ((code == 75)); then exec scontrol requeue "$SLURM_JOB_ID"; fi\nexit "$code"\n'


def right(env):
    if "RANK" in env and "WORLD_SIZE" in env:
        return int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"])
    if "SLURM_STEP_ID" in env:
        return int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env["SLURM_LOCALID"])
    return 0, 1, 0


def slurm_only(rank="SLURM_PROCID", size="SLURM_NTASKS", local="SLURM_LOCALID", step="SLURM_STEP_ID"):
    """The right answer with one variable changed."""

    def place(env):
        if "RANK" not in env and step in env:
            return int(env[rank]), int(env[size]), int(env[local])
        return right(env) if "RANK" in env else (0, 1, 0)

    return place


def text(env):
    return tuple(map(str, right(env)))


def without_default(env):
    return int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env["SLURM_LOCALID"])


def from_the_process(env):
    return right(os.environ)


def zero_is_alone(env):
    return right(env) if "RANK" in env or env.get("SLURM_PROCID", "0") != "0" else (0, 1, 0)


def computed_local(env):
    rank, size, local = right(env)
    return rank, size, rank % 2 if "SLURM_STEP_ID" in env and "RANK" not in env else local


def no_torchrun(env):
    return right({name: value for name, value in env.items() if name.startswith("SLURM")})


def torchrun_last(env):
    return no_torchrun(env) if "SLURM_STEP_ID" in env else right(env)


def torchrun_local(env):
    rank, size, local = right(env)
    return (local if "RANK" in env else rank), size, local


WRONG_PLACES = {
    "text": (text, arithmetic.TEXT),
    "no default": (without_default, arithmetic.LAPTOP),
    "os.environ": (from_the_process, arithmetic.OWN_ENVIRONMENT),
    "task 0 is alone": (zero_is_alone, arithmetic.FIRST_TASK),
    "local rank": (slurm_only(rank="SLURM_LOCALID"), arithmetic.LOCAL_FOR_RANK),
    "node": (slurm_only(rank="SLURM_NODEID"), arithmetic.NODE_FOR_RANK),
    "nodes": (slurm_only(size="SLURM_NNODES"), arithmetic.NODES_FOR_RANKS),
    "computed": (computed_local, arithmetic.COMPUTED_LOCAL),
    "script": (slurm_only(step="SLURM_PROCID"), arithmetic.SCRIPT),
    "no torchrun": (no_torchrun, arithmetic.TORCHRUN),
    "torchrun last": (torchrun_last, arithmetic.TORCHRUN_FIRST),
    "local of torchrun": (torchrun_local, "the rank is RANK"),
}


@pytest.mark.parametrize("name", WRONG_PLACES)
def test_a_wrong_place_gets_its_diagnosis(name, monkeypatch):
    for variable in [n for n in os.environ if n.startswith("SLURM") or n in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(variable)
    answer, diagnosis = WRONG_PLACES[name]
    verdict = ex10.place(answer)
    assert verdict.state == "not yet" and diagnosis in verdict.because, str(verdict)


def test_the_place_of_the_package_itself_passes():
    from smallfiles.machine.ranks import ranks

    def ours(env):
        where = ranks(env)
        return where.rank, where.world_size, where.local_rank

    assert ex10.place(right) and ex10.place(ours)


def changed(*pairs):
    """The solution with pieces replaced."""
    found = SOLUTION
    for old, new in pairs:
        assert old in found, old
        found = found.replace(old, new)
    return found


def ending(body):
    """The solution with another second gap."""
    return SOLUTION.replace(END, body)


TRAP = """trap 'kill -USR1 $step' USR1
code=0
{srun} &
step=$!
wait $step || code=$?
while kill -0 $step 2>/dev/null; do code=0; wait $step || code=$?; done
"""
WRONG_JOBS = {
    "syntax": (ending("if true; then\n"), directives.SYNTAX),
    "late directive": (changed(("shift 2", "#SBATCH --mem=4G\nshift 2")), "is not read"),
    "no set -e": (changed(("set -eo pipefail\n", "")), "set -eo pipefail"),
    "account": (changed(("#SBATCH --requeue", "#SBATCH --requeue --account=mine")), "belongs to the site"),
    "partition": (changed(("#SBATCH --requeue", "#SBATCH --requeue -p=gpu")), "belongs to the site"),
    "gpu": (changed(("#SBATCH --requeue", "#SBATCH --requeue --gres=gpu:4")), directives.OF_THE_SITE),
    "no nodes": (changed(("--nodes=2 ", "")), directives.NODES),
    "one rank a node": (changed((" --ntasks-per-node=2", "")), directives.TASKS),
    "no cpus": (changed(("#SBATCH --cpus-per-task=2\n", "")), directives.CPUS),
    "no time": (changed(("#SBATCH --time=00:10:00\n", "")), directives.TIME),
    "no signal": (changed(("#SBATCH --signal=USR1@90\n", "")), directives.SIGNAL),
    "other signal": (changed(("USR1@90", "HUP@90")), directives.SIGNAL_KIND),
    "late signal": (changed(("USR1@90", "USR1@5")), directives.SIGNAL_LATE),
    "early signal": (changed(("USR1@90", "USR1@900")), directives.SIGNAL_EARLY),
    "no requeue allowed": (changed(("#SBATCH --requeue\n", "")), directives.REQUEUE),
    "nothing": (ending("echo done\n"), running.NO_TRAINING),
    "no srun": (changed((SRUN, "")), running.NO_SRUN),
    "torchrun": (
        changed((f"{SRUN}smallfiles", "torchrun --nproc-per-node 2 -m smallfiles")),
        running.TORCHRUN,
    ),
    "one task": (changed((SRUN, f"{SRUN}-n 1 ")), running.FEW_TASKS),
    "a task a node": (changed((SRUN, f"{SRUN}--ntasks-per-node=1 --ntasks=2 ")), running.FEW_TASKS),
    "cpus not passed on": (
        changed((SRUN, "srun "), ("code=0\n", "unset SRUN_CPUS_PER_TASK\ncode=0\n")),
        running.CPUS,
    ),
    "unquoted data": (changed(('"$data"', "$data")), running.UNQUOTED),
    "unquoted checkpoints": (changed(('"$checkpoints"', "$checkpoints")), running.UNQUOTED),
    "other data": (changed(('"$data"', "train.arrow")), running.OTHER_DATA),
    "no checkpoint": (changed((' --checkpoint "$checkpoints"', "")), running.CHECKPOINT),
    "no workers": (changed((' --workers "$cpus"', "")), running.WORKERS),
    "workers of the node": (changed(('--workers "$cpus"', "--workers 8")), running.WORKERS),
    "rest is lost": (changed((' "$@" ||', " ||")), running.REST),
    "localhost": (changed(("code=0\n", "code=0\nexport MASTER_ADDR=localhost\n")), running.MASTER),
    "cpus fixed": (changed((SRUN, "srun --cpus-per-task=2 ")), running.FIXED),
    "tasks fixed": (changed((SRUN, f"{SRUN}--ntasks=4 ")), running.FIXED),
    "workers fixed": (changed(('--workers "$cpus"', "--workers 2")), running.FIXED),
    "set -e ends it": (ending(f"{SRUN}{PYTHON}\ncode=$?\n{IF_75}"), running.LOST_CODE),
    "never again": (ending(f"{SRUN}{PYTHON}\n"), running.NO_REQUEUE),
    "always again": (ending(f'{SRUN}{PYTHON} || true\nscontrol requeue "$SLURM_JOB_ID"\n'), running.ALWAYS),
    "again after a failure": (changed(("code == 75", "code != 0")), running.LOOPS),
    "hidden": (changed(('exit "$code"', "exit 0")), running.HIDDEN),
    "a new job": (changed(("exec scontrol requeue", "exec sbatch")), running.BY_SBATCH),
    "another job": (changed(('"$SLURM_JOB_ID"', "$SLURM_JOB_NAME")), running.OTHER_JOB),
    "B:": (changed(("USR1@90", "B:USR1@90")), running.B_KILLED),
    "B: with a trap that waits": (
        changed(("USR1@90", "B:USR1@90"), ("code=0\n", "trap 'echo later' USR1\ncode=0\n")),
        running.B_WAITS,
    ),
    "nobody hears": (changed((SRUN, f"{SRUN}setsid -w ")), running.UNHEARD),
}


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "a job.sbatch"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    """Ranks that nobody tells anything give up sooner."""
    copy = tmp_path / "player.py"
    copy.write_text(PLAYER.read_text().replace("LIMIT_S = 6.0", "LIMIT_S = 2.0"))
    monkeypatch.setattr("exercises.checks.ex10_run_it_on_many_nodes.playing.PLAYER", copy)


@pytest.mark.parametrize("name", WRONG_JOBS)
def test_a_wrong_job_gets_its_diagnosis(name, script):
    text, diagnosis = WRONG_JOBS[name]
    verdict = ex10.job(script(text))
    assert verdict.state == "not yet" and diagnosis in verdict.because, str(verdict)


RIGHT_JOBS = {
    "the solution": SOLUTION,
    "task of lib.sh": changed((SRUN, "task ")),
    "the variable of Slurm": changed((SRUN, 'srun -c "$SLURM_CPUS_PER_TASK" ')),
    "SRUN_CPUS_PER_TASK of lib.sh": changed((SRUN, "srun ")),
    "a shell in each task": changed(
        (f"{SRUN}smallfiles train", f"{SRUN}bash -c 'exec smallfiles train \"$@\"' -")
    ),
    "short options": changed(
        ("--nodes=2 --ntasks-per-node=2", "-N 2 --ntasks-per-node=2"), ("--cpus-per-task=2\n#", "-c 2\n#")
    ),
    "four tasks": changed(("--nodes=2 --ntasks-per-node=2", "--nodes=2 --ntasks=4")),
    "if before": ending(f"if {SRUN}{PYTHON}; then exit 0; else code=$?; fi\n{IF_75}"),
    "B: with a trap that hands on": changed(
        ("USR1@90", "B:USR1@90"), (END, TRAP.format(srun=SRUN + PYTHON) + IF_75)
    ),
    "TERM": changed(("USR1@90", "SIGTERM@120"), ("00:10:00", "0-1")),
}


@pytest.mark.parametrize("name", RIGHT_JOBS)
def test_every_right_way_passes(name, script):
    verdict = ex10.job(script(RIGHT_JOBS[name]))
    assert verdict, str(verdict)


def test_the_exercise_is_not_started_and_says_how_to_start():
    verdict = ex10.job(ROOT / "exercises" / "10_run_it_on_many_nodes.sbatch")
    assert verdict.state == "not started" and "fill its two gaps" in str(verdict)


def test_a_script_that_is_not_there_is_told(tmp_path):
    assert "no such file" in str(ex10.job(tmp_path / "gone.sbatch"))


def test_the_script_beside_the_notebook_is_taken(tmp_path, monkeypatch):
    name = "10_run_it_on_many_nodes.sbatch"
    monkeypatch.chdir(tmp_path)
    assert ex10.script("exercises") == ROOT / "exercises" / name
    (tmp_path / name).touch()
    assert ex10.script("exercises") == tmp_path / name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 600),
        ("10:30", 630),
        ("01:00:00", 3600),
        ("1-2", 93_600),
        ("1-0:30", 88_200),
        ("soon", None),
        ("", None),
    ],
)
def test_times_are_read_as_slurm_reads_them(text, seconds):
    assert directives.seconds_of(text) == seconds


def test_nothing_that_was_played_goes_on(script):
    ex10.job(script(changed(("USR1@90", "B:USR1@90"))))
    running_now = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"player\.py (python|srun)", running_now)
