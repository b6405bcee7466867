"""Every known wrong answer to exercise 10 gets its own diagnosis, and each right way passes."""

import os
import random
from dataclasses import astuple
from pathlib import Path

import pytest
from telling import judged

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


def zero_is_alone(env):
    return right(env) if "RANK" in env or env.get("SLURM_PROCID", "0") != "0" else (0, 1, 0)


def computed_local(env):
    rank, size, local = right(env)
    return rank, size, rank % 2 if "SLURM_STEP_ID" in env and "RANK" not in env else local


def no_torchrun(env):
    return right({name: value for name, value in env.items() if name.startswith("SLURM")})


def torchrun_local(env):
    rank, size, local = right(env)
    return (local if "RANK" in env else rank), size, local


WRONG_PLACES = [
    (lambda env: tuple(map(str, right(env))), ex10.WHERE["text"]),
    (lambda env: (int(env["SLURM_PROCID"]), 4, 0), ex10.WHERE["laptop"]),
    (lambda env: right(os.environ), ex10.WHERE["not alone"]),
    (zero_is_alone, ex10.WHERE["not alone"]),
    (slurm_only(rank="SLURM_LOCALID"), ex10.WHERE["local for rank"]),
    (slurm_only(rank="SLURM_NODEID"), ex10.WHERE["nodes"]),
    (slurm_only(size="SLURM_NNODES"), ex10.WHERE["nodes"]),
    (slurm_only(local="SLURM_NODEID"), ex10.WHERE["nodes"]),
    (computed_local, ex10.WHERE["computed"]),
    (slurm_only(size="SLURM_NTASKS", step="SLURM_PROCID"), ex10.WHERE["script"]),
    (slurm_only(size="SLURM_NTASKS"), ex10.WHERE["salloc"]),
    (no_torchrun, ex10.WHERE["torchrun"]),
    (torchrun_local, ex10.WHERE["local for rank"]),
]


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    for variable in [n for n in os.environ if n.startswith("SLURM") or n in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(variable)


TestPlace = judged(ex10.place, WRONG_PLACES, [right, lambda env: astuple(ranks(env))[:3]])


def shuffled(of, seed):
    return random.Random(seed).sample(list(of), len(of))


def all_but_one_each(n, epoch, rank, ranks):
    order = shuffled(range(n), epoch)
    return order[n - rank :][:1] if rank else order[: n - ranks + 1]


WRONG_SHARES = [
    (lambda n, epoch, rank, ranks: shuffled(range(n), epoch), ex10.SHARES["same"]),
    (
        lambda n, epoch, rank, ranks: shuffled(range(n), f"{epoch} {rank}")[rank::ranks],
        ex10.SHARES["own order"],
    ),
    (lambda n, epoch, rank, ranks: shuffled(range(n), epoch)[rank:], ex10.SHARES["again"]),
    (lambda n, e, r, m: shuffled(range(n), e)[r * (n // m) :][: n // m], ex10.SHARES["lost"]),
    (lambda n, epoch, rank, ranks: shuffled(range(1, n + 1), epoch)[rank::ranks], ex10.SHARES["foreign"]),
    (lambda n, epoch, rank, ranks: list(range(rank, n, ranks)), ex10.SHARES["epoch"]),
    (lambda n, epoch, rank, ranks: shuffled(range(rank, n, ranks), epoch), ex10.SHARES["dealt first"]),
    (all_but_one_each, ex10.SHARES["sizes"]),
    (lambda n, epoch, rank, ranks: range(rank, n, ranks), "a list of"),
]
RIGHT_SHARES = [lambda n, epoch, rank, ranks: shuffled(range(n), f"any {epoch}")[rank::ranks]]
TestShare = judged(ex10.share, WRONG_SHARES, RIGHT_SHARES)


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
TO_SCRIPT = ("USR1@90", "B:USR1@90")
WRONG_JOBS = [
    (ending("if true; then\n"), ex10.ASKS["syntax"]),
    (changed(("shift 2", "#SBATCH --mem=4G\nshift 2")), "is not read"),
    (changed(("set -eo pipefail\n", "")), "set -eo pipefail"),
    (changed(("#SBATCH --requeue", "#SBATCH --requeue --account=mine")), "belongs to the site"),
    (changed(("--nodes=2 ", "")), ex10.ASKS["nodes"]),
    (changed((" --ntasks-per-node=2", "")), ex10.ASKS["tasks"]),
    (changed(("#SBATCH --cpus-per-task=2\n", "")), ex10.ASKS["cpus"]),
    (changed(("#SBATCH --time=00:10:00\n", "")), ex10.ASKS["time"]),
    (changed(("--time=00:10:00", "--time=10:00:00")), ex10.ASKS["time"]),
    (changed(("#SBATCH --signal=USR1@90\n", "")), ex10.ASKS["signal"]),
    (changed(("USR1@90", "HUP@90")), ex10.ASKS["signal"]),
    (changed(("#SBATCH --requeue\n", "")), ex10.ASKS["requeue"]),
    (ending("echo done\n"), ex10.DOES["no training"]),
    (changed((SRUN, "")), ex10.DOES["no srun"]),
    (changed((f"{SRUN}smallfiles", "torchrun --nproc-per-node 2 -m smallfiles")), ex10.DOES["no srun"]),
    (changed((SRUN, f"{SRUN}-n 1 ")), ex10.DOES["few tasks"]),
    (changed((SRUN, "srun ")), ex10.DOES["cpus"]),
    (changed(('"$checkpoints"', "$checkpoints")), ex10.DOES["unquoted"]),
    (changed(('"$data"', "train.arrow")), ex10.DOES["data"]),
    (changed((' --checkpoint "$checkpoints"', "")), ex10.DOES["checkpoint"]),
    (changed((' --workers "$cpus"', "")), ex10.DOES["workers"]),
    (changed((' "$@" ||', " ||")), ex10.DOES["rest"]),
    (changed(('--workers "$cpus"', "--workers 2")), ex10.DOES["fixed"]),
    (ending(f"{SRUN}{PYTHON}\ncode=$?\n{IF_75}"), ex10.DOES["lost code"]),
    (ending(f"{SRUN}{PYTHON}\n"), ex10.DOES["no requeue"]),
    (ending(f'{SRUN}{PYTHON} || true\nscontrol requeue "$SLURM_JOB_ID"\n'), ex10.DOES["always"]),
    (changed(("code == 75", "code != 0")), ex10.DOES["always"]),
    (changed(('exit "$code"', "exit 0")), ex10.DOES["code"]),
    (changed(("exec scontrol requeue", "exec sbatch")), ex10.DOES["no requeue"]),
    (changed(TO_SCRIPT), ex10.DOES["to script"]),
    (changed(TO_SCRIPT, ("code=0\n", "trap 'echo later' USR1\ncode=0\n")), ex10.DOES["to script"]),
    (changed((SRUN, f"{SRUN}setsid -w ")), ex10.DOES["unheard"]),
]


@pytest.fixture
def job(tmp_path):
    def judge(text):
        path = tmp_path / "a job.sbatch"
        path.write_text(text)
        return ex10.job(path)

    return judge


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    """Ranks that nobody tells anything give up sooner."""
    copy = tmp_path / "player.py"
    copy.write_text(ex10.PLAYER.read_text().replace("LIMIT_S = 6.0", "LIMIT_S = 2.0"))
    monkeypatch.setattr(ex10, "PLAYER", copy)


RIGHT_JOBS = [
    SOLUTION,
    changed((SRUN, "task ")),  # of lib.sh
    changed((SRUN, 'srun -c "$SLURM_CPUS_PER_TASK" ')),
    changed((SRUN, "srun "), ("code=0\n", "export SRUN_CPUS_PER_TASK=$cpus\ncode=0\n")),
    changed((f"{SRUN}smallfiles train", f"{SRUN}bash -c 'exec smallfiles train \"$@\"' -")),
    changed(("--nodes=2", "-N 2"), ("--cpus-per-task=2\n#", "-c 2\n#")),
    changed(("--nodes=2 --ntasks-per-node=2", "--nodes=2 --ntasks=4")),
    ending(f"if {SRUN}{PYTHON}; then exit 0; else code=$?; fi\n{IF_75}"),
    changed(TO_SCRIPT, (END, TRAP.format(srun=SRUN + PYTHON) + IF_75)),
    changed(("USR1@90", "SIGTERM@120"), ("00:10:00", "0-0:10")),
]
TestJob = judged("job", WRONG_JOBS, RIGHT_JOBS)


def test_the_exercise_is_not_started_and_says_how_to_start():
    verdict = ex10.job(ROOT / "exercises" / "10_run_it_on_many_nodes.sbatch")
    assert verdict.state == ex10.share(ex10.planted).state == "not started"
    assert "fill its two gaps" in str(verdict) and "Run the audit" in str(ex10.share(ex10.planted))


def test_the_script_beside_the_notebook_is_taken(tmp_path, monkeypatch):
    name = "10_run_it_on_many_nodes.sbatch"
    monkeypatch.chdir(tmp_path)
    assert ex10.script("exercises") == ROOT / "exercises" / name
    (tmp_path / name).touch()
    assert ex10.script("exercises") == tmp_path / name


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("10", 10), ("10:00", 10), ("00:10:00", 10), ("10:00:00", 600), ("1-2", 1560), ("0-0:5", 5), ("x", 0)],
)
def test_a_time_limit_is_read_as_slurm_reads_it(text, minutes):
    assert ex10.minutes_of(text) == minutes
