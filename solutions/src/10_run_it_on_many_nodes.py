# %% [markdown] id="top"
# # Exercise 10 · Find your place, read your share, and outlive a time limit
#
# ★★★ · 50 minutes · after [notebook 10](../notebooks/10_run_it_on_many_nodes.ipynb)
#
# Each process of a job must know its rank and read its own samples, and the job must end before the scheduler ends it. You
# write a function, repair another one, and fill in a job script. The check runs your script with a simulated Slurm. If a
# real one is available, the script is submitted at the end.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex10")

# %% [markdown] id="task-place"
# ## Task 1: your place
#
# Given the environment variables of a process, return its rank, the number of ranks and its local rank. Check torchrun's
# variables first. A step of srun has `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` and `SLURM_LOCALID`. A job script, an salloc
# shell or a program on a laptop runs alone:
#
# `place(env: dict[str, str]) -> tuple[int, int, int]`


# %% id="place"
def place(env: dict[str, str]) -> tuple[int, int, int]:
    """Rank, number of ranks, local rank."""
    # --8<-- solution
    if "RANK" in env and "WORLD_SIZE" in env:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_STEP_NUM_TASKS" in env:  # a job script has SLURM_NTASKS too
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        return 0, 1, 0
    return int(env[names[0]]), int(env[names[1]]), int(env[names[2]])
    # --8<-- stub
    # raise NotImplementedError  # your code: about 7 lines
    # --8<-- end


# %% id="check-place"
from exercises.checks import ex10_run_it_on_many_nodes as check

check.place(place)

# %% [markdown] id="hints-place"
# <details>
# <summary>Hint: which process is which</summary>
#
# A process that `srun` started has `SLURM_STEP_NUM_TASKS`. The job script does not have it. The shell of `salloc` has it,
# with the value 1. Local ranks count from 0 on each node. Nodes may have different numbers of tasks, so do not compute
# the local rank: read the variables, and convert them with `int`.
#
# </details>

# %% [markdown] id="task-share"
# ## Task 2: a fault that only the audit shows
#
# The loss falls, and each rank reads the right number of samples. Yet the training is wrong. Repair `share`:
# together, the ranks must read each sample once per epoch, and each epoch needs a new order.
#
# `share(count: int, epoch: int, rank: int, ranks: int) -> list[int]`


# %% id="share"
import random


def share(count: int, epoch: int, rank: int, ranks: int) -> list[int]:
    """Numbers of the samples that this rank reads in this epoch, in order."""
    order = list(range(count))
    # --8<-- solution
    random.Random(epoch).shuffle(order)  # the same order on all ranks
    # --8<-- stub
    # random.Random(1000 * epoch + rank).shuffle(order)
    # --8<-- end
    return order[rank::ranks]


# %% [markdown] id="run-audit"
# These cells write a training with your `share` and audit it.

# %% id="training"
import inspect

training = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset

rank, ranks, weight = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 0.0
for epoch in range(2):
    seen = 0
    part, numbers = share(400, epoch, rank, ranks), torch.linspace(0, 1, 400)
    for (x,) in DataLoader(TensorDataset(numbers), 10, sampler=part):
        loss, seen = float((((2 - weight) * x) ** 2).mean()), seen + len(x)
        weight += 0.2 * float(((2 - weight) * x * x).mean())
    print(f"rank {rank}, epoch {epoch}: {seen} samples, loss {loss:.3f}", flush=True)
"""
(setup.scratch / "train.py").write_text(f"import random\n\n{inspect.getsource(share)}{training}")

# %% id="audit"
import os
import subprocess
from pathlib import Path

command = "smallfiles audit -- torchrun --standalone --nproc-per-node 2 train.py"
programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
end = subprocess.run(
    [sys.executable, "-m", *command.split()],
    cwd=setup.scratch,
    env={**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1"},
    capture_output=True,
    text=True,
)
print(end.stdout, end.stderr, sep="")

# %% id="check-share"
check.share(share)

# %% [markdown] id="hints-share"
# <details>
# <summary>Hint 1: how to read the report</summary>
#
# The line *finding* names the fault, *numbers* says how many samples it concerns, and *first* names some of them. Each rank
# reads 200 of the 400 samples. So for each sample that arrives at both ranks, another sample arrives at none of them.
#
# </details>
#
# <details>
# <summary>Hint 2: the cause</summary>
#
# `order[rank::ranks]` divides the samples only if all ranks have the same `order`. On what does the order depend here, and
# on what should it depend?
#
# </details>

# %% [markdown] id="task-job"
# ## Task 3: the job script
#
# Fill both gaps of [10_run_it_on_many_nodes.sbatch](10_run_it_on_many_nodes.sbatch), which is next to this notebook. It
# trains on two nodes. Shortly before the time limit, `train` gets USR1, writes a checkpoint, and exits with code 75. In
# this case, requeue the job. Otherwise, the job must exit with the same code as `train`.

# %% id="script"
# --8<-- solution
script = check.script("solutions")
# --8<-- stub
# script = check.script("exercises")
# --8<-- end

# %% id="check-job"
verdict = check.job(script)
verdict

# %% [markdown] id="hints-job"
# <details>
# <summary>Hint 1: the directives</summary>
#
# `--nodes`, `--ntasks-per-node`, `--cpus-per-task`, `--time=HH:MM:SS`, `--signal=NAME@SECONDS`, `--requeue`. With
# `B:` before the name, the signal goes to the script instead of the ranks.
#
# </details>
#
# <details>
# <summary>Hint 2: the exit code</summary>
#
# `set -e` ends the script at the first command that fails. A command in front of `||` may fail: `code=0`, then `srun …
# || code=$?`, then `if ((code == 75))`. `scontrol requeue` takes the number of the job, `$SLURM_JOB_ID`. Notebook 10
# shows how to pass the CPUs to `srun`.
#
# </details>

# %% [markdown] id="use"
# ## With your script
#
# If Slurm is available, your script now trains on two nodes. Otherwise the cell shows the command for later.

# %% id="submit"
from helpers.experiments.nb10 import training_on_cluster

if not verdict:
    show.say("Solve task 3 first; then this cell submits your script.")
else:
    done = training_on_cluster(script, setup.source())
    show.say(f"`{done.command}`")
    show.say(done.summary)
    print(done.log)
