"""Every known wrong answer to exercise 10 gets its own diagnosis, and each right way passes."""

import os
from pathlib import Path

import pytest
from telling import assert_told, judged

from exercises.checks import ex10_run_it_on_many_nodes as ex10
from smallfiles.machine.ranks import ranks

ROOT = Path(__file__).resolve().parents[2]
SOLUTION = (ROOT / "solutions" / "10_run_it_on_many_nodes.sbatch").read_text()
END = SOLUTION[SOLUTION.index("code=0\n") :]
PYTHON = 'smallfiles train "$data" --checkpoint "$checkpoints" --workers "$cpus" "$@"'
SRUN = 'srun --cpus-per-task="$cpus" '
IF_75 = 'if ((code == 75)); then exec scontrol requeue "$SLURM_JOB_ID"; fi\nexit "$code"\n'


def right(env):
    if "RANK" in env and "WORLD_SIZE" in env:
        return int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"])
    if "SLURM_STEP_NUM_TASKS" in env:
        return int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]), int(env["SLURM_LOCALID"])
    return 0, 1, 0


def slurm_only(rank="SLURM_PROCID", size="SLURM_STEP_NUM_TASKS", local="SLURM_LOCALID", step="SLURM_STEP_ID"):
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
    "text": (text, ex10.WHERE["text"]),
    "no default": (without_default, ex10.WHERE["laptop"]),
    "os.environ": (from_the_process, ex10.WHERE["first task"]),
    "task 0 is alone": (zero_is_alone, ex10.WHERE["first task"]),
    "local rank": (slurm_only(rank="SLURM_LOCALID"), ex10.WHERE["local for rank"]),
    "node": (slurm_only(rank="SLURM_NODEID"), ex10.WHERE["nodes"]),
    "nodes": (slurm_only(size="SLURM_NNODES"), ex10.WHERE["nodes"]),
    "computed": (computed_local, ex10.WHERE["computed"]),
    "script": (slurm_only(size="SLURM_NTASKS", step="SLURM_PROCID"), ex10.WHERE["script"]),
    "salloc": (slurm_only(size="SLURM_NTASKS"), ex10.WHERE["salloc"]),
    "no torchrun": (no_torchrun, ex10.WHERE["torchrun"]),
    "torchrun last": (torchrun_last, ex10.WHERE["torchrun"]),
    "local of torchrun": (torchrun_local, ex10.WHERE["local for rank"]),
}


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    for variable in [n for n in os.environ if n.startswith("SLURM") or n in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(variable)


def ours(env):
    where = ranks(env)
    return where.rank, where.world_size, where.local_rank


TestPlace = judged(ex10.place, WRONG_PLACES, [right, ours])


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
    "syntax": (ending("if true; then\n"), ex10.ASKS["syntax"]),
    "late directive": (changed(("shift 2", "#SBATCH --mem=4G\nshift 2")), "is not read"),
    "no set -e": (changed(("set -eo pipefail\n", "")), "set -eo pipefail"),
    "account": (changed(("#SBATCH --requeue", "#SBATCH --requeue --account=mine")), "belongs to the site"),
    "no nodes": (changed(("--nodes=2 ", "")), ex10.ASKS["nodes"]),
    "one rank a node": (changed((" --ntasks-per-node=2", "")), ex10.ASKS["tasks"]),
    "no cpus": (changed(("#SBATCH --cpus-per-task=2\n", "")), ex10.ASKS["cpus"]),
    "no time": (changed(("#SBATCH --time=00:10:00\n", "")), ex10.ASKS["time"]),
    "no signal": (changed(("#SBATCH --signal=USR1@90\n", "")), ex10.ASKS["signal"]),
    "other signal": (changed(("USR1@90", "HUP@90")), ex10.ASKS["signal"]),
    "no requeue allowed": (changed(("#SBATCH --requeue\n", "")), ex10.ASKS["requeue"]),
    "nothing": (ending("echo done\n"), ex10.DOES["no training"]),
    "no srun": (changed((SRUN, "")), ex10.DOES["no srun"]),
    "torchrun": (
        changed((f"{SRUN}smallfiles", "torchrun --nproc-per-node 2 -m smallfiles")),
        ex10.DOES["no srun"],
    ),
    "one task": (changed((SRUN, f"{SRUN}-n 1 ")), ex10.DOES["few tasks"]),
    "cpus not passed on": (
        changed((SRUN, "srun "), ("code=0\n", "unset SRUN_CPUS_PER_TASK\ncode=0\n")),
        ex10.DOES["cpus"],
    ),
    "unquoted checkpoints": (changed(('"$checkpoints"', "$checkpoints")), ex10.DOES["unquoted"]),
    "other data": (changed(('"$data"', "train.arrow")), ex10.DOES["data"]),
    "no checkpoint": (changed((' --checkpoint "$checkpoints"', "")), ex10.DOES["checkpoint"]),
    "no workers": (changed((' --workers "$cpus"', "")), ex10.DOES["workers"]),
    "rest is lost": (changed((' "$@" ||', " ||")), ex10.DOES["rest"]),
    "workers fixed": (changed(('--workers "$cpus"', "--workers 2")), ex10.DOES["fixed"]),
    "set -e ends it": (ending(f"{SRUN}{PYTHON}\ncode=$?\n{IF_75}"), ex10.DOES["lost code"]),
    "never again": (ending(f"{SRUN}{PYTHON}\n"), ex10.DOES["no requeue"]),
    "always again": (
        ending(f'{SRUN}{PYTHON} || true\nscontrol requeue "$SLURM_JOB_ID"\n'),
        ex10.DOES["always"],
    ),
    "again after a failure": (changed(("code == 75", "code != 0")), ex10.DOES["always"]),
    "hidden": (changed(('exit "$code"', "exit 0")), ex10.DOES["code"]),
    "a new job": (changed(("exec scontrol requeue", "exec sbatch")), ex10.DOES["no requeue"]),
    "B:": (changed(("USR1@90", "B:USR1@90")), ex10.DOES["to script"]),
    "B: with a trap that waits": (
        changed(("USR1@90", "B:USR1@90"), ("code=0\n", "trap 'echo later' USR1\ncode=0\n")),
        ex10.DOES["to script"],
    ),
    "nobody hears": (changed((SRUN, f"{SRUN}setsid -w ")), ex10.DOES["unheard"]),
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
    copy.write_text(ex10.PLAYER.read_text().replace("LIMIT_S = 6.0", "LIMIT_S = 2.0"))
    monkeypatch.setattr(ex10, "PLAYER", copy)


@pytest.mark.parametrize("name", WRONG_JOBS)
def test_a_wrong_job_gets_its_diagnosis(name, script):
    text, diagnosis = WRONG_JOBS[name]
    assert_told(ex10.job(script(text)), diagnosis)


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


def test_the_script_beside_the_notebook_is_taken(tmp_path, monkeypatch):
    name = "10_run_it_on_many_nodes.sbatch"
    monkeypatch.chdir(tmp_path)
    assert ex10.script("exercises") == ROOT / "exercises" / name
    (tmp_path / name).touch()
    assert ex10.script("exercises") == tmp_path / name
