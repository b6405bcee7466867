# %% [markdown] id="top"
# # Exercise 10 · Find your place, and outlive a time limit
#
# ★★★ · 40 minutes · after [notebook 10](../notebooks/10_run_it_on_many_nodes.ipynb)
#
# Each process of a job must know its rank, and the job must end before the scheduler ends it. You write a function
# and a job script for these. The check runs your script with a simulated Slurm. If a real one is available, the script
# is submitted at the end.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex10")

# %% [markdown] id="task-place"
# ## Task 1: your place
#
# Given the environment variables of a process, return its rank, the number of ranks and its local rank. torchrun's
# variables come first. A step of srun has `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` and `SLURM_LOCALID`. A job script, an
# salloc shell or a laptop is alone:
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
# A process started by `srun` has `SLURM_STEP_NUM_TASKS`; the job script does not. The shell of `salloc` has it too,
# with the value 1. Local ranks count from 0 on each node. Nodes may have different numbers of tasks, so compute
# nothing: use the variables, and convert them with `int`.
#
# </details>

# %% [markdown] id="task-job"
# ## Task 2: the job script
#
# Fill both gaps of [10_run_it_on_many_nodes.sbatch](10_run_it_on_many_nodes.sbatch), which is next to this notebook; a
# double click opens it. It trains on two nodes. Shortly before the time limit `train` gets USR1, writes a checkpoint
# and exits with code 75: then requeue the job. Any other code is the job's own.

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
    show.say("Solve the task first; then this cell submits your script.")
else:
    done = training_on_cluster(script, setup.source())
    show.say(f"`{done.command}`")
    show.say(done.summary)
    print(done.log)
